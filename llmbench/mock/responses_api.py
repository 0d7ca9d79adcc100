"""The typed events of the responses API, in the order in which OpenAI's server sends them."""

from __future__ import annotations

from typing import Any

from llmbench.mock.answers import Channel, Framing, error_object, to_json, tool_arguments, usage_counts
from llmbench.mock.job import Job

_DELTAS: dict[Channel, str] = {
    "reasoning": "response.reasoning_text.delta",
    "text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "tool": "response.function_call_arguments.delta",
}


def _item(job: Job, channel: Channel, text: str | None, status: str) -> dict[str, Any]:
    """One output item; `text` is None while it has no content yet."""
    number = job.ordinal
    if channel == "tool":
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "look_up"}
        return {**call, "arguments": text or "", "status": status}
    if channel == "reasoning":
        content = [] if text is None else [_part(channel, text)]
        return {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [],
            "content": content,
            "status": status,
        }
    content = [] if text is None else [_part(channel, text)]
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "content": content,
        "status": status,
    }


def _part(channel: Channel, text: str) -> dict[str, Any]:
    if channel == "refusal":
        return {"type": "refusal", "refusal": text}
    if channel == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": []}


def response_object(
    job: Job, texts: dict[Channel, str], *, answer_id: str, created: int, status: str
) -> dict[str, Any]:
    """The response object of a whole answer, or of a stream at its start (`in_progress`) and end."""
    cut = status == "incomplete"
    document: dict[str, Any] = {
        "id": answer_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "model": job.model,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [
            _item(
                job,
                channel,
                tool_arguments(text) if channel == "tool" else text,
                "incomplete" if cut else "completed",
            )
            for channel, text in texts.items()
        ],
        "usage": None,
    }
    if status != "in_progress" and job.include_usage:
        document["usage"] = usage_counts(job, job.num_tokens)
    return document


def final_status(job: Job) -> str:
    """`incomplete` where the token maximum ended the answer, else `completed`."""
    return "incomplete" if job.finish_reason == "length" else "completed"


class ResponsesAnswer:
    """Events of one streamed response. Keeps the text so far, which the closing events repeat."""

    def __init__(self, job: Job, framing: Framing, *, answer_id: str, created: int) -> None:
        self._job = job
        self._framing = framing
        self._answer_id = answer_id
        self._created = created
        self._sequence = 0
        self._texts: dict[Channel, list[str]] = {}

    def _event(self, kind: str, **fields: object) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return self._framing.event(to_json(data), kind.encode())

    def _response(self, texts: dict[Channel, str], status: str) -> dict[str, Any]:
        return response_object(
            self._job, texts, answer_id=self._answer_id, created=self._created, status=status
        )

    def _place(self, channel: Channel) -> dict[str, Any]:
        place = {"item_id": _item(self._job, channel, None, "")["id"], "output_index": len(self._texts) - 1}
        return place if channel == "tool" else {**place, "content_index": 0}

    def opening(self) -> bytes:
        """response.created and response.in_progress."""
        begun = self._response({}, "in_progress")
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def _begin(self, channel: Channel) -> bytes:
        finished = self._finish()
        self._texts[channel] = []
        item = _item(self._job, channel, None, "in_progress")
        added = self._event("response.output_item.added", output_index=len(self._texts) - 1, item=item)
        if channel != "tool":
            added += self._event(
                "response.content_part.added", **self._place(channel), part=_part(channel, "")
            )
        return finished + added

    def _finish(self) -> bytes:
        """The closing events of the item that is open, if one is."""
        if not self._texts:
            return b""
        channel = next(reversed(self._texts))
        text = "".join(self._texts[channel])
        name = _DELTAS[channel].removesuffix(".delta") + ".done"
        key = {"tool": "arguments", "refusal": "refusal"}.get(channel, "text")
        done = self._event(name, **self._place(channel), **{key: text})
        if channel != "tool":
            done += self._event(
                "response.content_part.done", **self._place(channel), part=_part(channel, text)
            )
        item = _item(self._job, channel, text, "completed")
        return done + self._event("response.output_item.done", output_index=len(self._texts) - 1, item=item)

    def piece(self, channel: Channel, text: bytes, num_sent: int, *, last: bool) -> bytes:
        """A delta event, with the events that open its item where it is the item's first."""
        begun = b"" if channel in self._texts else self._begin(channel)
        delta = text.decode()
        if channel == "tool":
            delta = ('{"text":"' if begun else "") + delta + ('"}' if last else "")
        self._texts[channel].append(delta)
        return begun + self._event(_DELTAS[channel], **self._place(channel), delta=delta)

    def closing(self) -> bytes:
        """The events that close the last item."""
        return self._finish()

    def usage(self) -> bytes:
        """The last event, which carries the whole response and its usage."""
        status = final_status(self._job)
        document = self._response({}, status)
        document["output"] = [
            _item(self._job, channel, "".join(parts), status) for channel, parts in self._texts.items()
        ]
        ended_early = status == "incomplete" and self._job.behaviour.responses_end == "incomplete"
        return self._event("response.incomplete" if ended_early else "response.completed", response=document)

    def error(self, message: str, code: int) -> bytes:
        """The error event."""
        failure = error_object(code, message)["error"]
        return self._event("error", code=str(failure["code"]), message=message, param=None)
