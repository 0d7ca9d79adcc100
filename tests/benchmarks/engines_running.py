"""The engines that are compared: how each is started, what it reads in a step, and how it is asked."""

from __future__ import annotations

import json
import math
import os
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reference_engine.gguf import GgufFile
from tests.benchmarks.engines_load import Answered, Prompt, send
from tests.benchmarks.engines_process import Program
from tests.benchmarks.engines_roofline import Weights

MODEL = "smollm2-135m"
ROOM = 64  # positions of a slot beyond prompt and output
LLAMACPP = Path(__file__).parents[1] / "e2e" / "llamacpp_server.py"
Q8_BYTES, Q8_WEIGHTS = 34, 32  # a block of Q8_0
READY_S = {"ours": 120.0, "llamacpp": 120.0, "transformers": 120.0, "vllm": 900.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every engine is started for."""

    folder: Path  # the model in Hugging Face's layout
    q8: Path | None
    vllm_python: Path | None
    scratch: Path
    most_streams: int
    num_prompt: int
    num_output: int

    @property
    def context(self) -> int:
        """Positions that a sequence needs."""
        return self.num_prompt + self.num_output + ROOM


class Launch(Protocol):
    """Starts a command in a session of its own, and sees to it that it is ended."""

    def __call__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, talks: bool = False
    ) -> Program: ...


class Engine(Protocol):
    """A running engine."""

    program: Program
    weights: Weights

    def wake(self) -> None:
        """Let it go and see that it answers."""

    def measure(self, prompts: list[Prompt], num_output: int) -> Answered:
        """All prompts at once."""


class Served:
    """An engine behind OpenAI's API."""

    def __init__(self, program: Program, weights: Weights, url: str) -> None:
        self.program, self.weights, self.url = program, weights, url
        self._model: str | None = None

    def wake(self) -> None:
        """A short completion."""
        self.program.let_go()
        if self._model is None:
            self._model = _fetch(f"{self.url}/v1/models", None)["data"][0]["id"]
        body = {"model": self._model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
        _fetch(f"{self.url}/v1/completions", body)

    def measure(self, prompts: list[Prompt], num_output: int) -> Answered:
        """Through HTTP."""
        return send(self.url, prompts, num_output)


class Generate:
    """transformers' `generate`, without a server. There is one batch, so that all get their first token
    at the same time, which is that of a `generate` of one token.
    """

    def __init__(self, program: Program, weights: Weights) -> None:
        self.program, self.weights = program, weights
        self._read()

    def wake(self) -> None:
        """A few tokens."""
        self.program.let_go()
        self._ask([[1, 2, 3, 4]], 2)

    def measure(self, prompts: list[Prompt], num_output: int) -> Answered:
        """By lines of JSON."""
        taken = self._ask([prompt.token_ids for prompt in prompts], num_output)
        prefill_s, decode_s = taken["prefill_s"], taken["whole_s"] - taken["prefill_s"]
        return Answered(
            prefill_per_s=sum(len(prompt.token_ids) for prompt in prompts) / prefill_s,
            decode_per_s=len(prompts) * (num_output - 1) / decode_s,
            ttft_s=prefill_s,
            tpot_s=decode_s / (num_output - 1),
            wall_s=taken["whole_s"],
        )

    def _ask(self, token_ids: list[list[int]], num_output: int) -> dict[str, float]:
        asked = self.program.process.stdin
        assert asked is not None
        asked.write(json.dumps({"prompts": token_ids, "output": num_output}) + "\n")
        asked.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        answers = self.program.process.stdout
        assert answers is not None
        if line := answers.readline():
            found: dict[str, float] = json.loads(line)
            return found
        raise SystemExit(f"{self.program.process.args} ended\n{self.program.last_lines()}")


def _fetch(url: str, body: dict[str, Any] | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


# ----------------------------------------------------------------------------------------------- starts


def start_ours(flags: list[str], setting: Setting, launch: Launch) -> Engine:
    """The reference engine with its defaults, and `flags`."""
    command = [sys.executable, "-m", "reference_engine", "--model", MODEL, "--port", "0", *flags]
    program = launch(command)
    url = program.wait_for(r"http://[\d.:]+", READY_S["ours"])
    return Served(program, float32_weights(setting.folder), url)


def start_llamacpp(flags: list[str], setting: Setting, launch: Launch) -> Engine:
    """llama.cpp's own server on the Q8_0 file; `flags` are those of tests/e2e/llamacpp_server.py."""
    assert setting.q8 is not None
    size = ["--slots", str(setting.most_streams), "--context", str(setting.context)]
    command = [sys.executable, str(LLAMACPP), str(setting.q8), *size, *flags]
    program = launch(command)
    url = program.wait_for(r"ready at http://\S+", READY_S["llamacpp"]).split()[-1]
    return Served(program, q8_weights(setting.q8), url)


def start_transformers(flags: list[str], setting: Setting, launch: Launch) -> Engine:
    """The worker beside this module."""
    command = [sys.executable, "-m", "tests.benchmarks.engines_transformers", str(setting.folder), *flags]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    program = launch(command, env=offline, talks=True)
    return Generate(program, float32_weights(setting.folder))


def start_vllm(flags: list[str], setting: Setting, launch: Launch) -> Engine:
    """`vllm serve` on the CPU, float32, 2 GiB of keys and values."""
    assert setting.vllm_python is not None
    port = _free_port()
    command = [
        *(str(setting.vllm_python.with_name("vllm")), "serve", str(for_vllm(setting))),
        *("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", str(max(2048, setting.context))),
        *("--max-num-seqs", str(setting.most_streams), *flags),
    ]
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PATH": f"{setting.vllm_python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    program = launch(command, env=env)
    url = f"http://127.0.0.1:{port}"
    _wait_for_health(program, url, READY_S["vllm"])
    return Served(program, float32_weights(setting.folder), url)


STARTS: dict[str, Callable[[list[str], Setting, Launch], Engine]] = {
    "ours": start_ours,
    "llamacpp": start_llamacpp,
    "transformers": start_transformers,
    "vllm": start_vllm,
}


def start(name: str, setting: Setting, launch: Launch) -> Engine:
    """`ours --kv-cache contiguous` is ours with these switches."""
    kind, *flags = shlex.split(name)
    return STARTS[kind](flags, setting, launch)


def for_vllm(setting: Setting) -> Path:
    """The model's folder again, where it is said that tokenizer.json is all there is to know.

    It stays, because vLLM keeps what it compiled for a path.
    """
    folder = setting.folder.with_name(f"{setting.folder.name}-for-vllm")
    folder.mkdir(exist_ok=True)
    for file in setting.folder.iterdir():
        link = folder / file.name
        if file.name != "tokenizer_config.json" and not link.exists():
            link.symlink_to(file)
    config = json.loads((setting.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for_health(program: Program, url: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and program.process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise SystemExit(f"{url}: not ready after {timeout_s:.0f} s\n{program.last_lines()}")


# ---------------------------------------------------------------------------------------------- weights


def float32_weights(folder: Path) -> Weights:
    """All tensors of a checkpoint, in float32. A tied head is the embedding, and read whole in each step."""
    from safetensors import safe_open

    sizes: dict[str, int] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "np") as tensors:
            sizes |= {name: math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    total = sum(sizes.values())
    head = sizes["model.embed_tokens.weight"]
    return Weights(4 * total, total - head, head, is_float32=True)


def q8_weights(file: Path) -> Weights:
    """Matrices in Q8_0, vectors in float32."""
    shapes = {name: entry.shape for name, entry in GgufFile(file).tensors.items()}
    matrices = sum(math.prod(shape) for shape in shapes.values() if len(shape) > 1)
    vectors = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 1)
    head = math.prod(shapes["token_embd.weight"])
    num_bytes = matrices * Q8_BYTES // Q8_WEIGHTS + 4 * vectors
    return Weights(num_bytes, matrices + vectors - head, head, is_float32=False)
