"""How much memory a KV cache may take when nobody said how much."""

from __future__ import annotations

import os

import torch

from reference_engine.config import EngineConfig

CPU_SHARE = 0.25  # of the machine: a cache is a guest here, beside the weights and everybody's programs
CPU_BYTES_AT_LEAST = 512 * 2**20


def available_bytes(config: EngineConfig) -> int:
    """Bytes for the KV cache, once the weights are loaded.

    On a GPU: what `--gpu-memory-utilization` of the device leaves after what is in use now. On a CPU: a
    quarter of the machine's memory; pages that are never used are never taken.
    """
    if config.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return max(int(total * config.gpu_memory_utilization) - (total - free), 0)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(int(total * CPU_SHARE), CPU_BYTES_AT_LEAST)
