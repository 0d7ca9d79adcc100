"""`/metrics`: Prometheus' text format, with the names that vLLM has, under `reference_engine:`.

Observing costs one bisection: a token's share of it is paid by every stream. Only a scrape makes
Prometheus' objects of it. Called on the event loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from reference_engine.types import EngineStats, TokenEvent

PREFIX = "reference_engine:"
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75)
_SLOW = (1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 240.0, 480.0, 960.0)
SECONDS = (*_FAST, *_SLOW)
STEP_TOKENS = tuple(float(2**exponent) for exponent in range(15))


class Histogram:
    """Counts of values up to each bound (inclusive), and of those above the last."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, about: str, model_name: str) -> Metric:
        """As Prometheus wants it: cumulative."""
        family = HistogramMetricFamily(PREFIX + name, about, labels=["model_name"])
        labels = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        buckets = list(zip(labels, map(float, accumulate(self._counts)), strict=True))
        family.add_metric([model_name], buckets, self._sum)
        return family


class Metrics(Collector):
    """What the server observes itself, and the engine's own totals at the time of a scrape."""

    def __init__(self, model_name: str, *, max_model_len: int, stats: Callable[[], EngineStats]) -> None:
        self._model_name = model_name
        self._stats = stats
        self._counted = EngineStats()
        self._ends: Counter[str] = Counter(stop=0, length=0, abort=0)
        lengths = [float(b) for b in _one_two_five(max_model_len)]
        self._first = Histogram(SECONDS)
        self._between = Histogram(SECONDS)
        self._whole = Histogram(SECONDS)
        self._queue = Histogram(SECONDS)
        self._prefill = Histogram(SECONDS)
        self._decode = Histogram(SECONDS)
        self._prompt = Histogram(lengths)
        self._output = Histogram(lengths)
        self._step = Histogram(STEP_TOKENS)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def on_step(self, stats: EngineStats) -> None:
        """A step that gave tokens. As in vLLM, a prompt counts in the step that completes it."""
        old, self._counted = self._counted, stats
        prompt = stats.num_prompt_tokens - old.num_prompt_tokens
        self._step.observe(prompt + stats.num_generation_tokens - old.num_generation_tokens)

    def on_token(self, wait_s: float, event: TokenEvent) -> None:
        """A token, `wait_s` after the one before it, or after its request came."""
        (self._between if event.num_output_tokens > 1 else self._first).observe(wait_s)

    def on_end(self, whole_s: float, num_prompt_tokens: int, last: TokenEvent) -> None:
        """A request that ended by itself."""
        self._ends[last.finish_reason or "stop"] += 1
        self._whole.observe(whole_s)
        self._prompt.observe(num_prompt_tokens)
        self._output.observe(last.num_output_tokens)
        if last.timings is not None:
            self._queue.observe(last.timings.queue_s)
            self._prefill.observe(last.timings.prefill_s)
            self._decode.observe(last.timings.decode_s)

    def on_abort(self, num_requests: int) -> None:
        """Requests whose client left."""
        self._ends["abort"] += num_requests

    def render(self) -> bytes:
        """The text of `GET /metrics`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield from self._of_engine(self._stats())
        ends = CounterMetricFamily(
            f"{PREFIX}request_success", "requests that ended", labels=["model_name", "finished_reason"]
        )
        for reason, count in self._ends.items():
            ends.add_metric([self._model_name, reason], count)
        yield ends
        for histogram, name, about in (
            (self._first, "time_to_first_token_seconds", "from a request's arrival to its first token"),
            (self._between, "inter_token_latency_seconds", "between two tokens of a sequence"),
            (self._whole, "e2e_request_latency_seconds", "from a request's arrival to its last token"),
            (self._queue, "request_queue_time_seconds", "until the first step that computed any of it"),
            (self._prefill, "request_prefill_time_seconds", "from there to the first token"),
            (self._decode, "request_decode_time_seconds", "from the first token to the last"),
            (self._prompt, "request_prompt_tokens", "prompt tokens of a request"),
            (self._output, "request_generation_tokens", "generated tokens of a request"),
            (self._step, "iteration_tokens_total", "tokens of a step"),
        ):
            yield histogram.family(name, about, self._model_name)

    def _of_engine(self, stats: EngineStats) -> Iterator[Metric]:
        for value, name, about in (
            (stats.num_running, "num_requests_running", "sequences being computed"),
            (stats.num_waiting, "num_requests_waiting", "sequences that wait for a place"),
            (stats.kv_cache_usage, "kv_cache_usage_perc", "share of the KV cache in use; 1 is all of it"),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, about, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge
        for value, name, about in (
            (stats.num_preemptions, "num_preemptions", "sequences put off, to be computed again"),
            (stats.prefix_cache_queries, "prefix_cache_queries", "prompt tokens looked up"),
            (stats.prefix_cache_hits, "prefix_cache_hits", "prompt tokens found"),
            (stats.num_prompt_tokens, "prompt_tokens", "prompt tokens, computed or found"),
            (stats.num_generation_tokens, "generation_tokens", "generated tokens"),
        ):
            counter = CounterMetricFamily(PREFIX + name, about, labels=["model_name"])
            counter.add_metric([self._model_name], value)
            yield counter


def _one_two_five(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `largest`, as vLLM's length buckets are."""
    bounds = [factor * 10**power for power in range(10) for factor in (1, 2, 5)]
    return [bound for bound in bounds if bound <= largest]
