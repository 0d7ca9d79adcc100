"""The same records under another tool's formulas, in that tool's JSON shape.

Two tools that disagree about one run often measured the same and defined it otherwise. A run keeps every
instant, so that each of their figures can be computed from it. What the records cannot tell: chunks without
output in the midst of a stream, which vLLM counts as a gap each, and the tokens that another tokenizer would
count; where the server says no usage, tools that count by themselves will differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llmbench.columns import RequestColumns
from llmbench.context import RunContext
from llmbench.definitions.aiperf import aiperf
from llmbench.definitions.guidellm import guidellm
from llmbench.definitions.inference_perf import inference_perf
from llmbench.definitions.view import View
from llmbench.definitions.vllm import sglang, vllm

TOOLS: Final[dict[str, Callable[[View], dict[str, Any]]]] = {
    "vllm": vllm,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "inference-perf": inference_perf,
    "sglang": sglang,
}


def recompute(columns: RequestColumns, context: RunContext, tool: str) -> dict[str, Any]:
    """The run's document as `tool`, one of `TOOLS`, would have written it."""
    return TOOLS[tool](View.of(columns, context))
