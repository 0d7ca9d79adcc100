"""Independent streams of random numbers from one seed: one a purpose, so that none disturbs another.

Two purposes (arrivals, input lengths, ...) never share a stream. Asking for more of one therefore leaves all
others as they were, and a longer run begins exactly like a shorter one.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

_SEED_BITS = (1 << 128) - 1


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """The generator of `purpose` and of non-negative `keys` (a block number, say). Equal arguments, equal
    draws.

    Any integer is a seed; negative ones wrap into 128 bits.
    """
    name = int.from_bytes(blake2b(purpose.encode(), digest_size=4).digest(), "little")
    sequence = np.random.SeedSequence(entropy=seed & _SEED_BITS, spawn_key=(name, *keys))
    return np.random.Generator(np.random.PCG64(sequence))
