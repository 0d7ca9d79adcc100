"""The blocks of the KV cache as numbers: who holds which, what each contains, which one to give out next.

Paged attention (Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention") keeps keys and values in blocks of `block_size` positions, and every sequence has a block
table. A block is in one of three states:

    held          by one or more sequences: its reference count says how many
    free          nobody holds it and nothing in it is of use
    free, cached  nobody holds it, but its contents are known by a digest: a later prompt may take it as
                  it is, until it is needed for something else (least recently used first)

Plain Python, no tensors: the tensors with the same numbers are in `kv_cache`.
"""

from __future__ import annotations

import hashlib
import heapq
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence


def digest_of(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Names a full block by all tokens up to its end: `parent` is the digest of the block before.

    A cryptographic hash, because a collision would give one user another's context.
    """
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


def extend_digests(digests: list[bytes], token_ids: Sequence[int], block_size: int) -> None:
    """Append the digests of the blocks that `token_ids` fill and that `digests` lacks."""
    for end in range((len(digests) + 1) * block_size, len(token_ids) + 1, block_size):
        parent = digests[-1] if digests else b""
        digests.append(digest_of(parent, token_ids[end - block_size : end]))


class BlockPool:
    """`num_blocks` blocks of `block_size` positions."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._num_holders = [0] * num_blocks
        self._digests: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}
        # Low numbers first: blocks in use then lie close together, which `attention` makes use of.
        self._free = list(range(num_blocks))  # a heap
        self._free_cached: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def num_free(self) -> int:
        """Blocks that can be given out, cached ones included."""
        return len(self._free) + len(self._free_cached)

    def num_needed(self, num_tokens: int) -> int:
        """Blocks for so many positions."""
        return -(-num_tokens // self.block_size)

    def take(self) -> int:
        """A block with nothing in it. There must be a free one."""
        if self._free:
            block = heapq.heappop(self._free)
        else:
            block, _ = self._free_cached.popitem(last=False)
            self._forget(block)
        self._num_holders[block] = 1
        return block

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for blocks that are held or cached."""
        for block in blocks:
            if self._num_holders[block] == 0:
                del self._free_cached[block]
            self._num_holders[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less. The last of a table is let go first: a beginning is worth more than an end."""
        for block in reversed(blocks):
            self._num_holders[block] -= 1
            if self._num_holders[block] > 0:
                continue
            if self._digests[block] is None:
                heapq.heappush(self._free, block)
            else:
                self._free_cached[block] = None

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known beginning of this chain."""
        found: list[int] = []
        for digest in digests:
            block = self._by_digest.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_free_after(self, held: Iterable[int]) -> int:
        """What `num_free` would be once these were held."""
        return self.num_free - sum(self._num_holders[block] == 0 for block in held)

    def know(self, block: int, digest: bytes) -> None:
        """A block is full and computed. If the same is known in another block, that one stays known."""
        if self._digests[block] is None and digest not in self._by_digest:
            self._digests[block] = digest
            self._by_digest[digest] = block

    def is_writable(self, block: int) -> bool:
        """May its only holder write into it? Else it is to be copied first."""
        return self._num_holders[block] == 1 and self._digests[block] is None

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that the books agree with the block tables of all living sequences."""
        counted = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), "a table names a block twice"
            for block in table:
                counted[block] += 1
        assert counted == self._num_holders, "a block leaked, or is held without being counted"
        free = [*self._free, *self._free_cached]
        idle = [block for block, count in enumerate(counted) if count == 0]
        assert sorted(free) == idle, "a block is neither free nor held, or both"
        assert all(self._digests[block] is not None for block in self._free_cached)
        assert all(self._digests[block] is None for block in self._free)
        known = {digest: block for block, digest in enumerate(self._digests) if digest is not None}
        assert known == self._by_digest

    def _forget(self, block: int) -> None:
        digest = self._digests[block]
        assert digest is not None
        del self._by_digest[digest]
        self._digests[block] = None
