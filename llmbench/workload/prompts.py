"""What each request asks: its prompt, its lengths, its tenant; by index, from the seed and the run's salt.

    system message   (salted when cold)
    shared prefix    tag of the group (salted when cold), then a story: the same text for the whole group
    own part         tag of the request (salted when cold or mixed), then a story

A tag is a few words (see `prose`). The salt changes tags only, never a length or another word, so that a
rerun does the same work on text that shares no beginning with the last run's. What a server's prefix cache
can then do:

    cold    nothing of an earlier run. Within the run, prefix groups and the system message are shared.
    mixed   the system message and the shared prefixes are those of every run; own parts are new.
    warm    every prompt is that of every run: a rerun finds all of it.

`input_tokens` is the length of the prompt without the shared prefix; the two together are what the request
asks for (`input_tokens_asked`), the template's tokens and the system message included. Given prompts (jsonl,
inline) are sent word for word, whatever `cache` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from llmbench.errors import UsageError
from llmbench.scenario.model import Scenario, Workload
from llmbench.workload.data import CHAT_ONLY, Message, PromptRow, Rows, WorkloadData
from llmbench.workload.fit import TextFit, stated_fit
from llmbench.workload.lengths import BLOCK, BlockDraws, Lengths
from llmbench.workload.prose import Story, Tags
from llmbench.workload.traces.trace import PrefixBlocks, Trace

# Hashing a prompt takes microseconds; the first thousand identify a prompt set.
HASHED_PROMPTS = 1000
_BLOCKS_KEPT = 4096  # of a trace's shared blocks: some 10 MB of text
_BLOCK_PLACES = 1 << 16  # places of the story where blocks begin


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """What one request asks. Either `messages` or `prompt` is set; lengths are tokens, None where none is
    asked.

    `workload` is the position of its workload in the scenario; `prefix_group` the shared prefix it begins
    with; `body` is merged into the request's body.
    """

    index: int
    workload: int = 0
    tenant: str | None = None
    session: str | None = None
    turn: int | None = None
    prefix_group: int | None = None
    input_tokens_asked: int | None = None
    output_tokens_asked: int | None = None
    messages: tuple[Message, ...] | None = None
    prompt: str | None = None
    body: Mapping[str, Any] | None = None


class RequestSource:
    """The requests of a run. `spec(i)` depends on the scenario, the fit, the salt and i alone."""

    def __init__(
        self, parts: tuple[_Synthetic | _Given, ...], workloads: tuple[Workload, ...], seed: int
    ) -> None:
        self._parts = parts
        self._tenants = tuple(workload.tenant for workload in workloads)
        self._mix = None if len(parts) == 1 else _Mix([workload.weight for workload in workloads], seed)

    def spec(self, index: int) -> RequestSpec:
        """The request at `index` (from 0), in any order and as often as wanted."""
        workload, nth = self._pick(index)
        return self._parts[workload].spec(index, nth, workload, self._tenants[workload])

    def outline(self, index: int) -> RequestSpec:
        """The same without a word of text, which is what takes time to make."""
        workload, nth = self._pick(index)
        inputs, outputs = self._parts[workload].lengths(index, nth)
        return RequestSpec(
            index=index,
            workload=workload,
            tenant=self._tenants[workload],
            input_tokens_asked=inputs,
            output_tokens_asked=outputs,
        )

    def _pick(self, index: int) -> tuple[int, int]:
        return (0, index) if self._mix is None else self._mix.pick(index)


class _Mix:
    """Draws a workload for each request by weight, and counts how many of the same came before it."""

    def __init__(self, weights: list[float], seed: int) -> None:
        self._edges = np.cumsum(np.array(weights) / sum(weights))[:-1]
        self._draws = BlockDraws(lambda rng, count: rng.random(count), seed=seed, purpose="workload")
        self._before = [np.zeros(len(weights), dtype=np.int64)]

    def pick(self, index: int) -> tuple[int, int]:
        number, within = divmod(index, BLOCK)
        picked = self._picked(number)
        while len(self._before) <= number:
            done = len(self._before) - 1
            counts = np.bincount(self._picked(done), minlength=len(self._edges) + 1)
            self._before.append(self._before[done] + counts)
        workload = int(picked[within])
        earlier = int(np.count_nonzero(picked[:within] == workload))
        return workload, int(self._before[number][workload]) + earlier

    def _picked(self, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.searchsorted(self._edges, self._draws.block(number), side="right")


class _Synthetic:
    """Made-up prompts, of lengths drawn from distributions or read from a trace."""

    def __init__(
        self, scenario: Scenario, position: int, *, fit: TextFit, salt: str, trace: Trace | None
    ) -> None:
        workload, seed = scenario.workloads[position], scenario.seed
        self._is_chat = scenario.target.api != "completions"
        self._trace = trace
        self._inputs = self._outputs = None
        if trace is None:
            assert workload.input_tokens is not None
            assert workload.output_tokens is not None
            self._inputs = Lengths(workload.input_tokens, seed=seed, purpose=f"input_tokens/{position}")
            self._outputs = Lengths(workload.output_tokens, seed=seed, purpose=f"output_tokens/{position}")
        run_salt = salt if workload.cache == "cold" else ""
        own_salt = "" if workload.cache == "warm" else salt
        self._story = Story(fit, seed=seed, purpose=f"story/{position}")
        self._tags = Tags(fit, salt=own_salt, seed=seed, purpose=f"tag/{position}")
        self._starts = BlockDraws(
            lambda rng, count: rng.random(count), seed=seed, purpose=f"start/{position}"
        )
        self._groups = BlockDraws(
            lambda rng, count: rng.random(count), seed=seed, purpose=f"group/{position}"
        )
        self._block_texts: dict[tuple[int, float], tuple[str, float]] = {}
        self._system, system_tokens = _salted_system(workload, fit, run_salt, seed)
        self._lead = f"{fit.lead} " if fit.lead else ""
        self._overhead = fit.overhead_tokens + system_tokens + fit.tokens_of(fit.lead.split())
        self._prefix_tokens = workload.prefix.tokens if workload.prefix is not None else 0
        self._prefixes = self._write_prefixes(workload, fit, run_salt, seed, position)

    def _write_prefixes(
        self, workload: Workload, fit: TextFit, salt: str, seed: int, position: int
    ) -> list[tuple[str, float]]:
        if workload.prefix is None:
            return []
        tags = Tags(fit, salt=salt, seed=seed, purpose=f"prefix_tag/{position}")
        starts = BlockDraws(
            lambda rng, count: rng.random(count), seed=seed, purpose=f"prefix_start/{position}"
        )
        return [
            _text(self._story, tags, group, starts.at(group), workload.prefix.tokens)
            for group in range(workload.prefix.groups)
        ]

    def spec(self, index: int, nth: int, workload: int, tenant: str | None) -> RequestSpec:
        asked, outputs = self.lengths(index, nth)
        if self._trace is not None and self._trace.blocks is not None:
            text = self._of_blocks(self._trace.blocks, nth % len(self._trace), asked - self._overhead)
            return self._spec(index, workload, tenant, None, text, asked, outputs)
        group, prefix, prefix_tokens = None, "", 0.0
        if self._prefixes:
            group = int(self._groups.at(index) * len(self._prefixes))
            prefix, prefix_tokens = self._prefixes[group]
            prefix += " "
        own, _ = _text(
            self._story, self._tags, index, self._starts.at(index), asked - self._overhead - prefix_tokens
        )
        return self._spec(index, workload, tenant, group, prefix + own, asked, outputs)

    def lengths(self, index: int, nth: int) -> tuple[int, int]:
        """Input, shared prefix included, and output tokens of a request, the `nth` of this workload."""
        if self._trace is not None:
            row = nth % len(self._trace)
            inputs, outputs = int(self._trace.input_tokens[row]), int(self._trace.output_tokens[row])
        else:
            assert self._inputs is not None
            assert self._outputs is not None
            inputs, outputs = self._inputs.at(index), self._outputs.at(index)
        return inputs + self._prefix_tokens, outputs

    def _of_blocks(self, blocks: PrefixBlocks, row: int, tokens: float) -> str:
        """A prompt of `tokens` tokens that has with every other as many blocks in common as their ids say."""
        texts: list[str] = []
        *whole, last = blocks.of(row).tolist()
        for block in whole:
            if tokens < 1:
                break
            text, cost = self._block(block, min(tokens, blocks.tokens))
            texts.append(text)
            tokens -= cost
        if tokens >= 1 or not texts:
            texts.append(self._block(last, tokens)[0])
        return " ".join(texts)

    def _block(self, block: int, tokens: float) -> tuple[str, float]:
        """A block's text and its cost: the same for the same block, and its beginning where it is cut."""
        key = (block, tokens)
        found = self._block_texts.get(key)
        if found is None:
            place = self._starts.at(block % _BLOCK_PLACES)
            found = _text(self._story, self._tags, block, place, tokens)
            if len(self._block_texts) >= _BLOCKS_KEPT:
                self._block_texts.pop(next(iter(self._block_texts)))
            self._block_texts[key] = found
        return found

    def _spec(
        self,
        index: int,
        workload: int,
        tenant: str | None,
        group: int | None,
        text: str,
        input_tokens: int,
        output_tokens: int,
    ) -> RequestSpec:
        messages, prompt = _framed(self._lead + text, self._system, is_chat=self._is_chat)
        return RequestSpec(
            index=index,
            workload=workload,
            tenant=tenant,
            prefix_group=group,
            input_tokens_asked=input_tokens,
            output_tokens_asked=output_tokens,
            messages=messages,
            prompt=prompt,
        )


