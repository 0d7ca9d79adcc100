"""The summary of a run for a terminal or a CI log: verdict first, then the numbers, in 80 columns.

A pure function of summary.json. Nothing is printed here; a stream that cannot show block characters is the
command line's concern.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from llmbench.report.text import (
    ABSENT,
    METRIC_NAMES,
    check_interval,
    duration,
    exact_duration,
    failure_examples,
    gate_words,
    interval,
    limit_text,
    needed_text,
    outcome_words,
    percent,
    plan_line,
    quantity,
    rates_line,
    significant,
    stream_words,
    title_line,
    unit_of,
    verdict_words,
)
from llmbench.stats import samples_needed, sparkline

_COLOURS = {"VALID": 32, "PASS": 32, "SUSPECT": 33, "INCONCLUSIVE": 33, "INVALID": 31, "FAIL": 31}
_HEADLINE = ("ttft", "tpot", "itl", "e2e")
_NUM_EXAMPLES = 3
_FEW = 20  # below this a distribution has no shape to show
_NOTICEABLE = 1.01  # from due and from sent are both shown where they differ by more than this,
_NOTICEABLE_S = 0.001  # and by more than what any client takes to send


def render_summary(
    summary: Mapping[str, Any], *, width: int = 80, color: bool = False, report_path: str | None = None
) -> str:
    """The whole text, newline at the end. No line is longer than `width`, paths and colour codes aside."""
    blocks = [
        _header(summary, width),
        _verdict(summary, width, color=color),
        _table(summary),
        _facts(summary, width),
        _checks(summary, width, color=color),
        [f"  {report_path}"] if report_path else [],
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in block) for block in blocks if block) + "\n"


def _painted(word: str, *, color: bool) -> str:
    return f"\x1b[1;{_COLOURS[word]}m{word}\x1b[0m" if color and word in _COLOURS else word


def _flowed(parts: Iterable[str], width: int, indent: str = "") -> list[str]:
    """Parts three spaces apart, on as many lines as it takes."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}   {part}" if lines else ""
        if lines and len(longer) <= width:
            lines[-1] = longer
        elif len(indent) + len(part) <= width:
            lines.append(indent + part)  # as it is: its padding lines columns up
        else:
            lines += textwrap.wrap(part, width, initial_indent=indent, subsequent_indent=indent)
    return lines


def _header(summary: Mapping[str, Any], width: int) -> list[str]:
    return _flowed(title_line(summary), width) + _flowed(plan_line(summary), width)


def _verdict(summary: Mapping[str, Any], width: int, *, color: bool) -> list[str]:
    status = summary["verdict"]["status"]
    words = [_painted(status, color=color)]
    words += [f"{_painted(word, color=color)} {count}" for word, count in gate_words(summary["gate"])]
    if verdict_words(status):
        words.insert(1, verdict_words(status))
    lines = ["  " + "   ".join(words)]
    for reason in summary["verdict"]["reasons"]:
        name = reason["code"].replace("_", " ")
        lines += textwrap.wrap(
            reason["message"], width, initial_indent=f"    {name:<17} ", subsequent_indent=" " * 22
        )
        lines += textwrap.wrap(
            reason["hint"], width, initial_indent=" " * 22, subsequent_indent=" " * 22, break_on_hyphens=False
        )
    return lines


def _table(summary: Mapping[str, Any]) -> list[str]:
    """Headline latencies; rows that nothing was measured for are left out."""
    metrics = summary["metrics"]
    shown = [name for name in _row_names(metrics) if metrics[name]["count"]]
    if not shown:
        return []
    lines = [f"  {'':<14}{'p50':>8}{'p95':>11}{'p99':>11}     95 % of p95"]
    for name in shown:
        block = metrics[name]
        unit = unit_of(block["p95"] if block["p95"] is not None else block["p50"])
        cells = [duration(block[stat], unit) for stat in ("p50", "p95", "p99")]
        between = interval(block["ci95"]["p95"], unit)
        lines.append(f"  {METRIC_NAMES[name]:<13}{cells[0]:>9}{cells[1]:>11}{cells[2]:>11}     {between}")
    return lines + _missing(metrics, shown) + _with_failures(summary) + _with_unfinished(summary)


def _row_names(metrics: Mapping[str, Any]) -> list[str]:
    names: list[str] = []
    for name in _HEADLINE:
        names.append(name)
        due, sent = metrics.get(f"{name}_due", {}), metrics[name]
        if any(_is_later(due.get(stat), sent[stat]) for stat in ("p50", "p95", "p99")):
            names.append(f"{name}_due")
    return names


