"""A trace: when requests came, how long they were, what of their prompts they shared. Columns, no text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from llmbench.errors import UsageError
from llmbench.workload.lengths import MAX_TOKENS

Ints = npt.NDArray[np.int64]
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixBlocks:
    """Which blocks each prompt is made of, as a prefix cache names them: equal ids, equal prompt up to there.

    Row i has `ids[offsets[i]:offsets[i + 1]]`, each of `tokens` tokens; its last one may be shorter.
    """

    tokens: float
    offsets: Ints
    ids: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, row: int) -> Ints:
        """The ids of one row, in order."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def rows(self, rows: Ints) -> PrefixBlocks:
        """Those of some rows, in the order given."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        places = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return PrefixBlocks(tokens=self.tokens, offsets=offsets, ids=self.ids[places])

    def hit_share(self, input_tokens: Ints) -> float:
        """Share of the prompts' tokens that an endless prefix cache would find, replayed in order."""
        seen: set[int] = set()
        found = 0.0
        for row, length in enumerate(input_tokens.tolist()):
            ids = self.of(row).tolist()
            known = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
            found += min(known * self.tokens, length)
            seen.update(ids)
        total = int(input_tokens.sum())
        return found / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Arrivals and lengths in columns of equal length, sorted by time.

    `offset_ns` counts from the first row of the file, or from the start that `prepared` was told.
    `num_file_rows` is what the file held; `notes` say in words what was left out or changed since.
    `blocks` are there where the file says what prompts share.
    """

    path: str
    offset_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    num_file_rows: int
    blocks: PrefixBlocks | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.offset_ns)

    def prepared(
        self,
        *,
        start_s: float = 0.0,
        input_scale: float = 1.0,
        output_scale: float = 1.0,
        max_input: int | None = None,
        max_output: int | None = None,
    ) -> Trace:
        """The rows from `start_s` (seconds of the trace's own time) on, with lengths scaled, then clipped.

        Offsets count from `start_s` afterwards. Raises UsageError when no row is left.
        """
        first = int(np.searchsorted(self.offset_ns, round(start_s * _NS_PER_S), side="left"))
        if first == len(self):
            length_s = float(self.offset_ns[-1]) / _NS_PER_S
            raise UsageError(f"load.start: {start_s:g}s skips all of {self.path} ({length_s:.1f}s long)")
        notes = [*self.notes, f"{first:,} rows before load.start {start_s:g}s are left out"] if first else []
        inputs, input_note = _rescaled(self.input_tokens[first:], input_scale, max_input, "input")
        outputs, output_note = _rescaled(self.output_tokens[first:], output_scale, max_output, "output")
        blocks = self.blocks
        if blocks is not None:
            blocks = blocks.rows(np.arange(first, len(self)))
            blocks = replace(blocks, tokens=blocks.tokens * input_scale)
        return replace(
            self,
            offset_ns=self.offset_ns[first:] - round(start_s * _NS_PER_S),
            input_tokens=inputs,
            output_tokens=outputs,
            blocks=blocks,
            notes=(*(notes or self.notes), *input_note, *output_note),
        )


def _rescaled(tokens: Ints, scale: float, most: int | None, what: str) -> tuple[Ints, list[str]]:
    scaled = np.clip(np.rint(tokens * scale), 1, MAX_TOKENS).astype(np.int64)
    notes = [f"{what} lengths scaled by {scale:g}"] if scale != 1 else []
    if most is not None and (num_cut := int(np.count_nonzero(scaled > most))):
        scaled = np.minimum(scaled, most)
        notes.append(f"{num_cut:,} {what} lengths cut to {most:,}")
    return scaled, notes
