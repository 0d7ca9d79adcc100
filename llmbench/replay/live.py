"""What a person sees while a run goes: a block that rewrites itself, or in a log a line every ten seconds.

In come snapshots of the run, out goes text on stderr. The text is a pure function of the snapshot. Nothing
here measures, and painting must not disturb who does: a frame is a few formatted lines and one write (about
50 µs), no thread, no layout engine.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

from llmbench.fold import fold

PLAIN_EVERY_S: Final = 10.0
BAR_WIDTH: Final = 24
PHASES: Final = {"warmup": "warm-up", "measure": "measuring", "drain": "draining"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot:
    """Where a run stands. Percentiles are of the measured requests so far, None before the first."""

    elapsed_s: float
    total_s: float | None  # None when the run ends by a number of requests
    done: int  # requests that ended, whatever became of them
    planned: int | None  # None when only time ends the run
    in_flight: int
    rate_asked_per_s: float | None  # None in a closed loop
    rate_achieved_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    tpot_p95_s: float | None
    errors: int
    dropped: int
    phase: str  # "warmup", "measure" or "drain"


class RunObserver(Protocol):
    """Who is told how a run goes. Calls come from the event loop's thread and must return at once."""

    def waiting(self, what: str) -> None:
        """Something takes its time: a server that starts, the last answers after an interrupt."""

    def started(self, plan_text: str, planned: int | None, ends_at_s: float | None) -> None:
        """The first request is about to be sent."""

    def progress(self, snapshot: LiveSnapshot) -> None:
        """About four times a second."""

    def finished(self) -> None:
        """Nothing more will come; also after an error, and possibly more than once."""


