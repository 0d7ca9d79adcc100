"""The worker of the comparison: `generate` of transformers, float32 and SDPA, asked by lines of JSON.

    python -m tests.benchmarks.engines_transformers FOLDER

Says {"ready": true}, then answers each {"prompts": [[id, ...], ...], "output": N} with the seconds that
one token and N tokens took it: {"prefill_s": ..., "whole_s": ...}. All prompts are one batch, as long as
each other; greedy, and no end token ends anything.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def load(folder: str) -> Any:
    """The model, with its greedy and endless settings."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def generate_s(model: Any, prompts: list[list[int]], num_tokens: int) -> float:
    """Seconds for so many tokens of each."""
    import torch

    token_ids = torch.tensor(prompts)
    start = time.perf_counter()
    with torch.inference_mode():
        made = model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            max_new_tokens=num_tokens,
        )
    taken = time.perf_counter() - start
    assert made.shape[1] == token_ids.shape[1] + num_tokens, "generate ended early"
    return taken


def main() -> None:
    """Answers until its input ends."""
    model = load(sys.argv[1])
    sys.stdout.write('{"ready": true}\n')
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        prefill_s = generate_s(model, asked["prompts"], 1)
        answer = {"prefill_s": prefill_s, "whole_s": generate_s(model, asked["prompts"], asked["output"])}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
