"""Checkpoints: a Hugging Face folder (`config.json`, `*.safetensors`) in, a `Decoder` out, and back.

The one place that knows Hugging Face's tensor names and that our q, k, v and gate, up are fused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from reference_engine.errors import ModelError
from reference_engine.model import Decoder
from reference_engine.model_config import ModelConfig, read_json

Shape = tuple[int, ...]
Parts = tuple[tuple[str, Shape], ...]
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class _Entry(NamedTuple):
    """Where a tensor lies: `offset` bytes from the start of the file."""

    path: Path
    dtype: str
    shape: Shape
    offset: int


def checkpoint_parts(config: ModelConfig) -> dict[str, Parts]:
    """Our parameter name -> the tensors of the checkpoint that make it up, stacked along rows."""
    d = config.hidden_size
    parts: dict[str, Parts] = {
        "embedding.weight": (("model.embed_tokens.weight", (config.vocab_size, d)),),
        "norm.weight": (("model.norm.weight", (d,)),),
    }
    if not config.tie_word_embeddings:
        parts["head.weight"] = (("lm_head.weight", (config.vocab_size, d)),)
    for index in range(config.num_hidden_layers):
        parts |= _layer_parts(config, f"layers.{index}", f"model.layers.{index}")
    return parts


def _layer_parts(config: ModelConfig, ours: str, theirs: str) -> dict[str, Parts]:
    d, ffn = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    attn, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
    parts: dict[str, Parts] = {
        f"{ours}.input_norm.weight": ((f"{theirs}.input_layernorm.weight", (d,)),),
        f"{ours}.mlp_norm.weight": ((f"{theirs}.post_attention_layernorm.weight", (d,)),),
    }
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            parts[f"{ours}.{name}.weight"] = ((f"{attn}.{name}.weight", (config.head_dim,)),)
    qkv = ((f"{attn}.q_proj", q), (f"{attn}.k_proj", kv), (f"{attn}.v_proj", kv))
    gate_up = ((f"{mlp}.gate_proj", ffn), (f"{mlp}.up_proj", ffn))
    for name, rows, columns, has_bias in (
        ("qkv", qkv, d, config.qkv_bias),
        ("o", ((f"{attn}.o_proj", d),), q, config.o_bias),
        ("gate_up", gate_up, d, config.mlp_bias),
        ("down", ((f"{mlp}.down_proj", d),), ffn, config.mlp_bias),
    ):
        parts[f"{ours}.{name}.weight"] = tuple((f"{part}.weight", (n, columns)) for part, n in rows)
        if has_bias:
            parts[f"{ours}.{name}.bias"] = tuple((f"{part}.bias", (n,)) for part, n in rows)
    return parts


def load_decoder(folder: Path, config: ModelConfig, *, device: str, dtype: torch.dtype) -> Decoder:
    """Build the network and fill it, each tensor read straight into its place.

    Raises ModelError naming the file and the tensor at fault: missing, misshapen, or of no use here.
    """
    with torch.device("meta"):
        model = Decoder(config)
    entries = _entries(folder)
    wanted = checkpoint_parts(config)
    _refuse_unknown(folder, entries, {part for parts in wanted.values() for part, _ in parts})
    state: dict[str, Tensor] = {}
    for name, parts in wanted.items():
        rows = [shape[0] for _, shape in parts]
        out = torch.empty((sum(rows), *parts[0][1][1:]), device=device, dtype=dtype)
        for (part, shape), target in zip(parts, torch.split(out, rows), strict=True):
            if part not in entries:
                raise ModelError(f"{folder}: no tensor {part} in the checkpoint, but config.json asks for it")
            _read(entries[part], part, shape, target)
        state[name] = out
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


def _entries(folder: Path) -> dict[str, _Entry]:
    """Every tensor of the checkpoint, in one file or in those that `*.index.json` names."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.exists():
        if not single.exists():
            raise ModelError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
        return _header(single)
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: weight_map is missing")
    files = {file: _header(folder / str(file)) for file in set(weight_map.values())}
    if lost := [name for name, file in weight_map.items() if name not in files[file]]:
        raise ModelError(f"{folder / weight_map[lost[0]]}: no tensor {lost[0]}, but {index.name} says so")
    return {name: files[file][name] for name, file in weight_map.items()}


def _header(path: Path) -> dict[str, _Entry]:
    """Where the tensors of one file lie: its length in 8 bytes, then JSON, then the numbers.

    Read here rather than by the library, which maps the file: copying out of a mapping took four times
    as long as reading, and what is mapped counts as memory of the process.
    """
    try:
        with path.open("rb") as file:
            size, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
            if not 2 <= length <= size - 8:
                raise ModelError(f"{path}: not a safetensors file, or cut short")
            raw = json.loads(file.read(length))
        raw.pop("__metadata__", None)
        found = {
            name: _Entry(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in raw.items()
        }
        end = 8 + length + max((entry["data_offsets"][1] for entry in raw.values()), default=0)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file, but the index of the checkpoint names it") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not a readable safetensors file: {error}") from None
    if end > size:
        raise ModelError(f"{path}: cut short: {size:,} bytes of {end:,} are there")
    return found


def _refuse_unknown(folder: Path, entries: dict[str, _Entry], wanted: set[str]) -> None:
    """A tensor without a place (a bias, a norm) means that this is another network than config.json says."""
    known = wanted | {"lm_head.weight"}  # some write it although it is tied
    unknown = [name for name in entries if name not in known and not name.endswith(".rotary_emb.inv_freq")]
    if unknown:
        some = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        raise ModelError(f"{entries[unknown[0]].path}: {folder / 'config.json'} has no place for {some}")


def _read(entry: _Entry, name: str, shape: Shape, target: Tensor) -> None:
    if entry.shape != shape:
        raise ModelError(f"{entry.path}: {name} has shape {entry.shape}, config.json says {shape}")
    if entry.dtype not in _DTYPES:
        raise ModelError(f"{entry.path}: {name} is {entry.dtype}; supported: {', '.join(_DTYPES)}")
    dtype = _DTYPES[entry.dtype]
    is_direct = target.dtype == dtype and target.device.type == "cpu"
    room = target if is_direct else torch.empty(shape, dtype=dtype)
    with entry.path.open("rb", buffering=0) as file:
        file.seek(entry.offset)
        view = memoryview(room.view(torch.uint8).numpy().data).cast("B")
        while view and (count := file.readinto(view)):  # a system call reads at most 2 GB
            view = view[count:]
    if len(view):
        raise ModelError(f"{entry.path}: {name} is cut short")
    if not is_direct:
        target.copy_(room)
