"""Where a step of the reference engine goes: SmolLM2-135M, by part, without a server.

    python -m tests.benchmarks.engines_profile [--streams 1,16,32] [--prompt 128] [--output 64]
        [--threads 1]

The parts are timed by wrapping their functions; each has its own time only, without that of the parts in
it. The clock costs about half a microsecond a call. Medians over decoding steps with all streams running,
and over the steps that computed prompts.

Where others use the cores too, threads wait for each other and everything that has several looks large. With
`--threads 1` the clock is that thread's own CPU time, which company changes little: halve what runs on two
threads (linear, attention; the small operations do not) to see what it would be on two cores of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tests.benchmarks.engines_load import Prompts

MODEL = "smollm2-135m"
QUIET_SPIN = "20000"  # as the server sets it


class Stopwatch:
    """Seconds of each part, without those of the parts that it called."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: Counter[str] = Counter()
        self._clock = clock
        self._stack: list[float] = []  # for each part that runs: seconds of what it called

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Time a function wherever it is called as `owner.name`."""
        setattr(owner, name, self.timed(getattr(owner, name), part))

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        clock, stack, seconds = self._clock, self._stack, self.seconds

        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            stack.append(0.0)
            begun = clock()
            try:
                return function(*args, **kwargs)
            finally:
                taken = clock() - begun
                seconds[part] += taken - stack.pop()
                if stack:
                    stack[-1] += taken

        return inner

    def read(self) -> Counter[str]:
        """Since the last time."""
        found = Counter(self.seconds)
        self.seconds.clear()
        return found


def watched_engine(folder: Path, watch: Stopwatch, threads: int | None) -> Any:
    """The engine with its defaults, its parts timed."""
    from reference_engine import attention, engine, kv_cache, model, packing, rope, runner, scheduler
    from reference_engine.config import EngineConfig, Switches
    from reference_engine.model_config import ModelConfig

    for owner, name, part in (
        (model.RMSNorm, "forward", "norm"),
        (rope, "rotate", "rope"),
        (rope, "tables", "rope"),
        (kv_cache.KVCache, "write", "cache write"),
        (attention.FastAttention, "__init__", "attention, planning"),
        (attention.FastAttention, "__call__", "attention"),
        (packing.PackedLinear, "forward", "linear"),
        (model.Decoder, "logits", "linear"),
        (model.Layer, "forward", "rest of a layer"),
        (model.Decoder, "forward", "rest of the model"),
        (runner, "sample", "sampling"),
        (runner.Runner, "run", "runner"),
        (scheduler.Scheduler, "schedule", "scheduler"),
        (scheduler.Scheduler, "commit", "scheduler"),
        (engine, "_show", "text"),
        (engine.Engine, "step", "rest of a step"),
    ):
        watch.wrap(owner, name, part)
    config = EngineConfig.resolve(ModelConfig.from_folder(folder), Switches(num_threads=threads))
    return engine.Engine.load(folder, config)


def profiled(
    engine: Any, watch: Stopwatch, prompts: Prompts, streams: int, args: Any
) -> dict[str, list[Any]]:
    """The parts of each step: those that decode for all streams, and those that compute prompts."""
    from reference_engine.types import GenerationRequest, SamplingParams

    sampling = SamplingParams(max_tokens=args.output, ignore_eos=True)
    for number, prompt in enumerate(prompts.take(streams, args.prompt)):
        ids = tuple(prompt.token_ids)
        engine.add(
            GenerationRequest(request_id=f"{streams}/{number}", prompt_token_ids=ids, sampling=sampling)
        )
    steps: dict[str, list[Any]] = {"prompts": [], "decode": []}
    first: set[str] = set()
    watch.read()
    while engine.has_work:
        events = engine.step()
        parts = watch.read()
        if len(first) < streams:
            steps["prompts"].append(parts)
        elif len(events) == streams:
            steps["decode"].append(parts)
        first |= {event.request_id for event in events}
    return steps


def lines_of(kind: str, steps: list[Counter[str]], width: int = 22) -> list[str]:
    """Milliseconds and shares of the parts, the largest first."""
    if not steps:
        return []
    parts = {part: statistics.median(step[part] for step in steps) for part in set().union(*steps)}
    total = sum(parts.values())
    lines = [f"  {kind}: {len(steps)} steps, {total * 1e3:.1f} ms each (sum of the parts' medians)"]
    for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        lines.append(f"    {part:<{width}}{seconds * 1e3:>9.2f} ms{seconds / total:>8.1%}")
    return lines


def main() -> None:
    """Prints a table for each number of streams."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", default="1,16,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", QUIET_SPIN)  # read when torch is imported, by the next lines
    from reference_engine.catalog import model_folder

    folder = model_folder(MODEL)
    watch = Stopwatch(time.thread_time if args.threads == 1 else time.perf_counter)
    engine, prompts = watched_engine(folder, watch, args.threads), Prompts(folder, seed=1)
    for streams in map(int, args.streams.split(",")):
        steps = profiled(engine, watch, prompts, streams, args)
        lines = [f"{streams} streams"]
        for kind, found in steps.items():
            lines += lines_of(kind, found)
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
