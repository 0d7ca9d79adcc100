"""Writing a run's results, at its end or any time later from what lies in its folder.

    journal/*.jsonl ─(also of a killed run)─┐
    requests.parquet ───────────────────────┴─▶ columns ─▶ requests.parquet, timeline.parquet,
                                                           summary.json, summary.md

`run.json` must hold, under "measurement", what `RunContext.to_json` gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from llmbench.columns import ColumnsBuilder, RequestColumns
from llmbench.context import RunContext
from llmbench.errors import UsageError
from llmbench.parquet import read_requests, read_timeline, write_requests, write_timeline
from llmbench.records import Outcome, RequestRecord, read_journal
from llmbench.report.folder import RunFolder, open_folder, replace_file, write_json, write_text
from llmbench.report.markdown import render_markdown
from llmbench.report.summary import summarise
from llmbench.report.timeline import SOURCE, request_rows

NEEDED_KEYS = ("name", "open_loop")
NO_RECORD = "no record: the run was killed before this request ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a rebuild gave. `damaged` names the journal lines that were no records, as "file:line"."""

    folder: RunFolder
    summary: dict[str, Any]
    damaged: list[str] = field(default_factory=list)


def write_results(
    folder: RunFolder,
    columns: RequestColumns,
    context: RunContext,
    samples: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Everything after a run: both parquet files, then summary.json and summary.md; the summary is returned.

    `samples` are rows of the timeline that do not come from the requests. The journal is removed once
    requests.parquet is complete and on disk. Raises AssertionError where planned requests are not all on
    record, before the journal is touched.
    """
    summary = summarise(columns, context)
    replace_file(folder.requests, lambda path: write_requests(path, columns))
    _write_timeline(folder, columns, samples)
    folder.remove_journal()
    write_summary(folder, summary)
    return summary


def _write_timeline(folder: RunFolder, columns: RequestColumns, samples: Iterable[Mapping[str, Any]]) -> None:
    rows = [*request_rows(columns), *samples]
    replace_file(folder.timeline, lambda path: write_timeline(path, rows))


def write_summary(folder: RunFolder, summary: dict[str, Any]) -> None:
    """summary.json and summary.md."""
    write_json(folder.summary_json, summary)
    write_text(folder.summary_md, render_markdown(summary))


def read_run(path: Path) -> tuple[RequestColumns, RunContext]:
    """The requests of a run folder, also of one that was killed, and what they belong to. Writes nothing.

    Raises UsageError for a folder that is not llmbench's, or holds no requests.
    """
    folder = open_folder(path)
    context = _context_of(folder, folder.read_run())
    if folder.requests.exists():
        return read_requests(folder.requests), context
    columns, _ = read_journals(folder, context)
    return columns, replace(context, killed=True, planned=columns.num_rows)


def rebuild(path: Path) -> Rebuilt:
    """Make every result of a run folder again, from requests.parquet or, where there is none, the journal.

    Raises UsageError for a folder that is not llmbench's, or holds no requests.
    """
    folder = open_folder(path)
    run = folder.read_run()
    context = _context_of(folder, run)
    samples = _stored_samples(folder)
    if folder.requests.exists():
        columns = read_requests(folder.requests)
        summary = summarise(columns, context)
        _write_timeline(folder, columns, samples)
        folder.remove_journal()
        write_summary(folder, summary)
        return Rebuilt(folder=folder, summary=summary)
    columns, damaged = read_journals(folder, context)
    # A closed loop knows only when it ends how many requests it planned: it is what the records say.
    context = replace(context, killed=True, planned=columns.num_rows)
    folder.write_run({**run, "measurement": context.to_json()})
    summary = write_results(folder, columns, context, samples)
    return Rebuilt(folder=folder, summary=summary, damaged=damaged)


def _context_of(folder: RunFolder, run: Mapping[str, Any]) -> RunContext:
    """The context in run.json; its `measurement` must be there whole. Raises UsageError with file and key."""
    stored = run.get("measurement")
    if stored is None:
        raise _foreign(folder, "it has no key measurement")
    if not isinstance(stored, dict):
        raise _foreign(folder, "measurement must be an object")
    for key in NEEDED_KEYS:
        if key not in stored:
            raise _foreign(folder, f"it has no key measurement.{key}")
    try:
        return RunContext.from_json(stored)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        key = _unreadable_key(stored)
        raise _foreign(folder, f"measurement.{key} cannot be read") from error


def _foreign(folder: RunFolder, what: str) -> UsageError:
    return UsageError(
        f"{folder.run_json}: not written by this version of llmbench: {what}.\n"
        "Report it with the version that made it."
    )


def _unreadable_key(stored: Mapping[str, Any]) -> str:
    """The key of the measurement that `RunContext.from_json` cannot read by itself."""
    needed = {key: stored[key] for key in NEEDED_KEYS}
    for key, value in stored.items():
        try:
            RunContext.from_json({**needed, key: value})
        except (KeyError, TypeError, AttributeError, IndexError, ValueError):
            return key
    return "…"


def read_journals(folder: RunFolder, context: RunContext) -> tuple[RequestColumns, list[str]]:
    """The journals' records as columns, a row for every planned request, and the damaged lines' places."""
    journals = folder.request_journals()
    if not journals:
        raise UsageError(_no_records(folder))
    damaged: list[str] = []
    builder = ColumnsBuilder(save_text=True)
    seen = _Marks()
    for record in read_journal(journals, damaged):
        if seen.mark(record.index):
            _distrust_counts(record)
            builder.add(record)
    missing = _planned_without(builder.indices(), context)
    if not len(builder) and not len(missing):
        raise UsageError(_no_records(folder))
    for index in missing.tolist():
        builder.add(_without_record(index, context))
    return builder.finish(), damaged


class _Marks:
    """A set of numbers from 0 on, a byte for each."""

    def __init__(self) -> None:
        self._marked = bytearray()

    def mark(self, number: int) -> bool:
        """Marks it; False where it was marked before."""
        if number >= len(self._marked):
            self._marked.extend(bytes(number + 1 - len(self._marked)))
        is_new = not self._marked[number]
        self._marked[number] = 1
        return is_new


def _planned_without(found: NDArray[np.int64], context: RunContext) -> NDArray[np.int64]:
    """The planned requests that are not among those found.

    Of an open loop the plan says how many there are. A closed loop of several workers has gone on in each for
    as long as it took: of each, what lies below its last one was planned, and of one that died what it is
    known to have begun.
    """
    if context.open_loop or context.workers == 1:
        num_planned = max(context.planned or 0, int(found.max(initial=-1)) + 1)
        return np.setdiff1d(np.arange(num_planned), found)
    missing = []
    for worker in range(context.workers):
        own = found[found % context.workers == worker]
        lost = context.lost_worker_of(worker)
        begun = 0 if lost is None else worker + lost.started * context.workers
        planned = np.arange(worker, max(int(own.max(initial=-1)) + 1, begun), context.workers)
        missing.append(np.setdiff1d(planned, own))
    return np.concatenate(missing)


def _no_records(folder: RunFolder) -> str:
    if folder.journal.is_dir():
        return (
            f"{folder.path}: the run ended before its first request did: run.json and an empty journal.\n"
            "There is nothing to report; the folder can be removed."
        )
    return (
        f"{folder.path}: neither requests.parquet nor a journal beside run.json; there is nothing to report"
    )


def _distrust_counts(record: RequestRecord) -> None:
    """Token counts that do not match the events cannot be used; the rest of the record can."""
    if record.event_tokens is not None and len(record.event_tokens) != len(record.event_ns):
        record.event_tokens = None
        record.warnings.append("token_counts_mismatch")


def _without_record(index: int, context: RunContext) -> RequestRecord:
    """A planned request that the journal knows nothing of."""
    lost = context.lost_worker_of(index)
    return RequestRecord(
        index=index,
        phase="warmup" if index < context.num_warmup else "measure",
        outcome=Outcome.CANCELLED,
        error_kind="cancelled",
        error=NO_RECORD if lost is None else f"worker {lost.worker}, whose request it was, {lost.how}",
        worker=None if lost is None else lost.worker,
    )


def _stored_samples(folder: RunFolder) -> list[dict[str, Any]]:
    """Timeline rows of other sources, from timeline.parquet or else the timeline's journal."""
    if folder.timeline.exists():
        return [row for row in read_timeline(folder.timeline) if row["source"] != SOURCE]
    rows: list[dict[str, Any]] = []
    for journal in folder.timeline_journals():
        for line in journal.read_bytes().splitlines():
            try:
                rows.append(orjson.loads(line))
            except orjson.JSONDecodeError:
                continue  # the torn last line of a killed run
    return rows