def _text(story: Story, tags: Tags, number: int, place: float, tokens: float) -> tuple[str, float]:
    """A tag and a stretch of story from `place` (0 to 1) on, together about `tokens`, with their cost."""
    tag, tag_tokens = tags.tag(number, tokens)
    text, text_tokens = story.stretch(int(place * story.num_starts), tokens - tag_tokens)
    return f"{tag} {text}".rstrip(), tag_tokens + text_tokens


def _salted_system(workload: Workload, fit: TextFit, salt: str, seed: int) -> tuple[str | None, float]:
    """The system message with the run's tag in front when there is a salt, and its cost in tokens."""
    if not workload.system:
        return None, 0.0
    tokens = fit.tokens_of_system(workload.system)
    if not salt:
        return workload.system, tokens
    tag, tag_tokens = Tags(fit, salt=salt, seed=seed, purpose="system_tag").tag(0)
    salted = " ".join(part for part in (fit.lead, tag, workload.system) if part)
    return salted, tokens + tag_tokens + fit.tokens_of(fit.lead.split())


def _framed(text: str, system: str | None, *, is_chat: bool) -> tuple[tuple[Message, ...] | None, str | None]:
    if not is_chat:
        return None, f"{system}\n\n{text}" if system else text
    user = {"role": "user", "content": text}
    return (({"role": "system", "content": system}, user) if system else (user,)), None


