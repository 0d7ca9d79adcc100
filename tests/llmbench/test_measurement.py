"""One prompt measured: the contract's definitions on one record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmbench
from llmbench.measurement import result_of
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


def test_every_public_name_is_there_and_no_other():
    for name in llmbench.__all__:
        assert getattr(llmbench, name) is not None
    assert set(llmbench.__all__) <= set(dir(llmbench))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = llmbench.nothing
