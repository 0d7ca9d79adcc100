"""summary.md: the same numbers as a page for a pull request. A pure function of summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbench.report.text import (
    ABSENT,
    METRIC_NAMES,
    check_interval,
    duration,
    failure_name,
    interval,
    limit_text,
    needed_text,
    outcome_words,
    percent,
    plan_line,
    quantity,
    rate,
    significant,
    stream_words,
    title_line,
    unit_of,
    verdict_words,
)
from llmbench.steady import EXPECTED, TOO_FEW

_STATS = ("p50", "p90", "p95", "p99", "max", "mean")
_MAX_EXAMPLE = 200


def render_markdown(summary: Mapping[str, Any]) -> str:
    """The whole page."""
    title, *rest = title_line(summary)
    head = [f"# {title}", "", " · ".join([*rest, *plan_line(summary)]), ""]
    sections = (
        _verdict(summary),
        _gate(summary),
        _metrics(summary),
        _attempts(summary),
        _censored(summary),
        _steadiness(summary),
        _rates(summary),
        _outcomes(summary),
        _tokens(summary),
        _tenants(summary),
    )
    return "\n".join([*head, *(line for section in sections for line in section)]).rstrip() + "\n"


def _table(header: list[str], rows: list[list[str]], *, left: int = 1) -> list[str]:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)] + [""]


def _cell(text: str) -> str:
    """Text from a server, safe inside a table."""
    flat = " ".join(text.split())
    shown = flat if len(flat) <= _MAX_EXAMPLE else flat[: _MAX_EXAMPLE - 1] + "…"
    for character in "\\`|<>*_[]":
        shown = shown.replace(character, f"\\{character}")
    return shown


def _verdict(summary: Mapping[str, Any]) -> list[str]:
    status = summary["verdict"]["status"]
    words = verdict_words(status)
    lines = [f"**{status}**" + (f": {words}" if words else ""), ""]
    lines += [
        f"- {reason['severity']} `{reason['code']}`: {reason['message']}. To do: {reason['hint']}."
        for reason in summary["verdict"]["reasons"]
    ]
    return [*lines, ""] if summary["verdict"]["reasons"] else lines


def _gate(summary: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            limit_text(check),
            f"{check['status']} {needed_text(check)}".strip(),
            quantity(check, check["observed"]),
            check_interval(check) or ABSENT,
        ]
        for check in summary["gate"]["checks"]
    ]
    if not rows:
        return []
    return [
        f"## SLO: {summary['gate']['status']}",
        "",
        *_table(["limit", "", "observed", "95 %"], rows, left=2),
    ]


def _metrics(summary: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, label in METRIC_NAMES.items():
        block = summary["metrics"][name]
        if not block["count"]:
            continue
        if block["unit"] == "tokens":
            cells = [ABSENT if block[stat] is None else significant(block[stat], 4) for stat in _STATS]
            between = ABSENT
        else:
            unit = unit_of(block["p95"] if block["p95"] is not None else block["p50"])
            cells = [duration(block[stat], unit) for stat in _STATS]
            between = interval(block["ci95"]["p95"], unit) or ABSENT
        rows.append([label, *cells, between, f"{block['count']:,}"])
    if not rows:
        return []
    return ["## Latencies", "", *_table(["", *_STATS, "95 % of p95", "n"], rows)]


def _attempts(summary: Mapping[str, Any]) -> list[str]:
    failed = summary["attempts"]["ttft"]["failed"]
    if not failed:
        return []
    rows = []
    for name, block in summary["attempts"].items():
        if not block["count"]:
            continue
        cells = [duration(block[stat]) for stat in ("p50", "p90", "p95", "p99")]
        rows.append([f"{METRIC_NAMES[name]}, all attempts", *cells, f"{block['count']:,}"])
    note = f"{failed:,} failed attempts count as infinitely slow; a dash is infinity, or too few requests."
    return [*_table(["", "p50", "p90", "p95", "p99", "n"], rows), note, ""]


def _censored(summary: Mapping[str, Any]) -> list[str]:
    censored = summary["censored"]
    if not censored["count"]:
        return []
    rows = []
    for name in ("ttft", "e2e"):
        block = censored[name]
        cells = [duration(block[stat]) for stat in ("p50", "p90", "p95", "p99")]
        rows.append([f"{METRIC_NAMES[name]}, Kaplan-Meier", *cells, f"{block['count']:,}"])
    note = (
        f"Unfinished, cut off or timed out: {censored['count']:,}. Each took at least so long; a dash is"
        " beyond what the others show, or too few requests."
    )
    return [*_table(["", "p50", "p90", "p95", "p99", "n"], rows), note, ""]


def _steadiness(summary: Mapping[str, Any]) -> list[str]:
    """Settling, drift, arrivals and stalls: a line for each that there is something to say about."""
    lines = [*_settling(summary["steady"]), *_drifts(summary["drift"])]
    arrivals, closed = summary["arrivals"], summary["closed_loop"]
    if arrivals is not None:
        planned, sent = (arrivals[f"dispersion_{which}"] for which in ("planned", "sent"))
        lines.append(
            f"- Arrivals: {percent(arrivals['moved_share'])} moved by more than"
            f" {duration(arrivals['tolerance_s'])}; KS distance of the gaps {arrivals['ks']:.3f};"
            f" index of dispersion {_plain(planned)} planned, {_plain(sent)} sent."
        )
    if closed is not None and closed["stalls"]:
        lines.append(
            f"- Stalls: {len(closed['stalls'])}, {duration(closed['stalled_s'])} in all; about"
            f" {closed['withheld_requests']:,} requests were never asked."
        )
    return ["## Steadiness", "", *lines, ""] if lines else []


def _settling(steady: Mapping[str, Any]) -> list[str]:
    if steady["kind"] == TOO_FEW:
        return []
    if steady["kind"] != EXPECTED:
        return [f"- Steadiness is not judged: {steady['kind']}."]
    name, settled = METRIC_NAMES[steady["metric"]], steady["settled_s"]
    if settled is None:
        return [f"- MSER-5 finds no instant in the first half from which on {name} was settled."]
    return [
        f"- {name} settled {duration(settled)} into the run (MSER-5); warm-up {duration(steady['warmup_s'])}."
    ]


def _drifts(drifts: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, found in drifts.items():
        if name != "kind" and found is not None:
            unit = unit_of(found["change_s"])
            lines.append(
                f"- {METRIC_NAMES[name]} changed by {duration(found['change_s'], unit)} across the window"
                f" ({interval(found['ci95_s'], unit)}), {percent(found['share'])} of its p50."
            )
    return lines


def _plain(value: float | None) -> str:
    return ABSENT if value is None else significant(value)


def _rates(summary: Mapping[str, Any]) -> list[str]:
    rows = []
    views = {"window": summary["throughput"], "whole run": summary["throughput_whole"]}
    for name, view in views.items():
        window = view.get("window", summary["window"])
        tokens = [view[f"{kind}_tokens_per_s"] for kind in ("input", "output", "total")]
        rows.append(
            [
                f"{name}: {window['kind']}, {window['duration_s']:.4g} s",
                *(rate(view[f"{kind}requests_per_s"]) for kind in ("", "sent_", "offered_")),
                *(ABSENT if value is None else significant(value) for value in tokens),
            ]
        )
    header = ["", "requests", "sent", "planned", "input tok/s", "output tok/s", "total tok/s"]
    lines = ["## Rates", "", *_table(header, rows)]
    goodput = summary["goodput"]
    if goodput["share"] is not None:
        share, per_s = percent(goodput["share"]), rate(goodput["requests_per_s"])
        lines += [f"Goodput: {share} of requests met every per-request limit, {per_s}.", ""]
    return lines


def _outcomes(summary: Mapping[str, Any]) -> list[str]:
    counts = summary["counts"]
    planned = f"{counts['planned']:,} planned, {counts['warmup']:,} of them warm-up."
    lines = ["## Outcomes", "", f"{outcome_words(summary)}; {planned}", ""]
    rows = [
        [failure_name(failure), _cell(failure["example"] or ABSENT), f"{failure['count']:,}"]
        for failure in summary["failures"]
    ]
    return [*lines, *_table(["failure", "for example", "n"], rows, left=2)] if rows else lines


def _tokens(summary: Mapping[str, Any]) -> list[str]:
    tokens, stalls = summary["tokens"], summary["stalls"]
    if tokens["source"] is None:
        return []
    asked = tokens["asked"]
    facts = [f"counted by {tokens['source']}"]
    facts += [
        f"{tokens[kind]:,} {kind}"
        for kind in ("input", "output", "reasoning", "cached")
        if tokens[kind] is not None
    ]
    if asked["input_asked"] is not None and asked["input_deviation_p50"] is not None:
        facts.append(f"input lengths off by {percent(asked['input_deviation_p50'])} (median)")
    if asked["short_output_share"] is not None:
        facts.append(f"{percent(asked['short_output_share'])} of outputs shorter than asked")
    if asked["long_output_share"]:
        facts.append(f"{percent(asked['long_output_share'])} longer")
    if tokens["per_event"] is not None:
        facts.append(f"{significant(tokens['per_event'])} tokens per event")
    lines = ["## Tokens", "", "; ".join(facts) + ".", ""]
    if came := stream_words(summary["streams"]):
        lines += [f"Streams: {came}.", ""]
    if stalls["longest_s"] is not None:
        limit = duration(stalls["limit_s"])
        stalled = f"{stalls['count']:,} gaps above {limit} in {stalls['requests']:,} requests"
        lines += [f"Stalls: {stalled}; the longest gap {duration(stalls['longest_s'])}.", ""]
    reasons = ", ".join(f"{count:,} {name}" for name, count in tokens["finish_reasons"].items())
    return [*lines, f"Finish reasons: {reasons}.", ""] if reasons else lines


def _tenants(summary: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, part in summary["by_tenant"].items():
        cells = [duration(part["metrics"][metric]["p95"]) for metric in ("ttft", "tpot", "e2e")]
        rows.append(
            [_cell(name), *cells, f"{part['counts'].get('ok', 0):,}", f"{part['counts']['measured']:,}"]
        )
    header = ["tenant", "TTFT p95", "TPOT p95", "E2E p95", "ok", "n"]
    return ["## Tenants", "", *_table(header, rows)] if rows else []