class _Given:
    """Prompts as they stand in a file or in the scenario, in order, from the start again when all are
    sent.
    """

    def __init__(self, scenario: Scenario, position: int, rows: tuple[PromptRow, ...]) -> None:
        workload = scenario.workloads[position]
        self._is_chat = scenario.target.api != "completions"
        if not self._is_chat and any(row.messages is not None for row in rows):
            raise UsageError(f"workload.path: {CHAT_ONLY}")
        self._rows = rows
        self._system = workload.system
        self._outputs = (
            None
            if workload.output_tokens is None
            else Lengths(workload.output_tokens, seed=scenario.seed, purpose=f"output_tokens/{position}")
        )

    def lengths(self, index: int, nth: int) -> tuple[None, int | None]:
        """Output tokens of a request, the `nth` of this workload; how long its prompt is nobody asked."""
        outputs = self._rows[nth % len(self._rows)].max_tokens
        if outputs is None and self._outputs is not None:
            outputs = self._outputs.at(index)
        return None, outputs

    def spec(self, index: int, nth: int, workload: int, tenant: str | None) -> RequestSpec:
        row = self._rows[nth % len(self._rows)]
        _, outputs = self.lengths(index, nth)
        messages, prompt = row.messages, None
        if messages is None:
            messages, prompt = _framed(row.prompt or "", self._system, is_chat=self._is_chat)
        elif self._system and messages[0]["role"] not in ("system", "developer"):
            messages = ({"role": "system", "content": self._system}, *messages)
        return RequestSpec(
            index=index,
            workload=workload,
            tenant=tenant,
            output_tokens_asked=outputs,
            messages=messages,
            prompt=prompt,
        )


def make_workload(
    scenario: Scenario, data: WorkloadData, *, fit: TextFit | None = None, salt: str = ""
) -> RequestSource:
    """The requests of a run over `scenario`, with the files of `load_data`.

    `fit` says what text costs (stated values without one); `salt` is any text that no other run has: equal
    salts make equal prompts. Raises UsageError where prompts do not suit the target's API.
    """
    known = fit if fit is not None else stated_fit(is_chat=scenario.target.api != "completions")
    parts = tuple(
        _part(scenario, position, rows, fit=known, salt=salt) for position, rows in enumerate(data.rows)
    )
    return RequestSource(parts, scenario.workloads, scenario.seed)


def _part(scenario: Scenario, position: int, rows: Rows, *, fit: TextFit, salt: str) -> _Synthetic | _Given:
    if isinstance(rows, tuple):
        return _Given(scenario, position, rows)
    return _Synthetic(scenario, position, fit=fit, salt=salt, trace=rows)


def prompt_set_hash(
    scenario: Scenario, data: WorkloadData, *, fit: TextFit | None = None, num_requests: int | None = None
) -> str:
    """SHA-256 (hex) of the unsalted requests: equal for two runs that did the same work on the same text.

    Covers the first `num_requests`, a thousand at most. Another tokenizer's fit makes another text and hash.
    """
    source = make_workload(scenario, data, fit=fit, salt="")
    digest = hashlib.sha256()
    for index in range(min(num_requests or HASHED_PROMPTS, HASHED_PROMPTS)):
        digest.update(orjson.dumps(_logical(source.spec(index)), option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()


def _logical(spec: RequestSpec) -> Mapping[str, Any]:
    return {
        "tenant": spec.tenant,
        "input": spec.input_tokens_asked,
        "output": spec.output_tokens_asked,
        "prompt": spec.prompt,
        "messages": spec.messages,
    }
