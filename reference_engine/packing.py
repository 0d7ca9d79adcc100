"""Linear layers for float32 on a CPU, their weights kept in the layout that oneDNN multiplies best.

The same product, reordered once at load instead of at every step: with 2 to 16 rows, which is what
decoding a batch has, about twice as fast as `nn.Linear`; hardly different with one row or hundreds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference_engine.model import Decoder


class PackedLinear(nn.Module):
    """`nn.Linear` without bias, for inference only."""

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())  # noqa: SLF001
        self.register_buffer("weight", packed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[*, in]` -> `[*, out]`."""
        multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
        product: Tensor = multiply(x, self.weight, None, "none", [], "")
        return product


def can_pack(device: str, dtype: torch.dtype) -> bool:
    """These operators are what torch's own compiler emits for CPUs; builds without oneDNN lack them."""
    has_operators = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return device == "cpu" and dtype == torch.float32 and has_operators


def pack_linears(model: Decoder) -> None:
    """Replace every linear layer. A tied output head gets a copy: lookups need the plain rows."""
    for layer in model.layers:
        for name in ("qkv", "o", "gate_up", "down"):
            setattr(layer, name, PackedLinear(getattr(layer, name)))
    model.head = PackedLinear(model.head)  # type: ignore[assignment]
