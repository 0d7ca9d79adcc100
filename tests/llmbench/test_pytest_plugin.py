"""The pytest plugin, in a pytest of its own: latency tests are marked, kept apart, told their endpoint."""

from __future__ import annotations

import pytest

from llmbench.pytest_plugin import Endpoint, is_asked_for

SUITE = """
    def test_unit():
        assert 1 + 1 == 2

    def test_endpoint(llmbench):
        print("measures", llmbench)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("LLMBENCH_URL", raising=False)
    pytester.makepyfile(SUITE)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "no:cacheprovider", "-s", *arguments)


def test_a_plain_run_leaves_latency_tests_out(suite):
    run(suite).assert_outcomes(passed=1, deselected=1)


def test_an_endpoint_on_the_command_line_brings_them_in(suite):
    result = run(suite, "--llmbench-url", "http://127.0.0.1:9", "--llmbench-model", "m")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines("*measures Endpoint(url='http://127.0.0.1:9', model='m')*")


@pytest.mark.parametrize("source", ["ini", "environment"])
def test_the_marker_selects_them_alone_and_the_endpoint_may_be_configured(suite, monkeypatch, source):
    if source == "ini":
        suite.makeini("[pytest]\nllmbench_url = http://127.0.0.1:9\n")
    else:
        monkeypatch.setenv("LLMBENCH_URL", "http://127.0.0.1:9")
    result = run(suite, "-m", "latency")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines("*measures Endpoint(url='http://127.0.0.1:9', model='auto')*")


def test_an_endpoint_in_the_configuration_alone_asks_for_nothing(suite, monkeypatch):
    monkeypatch.setenv("LLMBENCH_URL", "http://127.0.0.1:9")
    run(suite).assert_outcomes(passed=1, deselected=1)


def test_asked_for_without_an_endpoint_they_say_what_is_missing(suite):
    result = run(suite, "-m", "latency")
    result.assert_outcomes(errors=1, deselected=1)
    result.stdout.fnmatch_lines("*no endpoint to measure: pytest --llmbench-url http*")


@pytest.mark.parametrize(
    ("mark_expression", "url", "asked"),
    [("", None, False), ("slow", None, False), ("latency", None, True), ("", "http://x", True)],
)
def test_who_asks_for_latency_tests(mark_expression, url, asked):
    assert is_asked_for(mark_expression, url) is asked


def test_a_failing_test_does_not_show_the_key():
    assert "secret" not in repr(Endpoint(url="http://x", model="m", api_key="secret"))
    assert "secret" not in repr(Endpoint(url="http://me:secret@x", model="m", api_key=None))
