"""Linear layers for float32 on a CPU, their weights kept in the layout that oneDNN multiplies best.

The same product, reordered once at load instead of at every step. Milliseconds for SmolLM2's 120 linear
layers on two cores, torch 2.13:

    rows       1    16   128   256  1024
    nn.Linear  33    92   221   501  1683
    x @ W.T    27   104   217   506  1567   (W kept transposed)
    packed     24    50   201   422  1558

Nothing that was tried is faster at any number of rows, so that the plain copy is dropped. A call costs
about 30 us whatever its size (a plain one 4), which evens out for matrices as small as those of `tiny`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference_engine.model import Decoder


class PackedLinear(nn.Module):
    """`nn.Linear` for inference only."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())  # noqa: SLF001
        self.register_buffer("weight", packed, persistent=False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), persistent=False)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001

    def forward(self, x: Tensor) -> Tensor:
        """`[*, in]` -> `[*, out]`."""
        product: Tensor = self._multiply(x, self.weight, self.bias, "none", [], "")
        return product


def can_pack(device: str, dtype: torch.dtype) -> bool:
    """These operators are what torch's own compiler emits for CPUs; builds without oneDNN lack them."""
    has_operators = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return device == "cpu" and dtype == torch.float32 and has_operators


def pack_linears(model: Decoder) -> None:
    """Replace every linear layer, one at a time, so that only one is there twice.

    A tied output head gets a copy: lookups need the plain rows.
    """
    for layer in model.layers:
        for name in ("qkv", "o", "gate_up", "down"):
            setattr(layer, name, PackedLinear(getattr(layer, name)))
    model.head = PackedLinear(model.head)  # type: ignore[assignment]
