from __future__ import annotations

import numpy as np
import pytest

from llmbench.columns import from_records
from llmbench.gaps import MIN_STREAMS, itl_intervals, measure_gaps
from llmbench.stats import percentile_ranks
from tests.llmbench.sample_runs import ok_record

NUM_STREAMS, NUM_GAPS, NUM_RUNS = 60, 40, 200


def run_of_uneven_streams(chance, num_streams=NUM_STREAMS):
    """Streams that differ from each other more than the gaps within one do."""
    speeds = chance.normal(20e6, 3e6, num_streams)
    gaps = chance.normal(speeds[:, None], 1e6, (num_streams, NUM_GAPS)).astype(np.int64)
    events = np.cumsum(np.insert(gaps, 0, 0, axis=1), axis=1)
    return from_records(ok_record(index, events=row.tolist()) for index, row in enumerate(events))


def everything(columns):
    return np.ones(columns.num_rows, dtype=np.bool_)


def pooled(columns):
    return measure_gaps(columns, everything(columns), token_limit_s=None, stall_limit_s=0.5).itl


@pytest.mark.parametrize("percent", [50, 90])
def test_intervals_hold_the_true_percentile_as_often_as_they_say(percent):
    """Streams are the unit; intervals for independent gaps would miss most of the time."""
    chance = np.random.default_rng(11)
    truth = np.percentile(chance.normal(20e6, np.hypot(3e6, 1e6), 1_000_000), percent)
    held = naive_held = 0
    for _ in range(NUM_RUNS):
        columns = run_of_uneven_streams(chance)
        itl = pooled(columns)
        ((low, high),) = itl_intervals(columns, everything(columns), itl, [percent])
        held += low <= truth <= high
        ranks = percentile_ranks(itl.count, percent)
        naive_held += itl.at(ranks[0]) <= truth <= itl.at(ranks[1])
    assert 0.90 <= held / NUM_RUNS <= 0.99
    assert naive_held / NUM_RUNS < 0.5


def test_too_few_streams_have_no_interval():
    columns = run_of_uneven_streams(np.random.default_rng(1), MIN_STREAMS - 1)
    assert itl_intervals(columns, everything(columns), pooled(columns), [50, 95]) == [None, None]


def test_an_interval_that_would_leave_the_sample_is_none():
    columns = run_of_uneven_streams(np.random.default_rng(1))
    ends = itl_intervals(columns, everything(columns), pooled(columns), [50, 99.99])
    assert ends[0] is not None
    assert ends[1] is None


def test_only_the_chosen_rows_count():
    columns = run_of_uneven_streams(np.random.default_rng(1))
    rows = everything(columns)
    rows[::2] = False
    gaps = measure_gaps(columns, rows, token_limit_s=0.02, stall_limit_s=0.5)
    assert gaps.chunk_gap.count == NUM_STREAMS // 2 * NUM_GAPS
    assert gaps.num_tokens == NUM_STREAMS // 2 * (NUM_GAPS + 1)
    assert (gaps.longest_ns > 0).tolist() == rows.tolist()
