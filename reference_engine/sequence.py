"""The one mutable state of a request while it is alive, owned by the scheduler.

Of its `token_ids`, the first `num_computed` have keys and values in the cache; the rest, a whole prompt
or the one token sampled last, is what the next step computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reference_engine.types import GenerationRequest


@dataclass(slots=True)
class Sequence:
    """Prompt and output tokens, how many of them are in the KV cache, and where."""

    request: GenerationRequest
    token_ids: list[int] = field(init=False)
    num_computed: int = 0
    slot: int | None = None  # None while waiting

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens so far."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    def check_integrity(self) -> None:
        """Assert what must hold between steps."""
        assert 0 <= self.num_computed < len(self.token_ids)
        assert (self.slot is None) == (self.num_computed == 0)
        assert self.slot is None or self.num_computed == len(self.token_ids) - 1