class PlainLines:
    """For pipes, CI logs and dumb terminals: whole lines, never a carriage return.

    `header_follows` says that the summary, which begins with the plan too, will stand in the same place.
    """

    def __init__(
        self, stream: TextIO, every_s: float = PLAIN_EVERY_S, *, header_follows: bool = False
    ) -> None:
        self._stream = stream
        self._header_follows = header_follows
        self._every_s = every_s
        self._next_s = every_s

    def waiting(self, what: str) -> None:
        self._print(fold(f"  {what}"))

    def started(self, plan_text: str, planned: int | None, ends_at_s: float | None) -> None:
        if not self._header_follows:
            self._print(fold(plan_text.rstrip("\n")))
            return
        parts = [f"{planned:,} requests"] if planned is not None else []
        parts += [f"{ends_at_s:.0f} s"] if ends_at_s is not None else []
        self._print(f"  started: {' in '.join(parts) or 'until it is stopped'}")

    def progress(self, snapshot: LiveSnapshot) -> None:
        if snapshot.elapsed_s < self._next_s:
            return
        self._next_s = (snapshot.elapsed_s // self._every_s + 1) * self._every_s
        self._print(progress_line(snapshot))

    def finished(self) -> None:
        """Every line is out already."""

    def _print(self, text: str) -> None:
        _show(self._stream, text + "\n")


class RewrittenBlock:
    """For terminals: painted over itself, and wiped at the end, title and all: the summary replaces it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._num_lines = 0
        self._title: list[str] = []
        self._notice: list[str] = []

    def waiting(self, what: str) -> None:
        self._notice = [f"  {what}"]
        self._paint([*self._title, *self._notice])

    def started(self, plan_text: str, planned: int | None, ends_at_s: float | None) -> None:
        self._title = [*plan_text.splitlines(), ""]
        self._notice = []
        self._paint(self._title)

    def progress(self, snapshot: LiveSnapshot) -> None:
        self._paint([*self._title, *progress_block(snapshot), *self._notice])

    def finished(self) -> None:
        if self._num_lines:
            self._paint([])

    def _paint(self, lines: list[str]) -> None:
        _show(self._stream, repaint(lines, self._num_lines, terminal_width(self._stream)))
        self._num_lines = len(lines)


def _show(stream: TextIO, text: str) -> None:
    """Writes what can be written: a reader of the progress that leaves must not end the measurement."""
    with contextlib.suppress(OSError):
        stream.write(text)
        stream.flush()


def observer_for(stream: TextIO, *, is_live: bool, header_follows: bool = False) -> RunObserver:
    """The block where it can be rewritten and is wanted, plain lines elsewhere."""
    if is_live and stream.isatty() and os.environ.get("TERM", "") != "dumb":
        return RewrittenBlock(stream)
    return PlainLines(stream, header_follows=header_follows)


def terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind `stream`; 80 when it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def repaint(lines: list[str], num_old: int, width: int) -> str:
    """The characters that replace the `num_old` lines above the cursor.

    A line never wraps: it is cut, since a wrapped one would make the next repaint start too low.
    """
    back = f"\x1b[{num_old}F" if num_old else ""
    return back + "\x1b[J" + "".join(line[: width - 1] + "\n" for line in lines)


def progress_line(now: LiveSnapshot) -> str:
    """The whole state in one line, for a log."""
    parts = [_elapsed(now), _done(now), f"{now.in_flight} in flight"]
    if now.ttft_p50_s is not None and now.ttft_p95_s is not None:
        parts.append(f"ttft {_pair(now.ttft_p50_s, now.ttft_p95_s)}")
    if now.tpot_p50_s is not None:
        parts.append(f"tpot {short_time(now.tpot_p50_s)}")
    parts.append(_failures(now))
    if now.phase != "measure":
        parts.append(PHASES.get(now.phase, now.phase))
    return "  " + "   ".join(parts)


def progress_block(now: LiveSnapshot) -> list[str]:
    """The state as a block of lines, for a terminal."""
    asked = "" if now.rate_asked_per_s is None else f" of {short_rate(now.rate_asked_per_s)} asked"
    phase = PHASES.get(now.phase, now.phase)
    return [
        f"  {phase:<10}{_bar(_share_done(now))}  {_elapsed(now)}{_left(now)}",
        f"  {'requests':<10}{_done(now)}   {now.in_flight} in flight   {_failures(now)}",
        f"  {'rate':<10}{short_rate(now.rate_achieved_per_s)}{asked}",
        f"  {'':<10}{'p50':>9}{'p95':>10}",
        f"  {'TTFT':<10}{short_time(now.ttft_p50_s):>9}{short_time(now.ttft_p95_s):>10}",
        f"  {'TPOT':<10}{short_time(now.tpot_p50_s):>9}{short_time(now.tpot_p95_s):>10}",
    ]


def short_time(seconds: float | None) -> str:
    """Three significant digits with a unit; a dash for nothing yet."""
    if seconds is None:
        return "-"
    if seconds < 0.0009995:
        return f"{_digits(seconds * 1e6)} µs"
    return f"{_digits(seconds * 1e3)} ms" if seconds < 0.9995 else f"{_digits(seconds)} s"


def short_rate(per_second: float) -> str:
    return f"{_digits(per_second)}/s"


def _digits(value: float) -> str:
    """Three significant digits without an exponent: 0.312, 21.4, 182, 1,000."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _pair(low_s: float, high_s: float) -> str:
    """Two times under one unit, that of the second."""
    number, unit = short_time(high_s).rsplit(" ", 1)
    scale = {"µs": 1e6, "ms": 1e3, "s": 1.0}[unit]
    return f"{_digits(low_s * scale)}/{number} {unit}"


def _elapsed(now: LiveSnapshot) -> str:
    return f"{now.elapsed_s:.0f} s" + (f" of {now.total_s:.0f}" if now.total_s is not None else "")


def _done(now: LiveSnapshot) -> str:
    return f"{now.done:,} of {now.planned:,} done" if now.planned is not None else f"{now.done:,} done"


def _failures(now: LiveSnapshot) -> str:
    errors = f"{now.errors:,} error{'' if now.errors == 1 else 's'}"
    return errors + (f"   {now.dropped:,} dropped" if now.dropped else "")


def _share_done(now: LiveSnapshot) -> float | None:
    """By time where the run ends by time, else by requests; None where neither is known."""
    if now.total_s:
        return min(1.0, now.elapsed_s / now.total_s)
    return min(1.0, now.done / now.planned) if now.planned else None


def _left(now: LiveSnapshot) -> str:
    """Time left: exact where the end is planned, projected from the requests done otherwise."""
    if now.total_s is not None:
        left_s = now.total_s - now.elapsed_s
        return f"   {left_s:.0f} s left" if left_s > 0 else ""
    if not now.planned or not now.done:
        return ""
    return f"   about {now.elapsed_s / now.done * max(0, now.planned - now.done):.0f} s left"


def _bar(share: float | None) -> str:
    full = 0 if share is None else round(share * BAR_WIDTH)
    return "━" * full + "─" * (BAR_WIDTH - full)
