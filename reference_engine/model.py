"""The network: a Llama-family decoder (RMSNorm, RoPE, grouped-query attention, SwiGLU).

In: token ids and positions of any leading shape `*`, and an `Attend`, the one place where tokens
meet each other. Out: hidden states, and logits for the rows asked for. It does not know how keys and
values are kept, which tokens belong to which sequence, or what a batch is: all of that is the `Attend`
that is passed in, so the same network serves training, recomputation and any kind of KV cache.

Letters in shapes: `*` leading, d hidden, H query heads, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference_engine.model_config import ModelConfig

# (layer, q [*, H, D], k [*, K, D], v [*, K, D]) -> [*, H, D]; q and k are already rotated.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def rope_tables(config: ModelConfig, num_positions: int) -> Tensor:
    """Cosines and sines, `[2, num_positions, D]`, of rotary embeddings (Su et al. 2021, section 3.4.2).

    Pairs are (i, i + D/2), as in Hugging Face checkpoints, not neighbours as in the paper.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), config.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads `x [*, heads, D]` by tables `[*, 1, D]`."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


class Layer(nn.Module):
    """One decoder layer. q, k, v and gate, up are one matrix each: fewer, larger products."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, head_dim = config.hidden_size, config.head_dim
        self.heads = (config.num_attention_heads, config.num_key_value_heads)
        self.head_dim = head_dim
        self.input_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.qkv = nn.Linear(width, (self.heads[0] + 2 * self.heads[1]) * head_dim, bias=False)
        self.o = nn.Linear(self.heads[0] * head_dim, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        self.gate_up = nn.Linear(width, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, width, bias=False)

    def forward(self, index: int, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """`x [*, d]` -> `[*, d]`."""
        num_q, num_kv = self.heads
        qkv = self.qkv(self.input_norm(x)).unflatten(-1, (num_q + 2 * num_kv, self.head_dim))
        qk = rotate(qkv[..., : num_q + num_kv, :], *rope)
        mixed = attend(index, qk[..., :num_q, :], qk[..., num_q:, :], qkv[..., num_q + num_kv :, :])
        x = x + self.o(mixed.flatten(-2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The whole network. `rope` is a buffer of constants and never part of a checkpoint."""

    rope: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # A given weight skips the random start, which on the meta device imports seconds' worth of torch.
        rows = torch.empty(config.vocab_size, config.hidden_size)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size, _weight=rows)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        self.restore_rope("cpu")

    def restore_rope(self, device: str) -> None:
        """(Re)compute the rotary tables: needed once more after building on the meta device."""
        with torch.device(device):
            tables = rope_tables(self.config, self.config.max_position_embeddings)
        self.register_buffer("rope", tables, persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states `[*, d]` after the last norm, for token ids `[*]` at positions `[*]`."""
        x: Tensor = self.embedding(token_ids)
        cos, sin = self.rope[:, positions].unsqueeze(-2).to(x.dtype)  # each [*, 1, D]
        for index, layer in enumerate(self.layers):
            x = layer(index, x, (cos, sin), attend)
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
