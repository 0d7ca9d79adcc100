"""How many tokens, and how they lie over the events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.client.answer import Answer
from llmbench.client.usage import read_usage, says_each, share_tokens


@pytest.mark.parametrize(
    ("total", "sizes", "counts", "tokens"),
    [
        (3, [5, 1, 1], [], [1, 1, 1]),  # as many as events: one each, whatever their lengths
        (9, [1, 1, 1], [1, 4, 9], [1, 3, 5]),  # each said its own
        (9, [1, 1, 1], [1, 4, 8], [3, 3, 3]),  # what they said does not add up
        (9, [1, 1, 1], [4, 4, 9], [3, 3, 3]),  # an event without a token of its own: not believed
        (6, [3, 0, 1], [], [3, 1, 2]),  # one each, the other three by length
        (5, [0, 0], [], [3, 2]),  # no length to go by
        (2, [1, 1, 1], [], [1, 1, 1]),  # fewer tokens than events: a character lay over several
        (0, [1], [], [1]),
        (0, [], [], []),
    ],
)
def test_tokens_are_shared_out(total, sizes, counts, tokens):
    assert share_tokens(total, sizes, counts) == tokens


@given(
    st.integers(0, 2000), st.lists(st.integers(0, 50), min_size=1, max_size=40), st.lists(st.integers(0, 99))
)
def test_no_token_is_lost_or_made_up_and_no_event_has_none(total, sizes, counts):
    tokens = share_tokens(total, sizes, counts)
    assert len(tokens) == len(sizes)
    assert min(tokens) >= 1
    assert sum(tokens) == max(total, len(sizes))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_what_every_event_says_is_believed_to_the_token(tokens):
    counts = [sum(tokens[: n + 1]) for n in range(len(tokens))]
    assert says_each(counts, len(tokens), sum(tokens))
    assert share_tokens(sum(tokens), [1] * len(tokens), counts) == tokens


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 5}, (7, 5, None, None)),
        ({"input_tokens": 7, "output_tokens": 5}, (7, 5, None, None)),
        (
            {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0},
             "completion_tokens_details": {"reasoning_tokens": 3}},
            (7, 5, 0, 3),
        ),
        ({"prompt_tokens": 7, "prompt_tokens_details": None}, (7, None, None, None)),
        ({"prompt_tokens": True, "completion_tokens": -1}, (None, None, None, None)),
        ({"prompt_tokens": "7", "completion_tokens": 2**31}, (None, None, None, None)),
        ({"prompt_tokens_details": [1], "completion_tokens_details": "x"}, (None, None, None, None)),
        (None, (None, None, None, None)),
        ([7, 5], (None, None, None, None)),
    ],
)  # fmt: skip
def test_absent_or_absurd_is_none_never_zero(usage, expected):
    answer = Answer()
    read_usage(answer, usage)
    counted = (answer.input_tokens, answer.output_tokens, answer.cached_tokens, answer.reasoning_tokens)
    assert counted == expected