def _is_later(due_s: float | None, sent_s: float | None) -> bool:
    if not due_s or not sent_s:
        return False
    return due_s > _NOTICEABLE * sent_s and due_s - sent_s > _NOTICEABLE_S


def _missing(metrics: Mapping[str, Any], shown: list[str]) -> list[str]:
    """Why there is a dash: percentiles that the sample cannot support."""
    lacking = [
        f"{stat} needs {samples_needed(float(stat[1:]))}"
        for stat in ("p95", "p99")
        if any(metrics[name][stat] is None for name in shown)
    ]
    return [f"  {ABSENT} too few requests: {', '.join(lacking)}"] if lacking else []


def _with_failures(summary: Mapping[str, Any]) -> list[str]:
    """The tail with failures as infinitely slow, where there are any: successes alone look better."""
    ttft = summary["attempts"]["ttft"]
    if not ttft["failed"] or not summary["metrics"]["ttft"]["count"]:
        return []
    cells = [
        f"{stat} {duration(ttft[stat]) if ttft[stat] is not None else '∞'}"
        for stat in ("p50", "p95", "p99")
        if ttft["count"] >= samples_needed(float(stat[1:]))
    ]
    return [f"  TTFT with failures as ∞: {', '.join(cells)}"] if cells else []


def _with_unfinished(summary: Mapping[str, Any]) -> list[str]:
    """The same where some were not waited for to their end: they took at least as long."""
    ttft, count = summary["censored"]["ttft"], summary["censored"]["count"]
    cells = [f"{stat} {duration(ttft[stat])}" for stat in ("p50", "p95", "p99") if ttft[stat] is not None]
    if not count or not ttft["unfinished"] or not cells:
        return []
    return [f"  TTFT by Kaplan-Meier, {count:,} unfinished: {', '.join(cells)}"]


def _facts(summary: Mapping[str, Any], width: int) -> list[str]:
    lines = _histogram(summary)
    throughput, goodput = summary["throughput"], summary["goodput"]
    output = throughput["output_tokens_per_s"]
    tokens = ABSENT if output is None else significant(output)
    parts = [f"rate  {rates_line(summary):<20}", f"output {tokens} tok/s"]
    if goodput["share"] is not None:
        parts.append(f"goodput {percent(goodput['share'])}")
    lines += _flowed(parts, width, "  ")
    lines += textwrap.wrap(
        outcome_words(summary), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    if came := stream_words(summary["streams"]):
        lines += textwrap.wrap(f"streams  {came}", width, initial_indent="  ", subsequent_indent=" " * 11)
    for example in failure_examples(summary, _NUM_EXAMPLES):
        lines.append(f"    {textwrap.shorten(example, width - 4, placeholder=' …')}")
    return lines + _flowed(_instrument(summary), width, "  ")


def _histogram(summary: Mapping[str, Any]) -> list[str]:
    bins = summary["histograms"]["ttft"]
    if bins is None or sum(bins["counts"]) < _FEW:
        return []
    low, high = exact_duration(bins["low"]), exact_duration(bins["high"])
    more = " and above" if bins["above"] else ""
    return [f"  TTFT  {sparkline(bins['counts'])}   {low} ──── {high}{more}"]


def _instrument(summary: Mapping[str, Any]) -> list[str]:
    facts = summary["instrument"]
    error = (facts["calibrated_error"] or {}).get("ttft_p99_s")
    lag = summary["metrics"]["send_lag"]
    parts = [f"instrument ± {duration(error)}"] if error is not None else []
    if lag["count"]:
        stat = "p99" if lag["p99"] is not None else "max"
        parts.append(f"send lag {stat} {duration(lag[stat])}")
    if facts["cpu_share"] is not None:
        parts.append(f"client CPU {percent(facts['cpu_share'])}")
    if (facts["workers"] or 1) > 1:
        reason = facts["workers_reason"]
        parts.append(f"{facts['workers']} workers" + (f" ({reason})" if reason else ""))
    return [", ".join(parts)] if parts else []


def _indented(text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ")


def _checks(summary: Mapping[str, Any], width: int, *, color: bool) -> list[str]:
    lines: list[str] = []
    limits = [limit_text(check) for check in summary["gate"]["checks"]]
    first = max([20, *map(len, limits)])
    for check, text in zip(summary["gate"]["checks"], limits, strict=True):
        observed, between = quantity(check, check["observed"]), check_interval(check)
        line = f"  {text:<{first}} {observed:>9}   {between:<14} {check['status']}"
        if needed := needed_text(check):
            fits = len(line) + 2 + len(needed) <= width
            line = f"{line}  {needed}" if fits else f"{line}\n{_indented(needed, width)}"
        lines.append(line.replace(check["status"], _painted(check["status"], color=color)))
    return lines
