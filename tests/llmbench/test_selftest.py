"""The self-test: its corpus, its table, and itself on this machine."""

from __future__ import annotations

import json
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.errors import CannotMeasure
from llmbench.selftest import suite
from llmbench.selftest.check import Ceiling, Check, at_least, at_most, document, near, same, table
from llmbench.selftest.corpus import STREAMS, Stream
from llmbench.selftest.streams import TRANSPORTS, played
from llmbench.selftest.suite import CASES, run_suite
from tests.programs import Bench

APIS = sorted({stream.api for stream in STREAMS})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_every_stream_of_the_corpus_comes_out_as_expected(api, transport):
    assert played([stream for stream in STREAMS if stream.api == api], transport) == []


def test_the_corpus_would_tell():
    """Each kind of expectation, wrong on purpose."""
    plain = STREAMS[0]
    wrong = [
        Stream(name="text", steps=plain.steps, expect={"text": "Goodbye"}),
        Stream(name="events", steps=plain.steps, num_events=5),
        Stream(name="tokens", steps=plain.steps, expect={"output_tokens": 3}),
        Stream(name="soon", steps=plain.steps, ttft_at_least_s=5.0),
        Stream(name="error", steps=plain.steps, expect={"error": "quota"}),
        Stream(name="outcome", steps=plain.steps, expect={"outcome": "timeout"}),
    ]
    assert [name for name, _, _ in played(wrong, "fast")] == [stream.name for stream in wrong]


def test_streams_have_names_of_their_own():
    names = [(stream.api, stream.name) for stream in STREAMS]
    assert len(set(names)) == len(names) >= 50


def test_expectations_say_what_is_near_enough():
    assert near("c", "w", 10, 10.4, 0.5, "ms").passed
    assert not near("c", "w", 10, 10.6, 0.5, "ms").passed
    assert not near("c", "w", 10, None, 0.5, "ms").passed
    assert at_most("c", "w", 2, 2, "ms").passed
    assert not at_most("c", "w", 2, 2.1, "ms").passed
    assert at_least("c", "w", 0, 0, "ms").passed
    assert not at_least("c", "w", 0, -0.1, "ms").passed
    assert same("c", "w", "a", "a").passed
    assert not same("c", "w", "a", None).passed


words = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)


@given(
    st.lists(st.builds(same, words, words, words, words), max_size=6),
    st.lists(
        st.builds(
            Ceiling,
            what=words,
            value=st.floats(0, 1e7),
            unit=st.just("events/s"),
            note=words.map(lambda t: t[:40]),
        ),
        max_size=3,
    ),
)
def test_the_table_fits_a_terminal_and_the_json_says_the_same(checks, ceilings):
    lines = [line for line in table(checks, ceilings).splitlines() if line.startswith("  ")]
    assert all(len(line) <= 80 for line in lines)
    plain = json.loads(json.dumps(document(checks, ceilings, 1.0)))
    assert plain["passed"] == all(check.passed for check in checks)
    assert (len(plain["checks"]), len(plain["ceilings"])) == (len(checks), len(ceilings))
    assert ("FAIL" in table(checks, ceilings).splitlines()[-1]) == (not plain["passed"])


def test_cases_run_in_their_order_and_one_that_cannot_be_measured_fails(monkeypatch):
    def broken() -> list[Check]:
        raise CannotMeasure("no server\nat all")

    fine = same("tokens", "one", 1, 1)
    monkeypatch.setattr(suite, "_CHECKED", {"schedule": broken, "tokens": lambda: [fine]})
    told = []
    outcome = run_suite(["tokens", "schedule"], told.append)
    assert [check.what for check in outcome.checks] == ["no server", "one"]
    assert not outcome.passed
    assert [line.split(";")[0] for line in told] == ["1/2 a known schedule", "2/2 known tokens"]


def test_all_of_it_is_planned_to_take_less_than_a_minute():
    assert sum(seconds for seconds, _ in CASES.values()) < suite.BUDGET_S < 60


def test_an_unknown_case_is_named(bench: Bench):
    ended = bench("selftest", "--only", "tokens,tea")
    assert ended.returncode == 2
    assert "no case 'tea'; there are schedule, tokens" in ended.stderr


@pytest.mark.alone
def test_some_of_it_as_a_program(bench: Bench):
    ended = bench("selftest", "--only", "schedule,tokens", "--json")
    found = json.loads(ended.stdout)
    assert ended.returncode == 0, found
    assert found["schema"] == "llmbench.selftest/1"
    assert {check["case"].split(":")[0] for check in found["checks"]} == {"known schedule", "known tokens"}
    assert "about" in ended.stderr
    assert not bench.run_folders


def test_an_interrupt_ends_all_of_it(bench: Bench):
    with bench.start("selftest", "--only", "schedule,tokens,times") as running:
        line = running.stderr.readline()
        time.sleep(2.0)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=20)
    assert "1/3" in line
    assert running.returncode == 130
    assert "3/3" not in stderr
    assert stdout == ""


@pytest.mark.slow
@pytest.mark.alone
def test_all_of_it_within_a_minute(bench: Bench):
    ended = bench("selftest", "--json")
    found = json.loads(ended.stdout)
    assert [check for check in found["checks"] if not check["passed"]] == []
    assert ended.returncode == 0
    assert found["took_s"] < 60
    values = {ceiling["what"]: ceiling["value"] for ceiling in found["ceilings"]}
    assert values["events"] > 1_000
    assert values["requests"] > 100
    assert values["streams"] >= 64
