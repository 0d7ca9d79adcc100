"""Every family computes what transformers computes with the same weights, token for token."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from reference_engine.errors import ModelError
from reference_engine.model import attend_causally
from reference_engine.model_config import ModelConfig
from reference_engine.weights import load_decoder, save_decoder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "bos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LONG = [1.0, 1.5, 2.0, 4.0]
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": LONG, "long_factor": LONG,
            "factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
FAMILIES = {
    "llama": ("Llama", {}),
    "llama mha": ("Llama", {"num_key_value_heads": 4}),
    "llama mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": ("Llama", {"head_dim": 24, "rms_norm_eps": 1e-3}),
    "llama linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("Llama", {"rope_parameters": YARN}),
    "llama yarn, all set": (
        "Llama",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 6.0,
                "beta_slow": 0.5,
                "mscale": 0.7,
                "mscale_all_dim": 0.4,
            }
        },
    ),
    "llama yarn, ramp as computed": (
        "Llama",
        {"head_dim": 32, "rope_parameters": {**YARN, "truncate": False, "attention_factor": 1.3}},
    ),
    "llama longrope": ("Llama", {"rope_parameters": LONGROPE}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, a window that hides nothing": ("Mistral", {"sliding_window": 128, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 biases": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """Theirs, made at random and saved, and ours, read from what they saved."""
    family, changes = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("family")
    torch.manual_seed(len(request.param))
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(folder)
    return theirs, load(folder), folder


def load(folder):
    return load_decoder(folder, ModelConfig.from_folder(folder), device="cpu", dtype=torch.float32)


@torch.no_grad()
def logits_of(model, token_ids):
    """Of every position, `[T, V]`, computed from nothing."""
    ids = torch.tensor([token_ids])
    return model.logits(model(ids, torch.arange(len(token_ids))[None], attend_causally))[0]


def greedy(model, prompt, num_tokens):
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(logits_of(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


@torch.no_grad()
def their_greedy(model, prompt, num_tokens):
    """A loop rather than `generate`, whose defaults (end tokens, penalties) are another subject."""
    ids = torch.tensor([prompt])
    for _ in range(num_tokens):
        ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
    return ids[0, len(prompt) :].tolist()


def test_logits_and_greedy_tokens_are_those_of_transformers(pair):
    theirs, ours, _ = pair
    dice = torch.Generator().manual_seed(3)
    for length in (1, 17, 90):
        prompt = torch.randint(0, SIZES["vocab_size"], (length,), generator=dice).tolist()
        with torch.no_grad():
            wanted = theirs(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(logits_of(ours, prompt), wanted, rtol=0, atol=1e-4)
        assert greedy(ours, prompt, 32) == their_greedy(theirs, prompt, 32)


def test_version_4_of_transformers_spelled_it_otherwise(pair, tmp_path):
    _, ours, folder = pair
    raw = json.loads((folder / "config.json").read_text())
    rope = raw.pop("rope_parameters")
    raw["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    raw["rope_scaling"] = None if kind == "default" else {**rope, "type": kind}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert ModelConfig.from_folder(tmp_path) == ours.config


def test_what_we_save_is_what_we_loaded(pair, tmp_path):
    _, ours, folder = pair
    save_decoder(ours, tmp_path / "model.safetensors", dtype=torch.float32)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    for name, tensor in load(tmp_path).state_dict().items():
        torch.testing.assert_close(tensor, ours.state_dict()[name], rtol=0, atol=0)


def test_bfloat16_stays_close(pair):
    theirs, _, folder = pair
    ours = load_decoder(folder, ModelConfig.from_folder(folder), device="cpu", dtype=torch.bfloat16)
    prompt = list(range(20))
    with torch.no_grad():
        wanted = theirs(torch.tensor([prompt])).logits[0]
    error = (logits_of(ours, prompt).float() - wanted).norm() / wanted.norm()
    assert error < 0.08


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_a_checkpoint_in_several_files_is_one_checkpoint(tmp_path, family):
    config = getattr(transformers, f"{family}Config")(**SIZES)
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 2
    with torch.no_grad():
        wanted = theirs(torch.tensor([[1, 2, 3]])).logits[0]
    torch.testing.assert_close(logits_of(load(tmp_path), [1, 2, 3]), wanted, rtol=0, atol=1e-4)
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(ModelError, match=rf"{files[1].name}: cut short"):
        load(tmp_path)
    files[1].unlink()
    with pytest.raises(ModelError, match=rf"{files[1].name}: no such file"):
        load(tmp_path)


def test_a_bias_that_the_config_does_not_mention_is_not_left_out(tmp_path):
    config = transformers.LlamaConfig(**SIZES, attention_bias=True)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "attention_bias": False}))
    with pytest.raises(ModelError, match=r"no place for model\.layers\.0\.self_attn\.k_proj\.bias"):
        load(tmp_path)
