"""The one mutable state of a request while it is alive, owned by the scheduler.

    token_ids:  prompt ............. | output so far ....
                computed (in the KV cache) | to be computed

The last token is never computed: it was sampled last, or it is the prompt's end, from which the next
one is sampled. A preempted sequence has nothing computed and recomputes its output like a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reference_engine.types import GenerationRequest


@dataclass(slots=True)
class Sequence:
    """Prompt and output tokens, how many of them are computed, and the blocks that hold them."""

    request: GenerationRequest
    arrival: int  # counts up; with the priority it is the order in which sequences are served
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # of the full blocks of `token_ids`, as far as known
    num_cached_tokens: int | None = None  # found in the prefix cache at first admission; None before
    last_step: int = -1  # when it was computed last

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def order(self) -> tuple[int, int]:
        """Who is before whom: for admission; the last of the running is preempted first."""
        return self.request.priority, self.arrival

    @property
    def num_prompt_tokens(self) -> int:
        """As they came."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_to_compute(self) -> int:
        """At least 1; exactly 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def max_length(self) -> int:
        """Tokens it can come to."""
        return self.num_prompt_tokens + self.request.sampling.max_tokens
