"""What one response amounted to: the result of decoding an exchange. Data only."""

from __future__ import annotations

LONGEST_MESSAGE = 1000
"""Characters of an error message that are kept: servers put whole stack traces into theirs."""


class Answer:
    """What the server said and when. Instants are on the exchange's clock; None where nothing happened.

    event_ns         one stamp for each event that carried output, in order
    event_tokens     tokens of each such event; None where they cannot be told (several choices)
    first_answer_ns  the first output that is not reasoning
    role_chunk_ns    the first event with choices, where it carried no output
    finish_chunk_ns  the last event with choices, where it carried no output and others did
    reads            socket reads that brought output
    shared_events    events that came in one read with a later one: they may have arrived before their stamp
    shared_bound_ns  by at most so much
    body_bytes       size of an event stream, without HTTP's framing and compression
    is_whole         a stream that said it was over: finish_reason, or [DONE] after some output
    error_kind       http_status, connection, timeout, truncated, protocol, stream_error, empty, not_sse,
                     http_body_error, cancelled
    """

    # defaults on the class: an answer is made for every request, and few of these are set on each
    outcome: str = "ok"
    error_kind: str | None = None
    error: str | None = None
    event_tokens: list[int] | None = None
    first_answer_ns: int | None = None
    role_chunk_ns: int | None = None
    finish_chunk_ns: int | None = None
    end_ns: int | None = None
    reads: int = 0
    shared_events: int = 0
    shared_bound_ns: int | None = None
    body_bytes: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    request_id: str | None = None
    reasoning: str = ""
    refusal: str = ""
    is_whole: bool = False

    def __init__(self) -> None:
        self.event_ns: list[int] = []
        self.choices: dict[int, str] = {}
        self.tool_calls: list[dict[str, str]] = []
        self.warnings: list[str] = []

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices.get(0, "")

    def fail(self, outcome: str, kind: str, message: str) -> None:
        """Books a failure; the first one stands."""
        if self.outcome == "ok":
            self.outcome, self.error_kind, self.error = outcome, kind, message[:LONGEST_MESSAGE]

    def warn(self, code: str) -> None:
        """Marks something odd that did not make the answer a failure."""
        if code not in self.warnings:
            self.warnings.append(code)
