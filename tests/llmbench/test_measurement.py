"""One prompt measured: the contract's definitions on one record."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmbench
from llmbench.errors import CannotMeasure, UsageError
from llmbench.measurement import measure, result_of
from llmbench.mock import MockOptions, serve_in_thread
from llmbench.mock.faults import read_fault
from llmbench.records import Outcome, RequestRecord

MS = 1_000_000


def answer(event_ms: list[int], tokens: list[int], **more: object) -> RequestRecord:
    values: dict = {
        "index": 0,
        "phase": "measure",
        "outcome": Outcome.OK,
        "sent_ns": 10 * MS,
        "event_ns": [(10 + at) * MS for at in event_ms],
        "event_tokens": tokens,
        "output_tokens": sum(tokens),
        "input_tokens": 7,
        "token_source": "usage",
        "text": "Hello",
    }
    return RequestRecord(**{**values, **more})


def test_times_count_from_the_last_byte_sent():
    result = result_of(answer([200, 210, 220], [1, 1, 1]), model="m")
    assert result.ttft == pytest.approx(0.2)
    assert result.e2e == pytest.approx(0.22)
    assert result.tpot == pytest.approx(0.01)
    assert result.itl == pytest.approx((0.01, 0.01))
    assert (result.input_tokens, result.output_tokens, result.total_tokens) == (7, 3, 10)


def test_an_event_of_several_tokens_is_several_gaps():
    result = result_of(answer([100, 140], [1, 4]), model="m")
    assert result.itl == pytest.approx((0.01,) * 4)
    assert result.tpot == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("record", "absent"),
    [
        (answer([200], [1]), {"tpot"}),  # one token has no time per further token
        (answer([], []), {"ttft", "tpot", "e2e"}),
        (answer([200, 210], [1, 1], input_tokens=None), {"input_tokens", "total_tokens"}),
        (answer([200, 210], [1, 1], output_tokens=None), {"output_tokens", "total_tokens", "tpot"}),
    ],
)
def test_what_the_answer_does_not_tell_is_absent_and_never_zero(record, absent):
    result = result_of(record, model="m")
    names = ("ttft", "tpot", "e2e", "input_tokens", "output_tokens", "total_tokens")
    assert {name for name in names if getattr(result, name) is None} == absent


def test_with_several_choices_tokens_cannot_be_laid_to_events():
    assert result_of(answer([200, 210], [1, 1], event_tokens=None), model="m").itl == ()


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40), st.data())
def test_the_parts_add_up_to_the_whole(gaps_ms, data):
    event_ms = [sum(gaps_ms[: end + 1]) for end in range(len(gaps_ms))]
    tokens = data.draw(st.lists(st.integers(1, 5), min_size=len(gaps_ms), max_size=len(gaps_ms)))
    result = result_of(answer(event_ms, tokens), model="m")
    assert result.ttft + result.tpot * (sum(tokens) - 1) == pytest.approx(result.e2e)
    assert result.ttft + sum(result.itl) == pytest.approx(result.e2e)
    assert len(result.itl) == sum(tokens[1:])


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "says"),
    [
        (("http://h:1", 5), {}, TypeError, "prompt must be text, not int"),
        (("http://h:1", None), {}, TypeError, "prompt must be text, not NoneType"),
        ((8000, "a"), {}, TypeError, "url must be text, not int"),
        (("http://h:1", "a"), {"max_tokens": "9"}, TypeError, "max_tokens must be a whole number"),
        (("http://h:1", "a"), {"max_tokens": True}, TypeError, "max_tokens must be a whole number"),
        (("http://h:1", "a"), {"timeout_s": "9s"}, TypeError, "timeout_s must be a number of seconds"),
        (("http://h:1", "a"), {"api_key": 3}, TypeError, "api_key must be text"),
        (("http://h:1", "a"), {"max_tokens": 0}, UsageError, "must be 1 or more"),
        (("http://h:1", "a"), {"timeout_s": 0}, UsageError, "must be more than 0"),
        (("http://h:1", "a"), {"timeout_s": float("nan")}, UsageError, "must be more than 0"),
        (("http://h:1", "a"), {"api": "chats"}, UsageError, "write one of chat, completions, responses"),
        (("http://h:1", ""), {}, UsageError, "prompt is empty"),
        (("h", "a"), {}, UsageError, "no scheme; write https://h, or http://h"),
        (("http://me:hunter2@h:port", "a"), {}, UsageError, r"http://\*\*\*@h:port: the port must be"),
        (("http://me:hunter2@h", "a"), {"api_key": "k"}, UsageError, "exclude each other"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_sent(arguments, options, kind, says):
    with pytest.raises(kind, match=says) as refused:
        measure(*arguments, **options)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("fault", "options", "says"),
    [
        ("status,code=401", {}, "Give the key with api_key="),
        ("status,code=404", {}, r"Does it serve /v1/chat/completions, and model '.+'\? Choose with api="),
        ("status,code=404", {"api": "completions"}, "Does it serve /v1/completions"),
        ("status,code=429", {}, "limits the rate"),
        ("status,code=503", {}, "its own log"),
        ("status,code=400", {}, "see its words"),
        ("drop", {}, "Is the server up"),
        ("cut", {}, "no whole stream"),
        ("stall", {"timeout_s": 0.3}, "give it longer with timeout_s="),
    ],
)
def test_a_failure_says_what_to_do(fault, options, says):
    options_of_server = MockOptions(faults=(read_fault(fault),))
    with serve_in_thread(options_of_server) as server, pytest.raises(CannotMeasure, match=says):
        measure(server.url, "Say hi", **options)


def test_the_advice_for_python_is_no_command_line():
    says = r"measure\(url, prompt, api_key=...\)"
    options = MockOptions(api_key="another")
    with serve_in_thread(options) as server, pytest.raises(CannotMeasure, match=says) as refused:
        measure(server.url, "Say hi", api_key="sk-mine-012345")
    assert "sk-mine" not in str(refused.value)
    assert "--set" not in str(refused.value)


def test_host_and_port_will_do():
    with serve_in_thread(MockOptions()) as server:
        assert measure(server.url.removeprefix("http://"), "Say hi", max_tokens=3).output_tokens == 3


def test_a_name_is_no_scenario_to_run():
    with pytest.raises(TypeError, match="load_scenario"):
        llmbench.run("quickstart")


def test_a_run_imports_nothing_that_only_other_programs_need():
    """The httpx library brings its command line, and with it rich, pygments and click: 0.1 s at the start."""
    code = "import sys, llmbench.bench, httpx; print(*{'rich', 'pygments', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == ""


def test_an_httpx_that_is_there_already_stays_as_it_is():
    code = "import httpx, sys; main = httpx.main; import llmbench.client.control; print(httpx.main is main)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "True"


def test_every_public_name_is_there_and_no_other():
    for name in llmbench.__all__:
        assert getattr(llmbench, name) is not None
    assert set(llmbench.__all__) <= set(dir(llmbench))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = llmbench.nothing
