"""The pytest plugin: a fixture `llmbench` for latency tests in a user's own suite.

    def test_first_token_comes_soon(llmbench):
        result = llmbench.measure("Say hello.", max_tokens=16)
        assert result.ttft < 0.5

A test that uses the fixture is marked `latency` by itself and kept apart from unit tests: it runs when asked
for and is deselected otherwise: `pytest --llmbench-url URL`, or `pytest -m latency` where the ini file or
LLMBENCH_URL names the endpoint. Asked for without an endpoint it fails: a gate that skips passes unseen.
Nothing of llmbench but this module is imported before a measurement.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from llmbench.measurement import MeasureResult

NO_ENDPOINT = (
    "no endpoint to measure: pytest --llmbench-url http://127.0.0.1:8000, "
    "or llmbench_url = … in the ini file, or LLMBENCH_URL=…"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The endpoint under test, as the options, the ini file or the environment name it."""

    url: str
    model: str
    api_key: str | None

    def measure(self, prompt: str, **options: Any) -> MeasureResult:
        """Send one prompt and time the answer; `options` are those of `llmbench.measure`."""
        from llmbench.measurement import measure

        return measure(self.url, prompt, **{"model": self.model, "api_key": self.api_key, **options})

    def __repr__(self) -> str:
        """Without the key and a password: pytest prints the values of a failed test."""
        from llmbench.scenario.address import mask_address

        return f"Endpoint(url={mask_address(self.url)!r}, model={self.model!r})"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("llmbench", "latency tests (llmbench)")
    group.addoption(
        "--llmbench-url", metavar="URL", help="endpoint that tests with the llmbench fixture measure"
    )
    group.addoption("--llmbench-model", metavar="NAME", help="its model (default: the first it names)")
    parser.addini("llmbench_url", "endpoint that the llmbench fixture measures")
    parser.addini("llmbench_model", "its model")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "latency: measures a running endpoint (set by the llmbench fixture)")


@pytest.hookimpl(tryfirst=True)  # the mark must be there when pytest evaluates -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "llmbench" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.latency)
    if is_asked_for(config.getoption("markexpr", ""), config.getoption("llmbench_url")):
        return
    apart = [item for item in items if item.get_closest_marker("latency")]
    if apart:
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if not item.get_closest_marker("latency")]


def is_asked_for(mark_expression: str, url: str | None) -> bool:
    """Whether latency tests take part; where `-m` speaks of them, pytest's own selection decides."""
    return bool(url) or "latency" in mark_expression


@pytest.fixture(scope="session")
def llmbench(pytestconfig: pytest.Config) -> Endpoint:
    """Measures single prompts: `llmbench.measure(prompt).ttft`, `.tpot`, `.total_tokens`, `.e2e`."""
    url = setting(pytestconfig, "llmbench_url")
    if not url:
        pytest.fail(NO_ENDPOINT, pytrace=False)
    model = setting(pytestconfig, "llmbench_model") or "auto"
    return Endpoint(url=url, model=model, api_key=os.environ.get("LLMBENCH_API_KEY") or None)


def setting(config: pytest.Config, name: str) -> str | None:
    """The option, else the ini value, else the environment variable."""
    return config.getoption(name) or str(config.getini(name) or "") or os.environ.get(name.upper())
