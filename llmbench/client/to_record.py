"""An exchange and its answer, written into the request's record. Pure."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from llmbench.client.answer import Answer
from llmbench.client.exchange import Exchange
from llmbench.records import Outcome, RequestRecord


def fill_record(
    record: RequestRecord,
    exchange: Exchange,
    answer: Answer,
    *,
    epoch_ns: int,
    scrub: Callable[[str], str],
    save_text: bool,
) -> None:
    """Takes over everything the two tell, on the clock that starts at `epoch_ns`.

    `scrub` takes secrets out of any text that came from the server.
    """

    def since(stamp: int | None) -> int | None:
        return None if stamp is None else stamp - epoch_ns

    record.outcome = Outcome(answer.outcome)
    record.sent_ns = since(exchange.sent_ns)
    record.headers_ns = since(exchange.headers_ns)
    record.event_ns = [stamp - epoch_ns for stamp in answer.event_ns]
    record.event_tokens = answer.event_tokens
    record.first_event_ns = record.event_ns[0] if record.event_ns else None
    record.first_answer_ns = since(answer.first_answer_ns)
    record.role_chunk_ns = since(answer.role_chunk_ns)
    record.finish_chunk_ns = since(answer.finish_chunk_ns)
    record.end_ns = since(answer.end_ns)
    record.reads = answer.reads
    record.shared_events = answer.shared_events
    record.shared_bound_ns = answer.shared_bound_ns
    record.body_bytes = answer.body_bytes
    record.read_lag_ns = max(exchange.lags_ns, default=None)
    record.input_tokens = answer.input_tokens
    record.cached_tokens = answer.cached_tokens
    record.output_tokens = answer.output_tokens
    record.reasoning_tokens = answer.reasoning_tokens
    record.token_source = answer.token_source
    record.finish_reason = scrub(answer.finish_reason) if answer.finish_reason else None
    record.http_status = exchange.status
    record.error_kind = answer.error_kind
    record.error = scrub(answer.error) if answer.error else None
    record.request_id = scrub(answer.request_id or answer.response_id or exchange.request_id)
    record.warnings = answer.warnings
    if save_text:
        record.text = scrub(answer.text)
        record.reasoning = scrub(answer.reasoning) or None
        record.refusal = scrub(answer.refusal) or None
        if answer.tool_calls:
            record.tool_calls = scrub(orjson.dumps(answer.tool_calls).decode())
