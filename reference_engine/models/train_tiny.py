"""Train the bundled `tiny` model, its draft and their shared tokenizer from plain text files.

    python -m reference_engine.models.train_tiny OUT --text A.txt B.txt ... [--draft] [--steps N]

In: text files (see models/tiny/NOTICE for the ones used and where they come from). Out: a folder as
Hugging Face lays it out. Seeded: the same text, torch version and thread count give the same weights.

Three things are done to the text. Wrapped prose and verse numbers are joined into paragraphs. Plays
("HAMLET.", a speech, an empty line) are kept as they are, and also turned into conversations under
the chat template, one speech answering another, so that the model can be chatted with. And the last
part of the training runs at the full context of 2,048 tokens (the first at 256, which is far cheaper
a token), so that rotary positions beyond 256 have been seen and long generations stay in one piece.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional

from reference_engine.model import Decoder, attend_causally
from reference_engine.model_config import ModelConfig
from reference_engine.weights import load_decoder, save_decoder

logger = logging.getLogger(__name__)
VOCAB_SIZE = 3072
END, SYSTEM, USER, ASSISTANT = SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CONTEXT = 2048
SHORT, TOKENS_PER_STEP = 256, 2048
SPEAKER = re.compile(r"[A-Z][A-Za-z. ]{1,28}\.$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Width and depth of one of the two networks."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    learning_rate: float


SIZES = {
    "tiny": Size(hidden=256, ffn=640, layers=4, heads=8, kv_heads=2, learning_rate=2e-3),
    "draft": Size(hidden=64, ffn=192, layers=2, heads=4, kv_heads=2, learning_rate=4e-3),
}


def clean(text: str) -> str:
    """Join wrapped prose: drop verse numbers ("  7 And God ..."), keep verse lines and paragraphs."""
    text = text.replace("\r\n", "\n").replace("\t", " ")
    if len(re.findall(r"^ +\d+ \S", text, flags=re.MULTILINE)) > 1000:
        text = re.sub(r"(?<!\n)\n +\d+ ", " ", re.sub(r"\n\n +\d+ ", "\n\n", text))
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    text = re.sub(r"[ ]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"(?<=\S)  +", " ", text)).strip()


def speeches(play: str) -> list[str]:
    """The spoken paragraphs of a play in order, without names and stage directions."""
    found = []
    for paragraph in play.split("\n\n"):
        name, _, words = paragraph.partition("\n")
        words = re.sub(r"\[[^\]]*\]\s*", "", words).strip()
        if SPEAKER.match(name) and 3 < len(words) < 700:
            found.append(words)
    return found


def conversations(play: str, dice: random.Random) -> Iterator[str]:
    """Runs of two to six speeches under the chat template, each run used once."""
    lines, at = speeches(play), 0
    while at + 2 <= len(lines):
        turns = lines[at : at + 2 * dice.randint(1, 3)]
        at += len(turns)
        roles = (USER, ASSISTANT) * 3
        yield "".join(f"{role}\n{words}{END}\n" for role, words in zip(roles, turns, strict=False))


def documents(paths: list[Path], seed: int) -> list[str]:
    """All training documents, shuffled: whole texts cut at paragraphs to ~12 kB, and conversations."""
    dice = random.Random(seed)
    out: list[str] = []
    for path in paths:
        text = clean(path.read_text(encoding="utf-8"))
        piece: list[str] = []
        size = 0
        out += conversations(text, dice)
        for paragraph in text.split("\n\n"):
            piece.append(paragraph)
            size += len(paragraph)
            if size > 12_000:
                out.append("\n\n".join(piece) + END)
                piece, size = [], 0
        out.append("\n\n".join(piece) + END)
    dice.shuffle(out)
    return out


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE: any text can be encoded, there is no unknown token. Digits stand alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_stream(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """All documents as one row of token ids."""
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return torch.tensor([token_id for one in encoded for token_id in one.ids])


def write_config(out: Path, size: Size) -> ModelConfig:
    """Write `config.json` and `tokenizer_config.json` and read the first back."""
    raw: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": size.hidden,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.hidden // size.heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index(END),
        "torch_dtype": "float16",
    }
    chat = {"chat_template": CHAT_TEMPLATE, "eos_token": END, "model_max_length": CONTEXT}
    (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(chat, indent=2) + "\n", encoding="utf-8")
    return ModelConfig.from_folder(out)


def batch(stream: Tensor, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random windows of the token stream: inputs and targets, each `[B, length]`."""
    starts = torch.randint(0, len(stream) - length - 1, (TOKENS_PER_STEP // length,), generator=generator)
    windows = stream[starts[:, None] + torch.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: Decoder, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats a token."""
    positions = torch.arange(inputs.shape[1]).expand_as(inputs)
    logits = model.logits(model(inputs, positions, attend_causally))
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def evaluate(model: Decoder, stream: Tensor, length: int) -> float:
    """Loss on the first 32,768 held-out tokens, in windows of `length`."""
    with torch.no_grad():
        windows = stream[: 32_768 // length * length + 1]
        losses = [
            loss_of(model, part[None, :-1], part[None, 1:])
            for part in (windows[i : i + length + 1] for i in range(0, len(windows) - length, length))
        ]
        return float(torch.stack(losses).mean())


def train(model: Decoder, stream: Tensor, held_out: Tensor, args: argparse.Namespace, peak: float) -> None:
    """AdamW, linear warm-up, cosine to a hundredth; writes a checkpoint as it goes."""
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)
    start_s = time.monotonic()
    for step in range(args.steps):
        done = step / args.steps
        rate = peak * min(1.0, (step + 1) / 50) * max(0.01, 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        length = SHORT if done < 1 - args.long_share else CONTEXT
        loss = loss_of(model, *batch(stream, length, generator))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            logger.info("step %d loss %.3f at %.0f s", step, loss.item(), time.monotonic() - start_s)
        if step % 200 == 199 or step == args.steps - 1:
            save_decoder(model, args.out / "model.safetensors", dtype=torch.float16)
            losses = [evaluate(model, held_out, at) for at in (SHORT, CONTEXT)]
            logger.info("held out: %.3f at %d, %.3f at %d", losses[0], SHORT, losses[1], CONTEXT)


def main() -> None:
    """Parse the command line and train one network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write; its tokenizer.json is reused if it is there")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="plain text files, UTF-8")
    parser.add_argument("--held-out", type=Path, required=True, help="a text to measure on, never trained on")
    parser.add_argument("--draft", action="store_true", help="the small network, a tenth of the size")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to share (for the draft)")
    parser.add_argument("--init", type=Path, help="start from the weights in this folder")
    parser.add_argument("--steps", type=int, default=1800, help="optimizer steps of 2,048 tokens")
    parser.add_argument("--long-share", type=float, default=0.15, help="share of the steps at full context")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    texts = documents(args.text, args.seed)
    own = args.tokenizer or args.out / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(own)) if own.exists() else train_tokenizer(texts)
    tokenizer.save(str(args.out / "tokenizer.json"))
    stream = token_stream(tokenizer, texts)
    held_out = token_stream(tokenizer, documents([args.held_out], args.seed))
    size = SIZES["draft" if args.draft else "tiny"]
    config = write_config(args.out, size)
    model = Decoder(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    if args.init:
        model = load_decoder(args.init, config, device="cpu", dtype=torch.float32).requires_grad_(True)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    logger.info("%d parameters, %d tokens", num_parameters, len(stream))
    train(model, stream, held_out, args, size.learning_rate)


if __name__ == "__main__":
    main()
