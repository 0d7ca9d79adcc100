"""The load of the comparison: distinct prompts of an exact length, sent at once; what an answer to it is.

Definitions, the same for every engine:

    prefill   all prompt tokens / seconds from the first sending to the last answer's first token
    decode    output tokens after that instant / seconds from it to the end
    TTFT, TPOT   llmbench's own medians over the requests

Tokens that come while others' prompts are still computed count in neither rate, and as answers of a burst
end together, the batch is full nearly all of the decode time.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmbench.columns import RequestColumns
from llmbench.parquet import read_requests

MEASURED = (0, 97)  # exit codes of `llmbench run`; 97 is told as the verdict INVALID
TIMEOUT = "900s"


@dataclass(frozen=True, slots=True)
class Prompt:
    """The same as text and as token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How a load was answered."""

    prefill_per_s: float
    decode_per_s: float
    ttft_s: float
    tpot_s: float
    wall_s: float
    verdict: str | None = None


class Prompts:
    """Random words, each of them one token with the space before it. None is given out twice."""

    def __init__(self, folder: Path, seed: int) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words = (word for word in self._tokenizer.get_vocab() if re.fullmatch("Ġ[a-z]{3,}", word))
        self._words = sorted(word.replace("Ġ", " ") for word in words)
        self._random = random.Random(seed)

    def take(self, count: int, num_tokens: int) -> list[Prompt]:
        """Prompts of exactly so many tokens."""
        found: list[Prompt] = []
        while len(found) < count:
            text = "".join(self._random.choices(self._words, k=num_tokens))
            token_ids = self._tokenizer.encode(text).ids
            if len(token_ids) == num_tokens:
                found.append(Prompt(text, token_ids))
        return found


def send(url: str, prompts: list[Prompt], num_output: int) -> Answered:
    """All of them at once, through `llmbench run`."""
    scenario = {
        "name": "engines",
        "target": {
            "url": url,
            "api": "completions",
            "ignore_eos": True,
            "body": {"temperature": 0},
            "timeout": TIMEOUT,
            "no_progress_timeout": TIMEOUT,
        },
        "load": {"arrivals": "closed", "concurrency": len(prompts), "requests": len(prompts)},
        "workload": {
            "kind": "inline",
            "prompts": [prompt.text for prompt in prompts],
            "output_tokens": num_output,
        },
        "server_metrics": False,
        "instrument": {"workers": 1},
    }
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "engines.yaml"
        file.write_text(json.dumps(scenario), encoding="utf-8")
        command = [sys.executable, "-m", "llmbench", "run", str(file), "--out", scratch, "--json", "--quiet"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        if done.returncode not in MEASURED:
            raise SystemExit(f"llmbench ended with {done.returncode} against {url}\n{done.stderr}")
        (results,) = Path(scratch).glob("*/requests.parquet")
        return answered(read_requests(results), json.loads(done.stdout), prompts, num_output)


def answered(
    columns: RequestColumns, summary: dict[str, Any], prompts: list[Prompt], num_output: int
) -> Answered:
    """The figures of a run; ends the program where the server counted or answered something else."""
    integers = columns.integers
    asked = {"input_tokens": len(prompts[0].token_ids), "output_tokens": num_output}
    for name, count in asked.items():
        if (found := set(integers[name].values.tolist())) != {count}:
            raise SystemExit(f"{name} were to be {count} of each request, and were {sorted(found)}")
    begin = int(integers["sent_ns"].values.min())
    first = int(integers["first_event_ns"].values.max())
    end = int(integers["end_ns"].values.max())
    later = sum(_tokens_after(columns, row, first, num_output) for row in range(columns.num_rows))
    metrics = summary["metrics"]
    return Answered(
        prefill_per_s=sum(len(prompt.token_ids) for prompt in prompts) / (first - begin) * 1e9,
        decode_per_s=later / (end - first) * 1e9,
        ttft_s=metrics["ttft"]["p50"],
        tpot_s=metrics["tpot"]["p50"],
        wall_s=(end - begin) / 1e9,
        verdict=summary["verdict"]["status"],
    )


def _tokens_after(columns: RequestColumns, row: int, instant: int, num_output: int) -> float:
    """Tokens of an answer that came later. Where events do not tell how many they hold, all hold alike."""
    span = slice(columns.event_offsets[row], columns.event_offsets[row + 1])
    is_later = columns.event_ns[span] > instant
    if columns.has_event_tokens[row]:
        return float(columns.event_tokens[span][is_later].sum())
    return num_output * float(np.mean(is_later))
