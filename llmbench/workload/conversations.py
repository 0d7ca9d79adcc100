"""Conversations: requests that depend on each other, as every kind of file or generator says them. Data only.

A conversation is a graph of turns. A turn is one request; it is due `wait_ns` after the last of the turns it
comes `after` has ended (after the conversation's start, where it comes after none). A chat is a chain, an
agent's fan-out several turns after one, its fan-in one after several; a tool call is a wait.

    Turn(messages=(user,))                                              turn 0: the first question
    Turn(after=(0,), wait_ns=2e9, messages=(user, AnswerOf(0), user))   turn 1: two seconds after the answer

`AnswerOf` stands where the history has what the model said: the live answer, or the one the file has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from llmbench.workload.traces.trace import Ints

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOf:
    """The place of an answer in a history: that of `turn`. `given` is what the file says was answered there;
    None where only a live answer can stand.
    """

    turn: int
    given: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request: its whole history, oldest first, as messages (or `prompt`, for api: completions).

    `after` names earlier turns, by number. `body` is merged into the request's body (tools, temperature).
    Lengths are tokens; None where nobody asked for one.
    """

    after: tuple[int, ...] = ()
    wait_ns: int = 0
    messages: tuple[Message | AnswerOf, ...] | None = None
    prompt: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Its turns, each after those it depends on. `session` is what the file calls it, None where it has no
    name: then a single turn is a request like any other.
    """

    turns: tuple[Turn, ...]
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conversations:
    """What a file of prompts or conversations holds, in order.

    `offset_ns` says when each starts, ascending, from the first one on; None where the file has no times.
    `num_file_rows` is what the file held; `notes` say in words what was left out or changed since.
    """

    path: str
    items: tuple[Conversation, ...]
    num_file_rows: int
    offset_ns: Ints | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def num_turns(self) -> int:
        """Requests in all of them."""
        return sum(len(item.turns) for item in self.items)

    @property
    def are_sessions(self) -> bool:
        """Whether any request depends on another."""
        return any(len(item.turns) > 1 for item in self.items)


def problems_of(turns: tuple[Turn, ...]) -> Iterator[str]:
    """What is wrong with a graph of turns: each may only come after, and quote, turns before it."""
    if not turns:
        yield "has no turns"
    for number, turn in enumerate(turns):
        if late := [other for other in turn.after if not 0 <= other < number]:
            yield f"turn {number} comes after turn {late[0]}, which is not before it"
        if (turn.messages is None) == (turn.prompt is None):
            yield f"turn {number} needs one of messages and prompt"
        upstream = _upstream(turns, number)
        for part in turn.messages or ():
            if isinstance(part, AnswerOf) and part.turn not in upstream:
                yield f"turn {number} quotes the answer of turn {part.turn}, which it does not wait for"


def _upstream(turns: tuple[Turn, ...], number: int) -> set[int]:
    """All turns that have ended when this one is due."""
    found: set[int] = set()
    ahead = list(turns[number].after)
    while ahead:
        one = ahead.pop()
        if 0 <= one < number and one not in found:
            found.add(one)
            ahead += turns[one].after
    return found
