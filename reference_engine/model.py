"""The network: a Llama-family decoder (RMSNorm, RoPE, grouped-query attention, SwiGLU).

In: token ids and positions of any leading shape `*`, and an `Attend`, the one place where tokens
meet each other. Out: hidden states, and logits for the rows asked for. It does not know how keys and
values are kept, which tokens belong to which sequence, or what a batch is: all of that is the `Attend`
that is passed in, so the same network serves training, recomputation and any kind of KV cache.

The families differ in what they add: Llama may have biases, Qwen2 has them on q, k and v, Qwen3 norms
every query and key head; Mistral without its window is a Llama.

Letters in shapes: `*` leading, d hidden, H query heads, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference_engine import rope
from reference_engine.model_config import ModelConfig

# (layer, q [*, H, D], k [*, K, D], v [*, K, D]) -> [*, H, D]; q and k are already rotated.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) * weight` over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps
        # Tensors, because torch would convert a Python number again at every use, which takes longer.
        self._shrink, self._root = torch.tensor((width**-0.5, eps**0.5), device="cpu").unbind()

    def forward(self, x: Tensor) -> Tensor:
        """`[*, width]` -> `[*, width]`."""
        if x.dtype != torch.float32 or x.is_cuda:
            return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # On CPUs torch makes the same of eight small operations; these five take a third of the time.
        root = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) * self._shrink).hypot(self._root)
        normed: Tensor = x / root * self.weight
        return normed


class Layer(nn.Module):
    """One decoder layer. q, k, v and gate, up are one matrix each: fewer, larger products."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        num_q, num_kv = config.num_attention_heads, config.num_key_value_heads
        self.split = [num_q, num_kv, num_kv]
        self.head_dim = head_dim
        self.input_norm = RMSNorm(width, eps)
        self.qkv = nn.Linear(width, sum(self.split) * head_dim, bias=config.qkv_bias)
        self.q_norm = RMSNorm(head_dim, eps) if config.qk_norm else None
        self.k_norm = RMSNorm(head_dim, eps) if config.qk_norm else None
        self.o = nn.Linear(num_q * head_dim, width, bias=config.o_bias)
        self.mlp_norm = RMSNorm(width, eps)
        self.gate_up = nn.Linear(width, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, width, bias=config.mlp_bias)

    def forward(self, index: int, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """`x [*, d]` -> `[*, d]`; `turns` are the cosines and sines of the rows' positions."""
        qkv = self.qkv(self.input_norm(x)).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is None or self.k_norm is None:
            num_q, num_kv, _ = self.split
            qk, v = torch.split(qkv, [num_q + num_kv, num_kv], -2)
            q, k = torch.split(rope.rotate(qk, *turns), [num_q, num_kv], -2)
        else:
            q, k, v = torch.split(qkv, self.split, -2)
            q, k = rope.rotate(self.q_norm(q), *turns), rope.rotate(self.k_norm(k), *turns)
        x = x + self.o(attend(index, q, k, v).flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        gate = functional.silu(gate)
        # In place where nobody will ask for a gradient: a third of the time, which is the memory's.
        gated = gate * up if torch.is_grad_enabled() else gate.mul_(up)
        return x + self.down(gated)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The whole network. `frequencies` are constants, never part of a checkpoint."""

    frequencies: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # A given weight skips the random start, which on the meta device imports seconds' worth of torch.
        rows = torch.empty(config.vocab_size, config.hidden_size)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, _weight=rows)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        self.restore_rope("cpu")

    def restore_rope(self, device: str) -> None:
        """(Re)compute the rotary frequencies: needed once more after building on the meta device."""
        with torch.device("cpu"):
            frequencies = rope.signed_frequencies(self.config)
        self.register_buffer("frequencies", frequencies.to(device), persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states `[*, d]` after the last norm, for token ids `[*]` at positions `[*]`."""
        x: Tensor = self.embedding(token_ids)
        factor = self.config.rope_scaling.attention_factor
        turns = rope.tables(positions, self.frequencies, factor, x.dtype)  # each [*, 1, D]
        for index, layer in enumerate(self.layers):
            x = layer(index, x, turns, attend)
        return self.norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """`[*, d]` -> `[*, V]`. Call it only for the rows that are sampled: V is the widest matrix."""
        return self.head(hidden)  # type: ignore[no-any-return]


def attend_causally(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of whole sequences `[B, T, heads, D]` to themselves: no cache, nothing kept.

    Used for training, and as the specification that every cache is tested against.
    """
    group = q.shape[-2] // k.shape[-2]
    k, v = (t.repeat_interleave(group, dim=-2).transpose(1, 2) for t in (k, v))
    return functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True).transpose(1, 2)
