"""Checkpoints: a Hugging Face folder (`config.json`, `*.safetensors`) in, a `Decoder` out, and back.

The one place that knows Hugging Face's tensor names and that our q, k, v and gate, up are fused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from reference_engine.errors import ModelError
from reference_engine.model import Decoder
from reference_engine.model_config import ModelConfig, read_json

Shape = tuple[int, ...]


def checkpoint_parts(config: ModelConfig) -> dict[str, tuple[tuple[str, Shape], ...]]:
    """Our parameter name -> the tensors of the checkpoint that make it up, stacked along rows."""
    d, ffn = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    parts: dict[str, tuple[tuple[str, Shape], ...]] = {
        "embedding.weight": (("model.embed_tokens.weight", (config.vocab_size, d)),),
        "norm.weight": (("model.norm.weight", (d,)),),
    }
    if not config.tie_word_embeddings:
        parts["head.weight"] = (("lm_head.weight", (config.vocab_size, d)),)
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        attn, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        parts |= {
            f"{ours}.input_norm.weight": ((f"{theirs}.input_layernorm.weight", (d,)),),
            f"{ours}.qkv.weight": (
                (f"{attn}.q_proj.weight", (q, d)),
                (f"{attn}.k_proj.weight", (kv, d)),
                (f"{attn}.v_proj.weight", (kv, d)),
            ),
            f"{ours}.o.weight": ((f"{attn}.o_proj.weight", (d, q)),),
            f"{ours}.mlp_norm.weight": ((f"{theirs}.post_attention_layernorm.weight", (d,)),),
            f"{ours}.gate_up.weight": (
                (f"{mlp}.gate_proj.weight", (ffn, d)),
                (f"{mlp}.up_proj.weight", (ffn, d)),
            ),
            f"{ours}.down.weight": ((f"{mlp}.down_proj.weight", (d, ffn)),),
        }
    return parts


def load_decoder(folder: Path, config: ModelConfig, *, device: str, dtype: torch.dtype) -> Decoder:
    """Build the network and fill it. Raises ModelError naming the file and the tensor at fault."""
    with torch.device("meta"):
        model = Decoder(config)
    files = _checkpoint_files(folder)
    state: dict[str, Tensor] = {}
    for name, parts in checkpoint_parts(config).items():
        tensors = [_read(folder, files, part, shape) for part, shape in parts]
        state[name] = torch.cat(tensors).to(device=device, dtype=dtype)
    if config.tie_word_embeddings:
        state["head.weight"] = state["embedding.weight"]
    model.load_state_dict(state, assign=True)
    if config.tie_word_embeddings:
        model.head.weight = model.embedding.weight
    model.restore_rope(device)
    return model.eval().requires_grad_(False)


def save_decoder(model: Decoder, path: Path, *, dtype: torch.dtype) -> None:
    """Write the network as one safetensors file under Hugging Face's names."""
    state, out = model.state_dict(), {}
    for name, parts in checkpoint_parts(model.config).items():
        rows = [shape[0] for _, shape in parts]
        for (part, _), tensor in zip(parts, state[name].split(rows), strict=True):
            out[part] = tensor.to(dtype).contiguous().clone()
    save_file(out, path, metadata={"format": "pt"})


def _checkpoint_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> the file that holds it, for one file or many (`*.index.json`)."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        return {name: folder / str(file) for name, file in read_json(index).get("weight_map", {}).items()}
    if not single.exists():
        raise ModelError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{single}: not a readable safetensors file: {error}") from None


def _read(folder: Path, files: dict[str, Path], name: str, shape: Shape) -> Tensor:
    if name not in files:
        raise ModelError(f"{folder}: no tensor {name} in the checkpoint, but config.json asks for it")
    try:
        with safe_open(files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{files[name]}: cannot read {name}: {error}") from None
    if tuple(tensor.shape) != shape:
        raise ModelError(f"{files[name]}: {name} has shape {tuple(tensor.shape)}, config.json says {shape}")
    return tensor
