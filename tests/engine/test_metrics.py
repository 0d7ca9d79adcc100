"""`/metrics` is what Prometheus reads, and says what happened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from reference_engine.metrics import Histogram, Metrics
from reference_engine.types import EngineStats, RequestTimings, TokenEvent

VLLM_NAMES = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_sum",
    "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket",
    "iteration_tokens_total_bucket",
}


def samples(metrics, **labels):
    """Each sample with these labels by its name without the prefix; label values appended."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "tiny"
            if labels.items() <= sample.labels.items():
                found[sample.name.removeprefix("reference_engine:")] = sample.value
    return found


def event(num_output_tokens, reason=None):
    timings = RequestTimings(queue_s=0.5, prefill_s=0.25, decode_s=2.0)
    return TokenEvent(
        request_id="a", token_id=5, text="x", num_output_tokens=num_output_tokens,
        finish_reason=reason, timings=timings if reason else None,
    )  # fmt: skip


@pytest.fixture
def metrics():
    stats = EngineStats(
        num_running=3, num_waiting=2, kv_cache_usage=0.25, num_preemptions=4, num_prompt_tokens=70,
        num_generation_tokens=9, prefix_cache_queries=80, prefix_cache_hits=64,
    )  # fmt: skip
    return Metrics("tiny", max_model_len=2048, stats=lambda: stats)


def test_the_names_are_vllms(metrics):
    assert set(samples(metrics)) >= VLLM_NAMES


def test_totals_are_the_engines(metrics):
    found = samples(metrics)
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (3, 2)
    assert (found["kv_cache_usage_perc"], found["num_preemptions_total"]) == (0.25, 4)
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (70, 9)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (80, 64)


def test_requests_are_counted_by_how_they_ended_and_timed(metrics):
    for wait_s, one in ((0.75, event(1)), (0.02, event(2)), (1.98, event(3, "length"))):
        metrics.on_token(wait_s, one)
    metrics.on_end(2.75, 40, event(3, "length"))
    metrics.on_abort(2)
    for reason, count in (("length", 1), ("abort", 2), ("stop", 0)):
        assert samples(metrics, finished_reason=reason)["request_success_total"] == count
    found = samples(metrics)
    assert found["time_to_first_token_seconds_sum"] == 0.75
    assert (found["inter_token_latency_seconds_count"], found["inter_token_latency_seconds_sum"]) == (2, 2.0)
    parts = ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds")
    assert sum(found[f"{part}_sum"] for part in parts) == found["e2e_request_latency_seconds_sum"] == 2.75
    assert (found["request_prompt_tokens_sum"], found["request_generation_tokens_sum"]) == (40, 3)


def test_steps_are_measured_by_what_they_added(metrics):
    metrics.on_step(EngineStats(num_prompt_tokens=50, num_generation_tokens=2))
    metrics.on_step(EngineStats(num_prompt_tokens=50, num_generation_tokens=6))
    found = samples(metrics)
    assert (found["iteration_tokens_total_count"], found["iteration_tokens_total_sum"]) == (2, 56)


@given(st.lists(st.floats(0, 100) | st.sampled_from([1.0, 2.0, 5.0]), max_size=30))
def test_buckets_are_cumulative_and_inclusive(values):
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in values:
        histogram.observe(value)
    family = histogram.family("x", "about", "tiny")
    counts = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    for bound in ("1", "2", "5", "+Inf"):
        assert counts[bound] == sum(value <= float(bound) for value in values)
    assert {s.name.rpartition("_")[2]: s.value for s in family.samples}["sum"] == pytest.approx(sum(values))
