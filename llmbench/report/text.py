"""Numbers as people read them: three significant digits, the unit that fits. No colour, no layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbench.metrics import WHOLE
from llmbench.trust.streams import block_words

ABSENT = "-"
METRIC_NAMES = {
    "ttft": "TTFT",
    "ttft_due": "TTFT from due",
    "time_to_first_answer": "first answer",
    "tpot": "TPOT",
    "itl": "ITL",
    "chunk_gap": "chunk gap",
    "e2e": "E2E",
    "e2e_due": "E2E from due",
    "normalized_latency": "E2E per token",
    "send_lag": "send lag",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
}


def significant(value: float, digits: int = 3) -> str:
    """182, 21.4, 2.91, 0.0312, 1,234: at least so many significant digits, thousands grouped."""
    if value == 0:
        return "0"
    whole = len(str(int(abs(round(value, 6)))))
    if abs(value) >= 1:
        decimals = max(0, digits - whole)
        text = f"{value:,.{decimals}f}"
        # 9.996 rounds to 10.00: one digit more than asked for.
        return (
            f"{value:,.{max(0, decimals - 1)}f}" if len(text.replace(",", "").split(".")[0]) > whole else text
        )
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def unit_of(value_s: float | None) -> str:
    """The unit a duration is shown in: ms below a second, s from there on."""
    return "ms" if value_s is None or abs(value_s) < 1 else "s"


def duration(value_s: float | None, unit: str | None = None, *, with_unit: bool = True) -> str:
    """341 ms, 2.91 s; a dash where there is none."""
    if value_s is None:
        return ABSENT
    unit = unit or unit_of(value_s)
    number = significant(value_s * 1e3 if unit == "ms" else value_s)
    return f"{number} {unit}" if with_unit else number


def exact_duration(value_s: float) -> str:
    """A figure that somebody chose: 500 ms, 1.5 s, without padding."""
    return f"{value_s * 1e3:.6g} ms" if value_s < 1 else f"{value_s:.6g} s"


def exact_rate(value: float) -> str:
    """A rate that somebody chose, or that follows from it: 4/s, 21.62/s."""
    return f"{float(f'{value:.4g}'):,.6g}/s"


def is_rate(check: Mapping[str, Any]) -> bool:
    """Whether a check is about a throughput."""
    return bool(check["stat"] == "rate" or check["metric"] == "throughput")


def percent(share: float | None) -> str:
    """97.9 %; a dash where there is none. Never rounded up to 100 or down to 0."""
    if share is None:
        return ABSENT
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    text = f"{share * 100:.1f}".removesuffix(".0")
    return f"{text} %"


def rate(value: float | None) -> str:
    """3.98/s."""
    return ABSENT if value is None else f"{significant(value)}/s"


def rates_line(summary: Mapping[str, Any]) -> str:
    """3.98/s of 4.02/s: what was achieved and what was offered, in the same window.

    Where the window lasts until the last answer, nothing was offered for a part of it, and it says so.
    """
    achieved, offered = (summary["throughput"][f"{kind}requests_per_s"] for kind in ("", "offered_"))
    if offered is None:
        return rate(achieved)
    is_whole = summary["window"]["kind"] == WHOLE
    return f"{rate(achieved)} {'until the last answer' if is_whole else f'of {rate(offered)}'}"


def interval(ends: list[float] | None, unit: str) -> str:
    """318 to 377, in the unit of the value it stands beside."""
    if not ends:
        return ""
    low, high = (duration(end, unit, with_unit=False) for end in ends)
    return f"{low} to {high}"


def limit_text(check: Mapping[str, Any]) -> str:
    """As the scenario says it: ttft p95 ≤ 500 ms."""
    sign = "≥" if check["higher_is_better"] else "≤"
    stat = "" if check["stat"] in ("share", "rate") else f" {check['stat']}"
    return f"{check['metric']}{stat} {sign} {_stated(check)}"


def _stated(check: Mapping[str, Any]) -> str:
    """The limit as the scenario states it: all its digits, no more."""
    if check["stat"] == "share":
        return f"{check['limit'] * 100:.6g} %"
    if is_rate(check):
        return exact_rate(check["limit"])
    return exact_duration(check["limit"])


def quantity(check: Mapping[str, Any], value: float | None, *, with_unit: bool = True) -> str:
    """A value of the kind that a check is about: a share, a rate or a duration."""
    if value is None:
        return ABSENT
    if check["stat"] == "share":
        return percent(value) if with_unit else percent(value).removesuffix(" %")
    if is_rate(check):
        return rate(value)
    # one unit a line: that of what was observed, so that its interval reads beside it
    return duration(value, unit_of(check["observed"]), with_unit=with_unit)


def check_interval(check: Mapping[str, Any]) -> str:
    """The interval of the observed value, without a unit; empty where there is none."""
    if check["low"] is None or check["high"] is None:
        return ""
    low, high = (quantity(check, check[end], with_unit=False) for end in ("low", "high"))
    return f"{low} to {high}"


def needed_text(check: Mapping[str, Any]) -> str:
    """How far off a decision is (about 310 more), or why it will not come; empty where there is one."""
    if check.get("not_measurable"):
        return f"not measurable: {check['not_measurable']}"
    needed = check["needed_requests"]
    return "" if needed is None else f"about {needed:,} more"


def failure_name(failure: Mapping[str, Any]) -> str:
    """In a word or two: http 503, timeout, truncated, dropped."""
    if failure["http_status"] is not None:
        return f"http {failure['http_status']}"
    if failure["outcome"] == "bad_stream" and failure["error_kind"]:
        return str(failure["error_kind"]).replace("_", " ")
    return str(failure["outcome"]).replace("_", " ")


def outcome_words(summary: Mapping[str, Any]) -> str:
    """245 ok, 1 timeout, 1 http 503."""
    words = [f"{summary['counts']['measured_outcomes'].get('ok', 0):,} ok"]
    words += [f"{failure['count']:,} {failure_name(failure)}" for failure in summary["failures"]]
    shown = sum(failure["count"] for failure in summary["failures"])
    rest: int = summary["counts"]["measured"] - summary["counts"]["measured_outcomes"].get("ok", 0) - shown
    return ", ".join(words + ([f"{rest:,} others"] if rest > 0 else []))


def failure_examples(summary: Mapping[str, Any], most: int) -> list[str]:
    """One message for each of the most frequent kinds of failure, with its kind where it does not say so."""
    lines = []
    for failure in summary["failures"][:most]:
        name, example = failure_name(failure), failure["example"] or ""
        lines.append(example if example.lower().startswith(name) else f"{name}: {example}".rstrip(": "))
    return lines


def gate_words(gate: Mapping[str, Any]) -> list[tuple[str, int]]:
    """How many checks came out each way, the gravest first."""
    found = [check["status"] for check in gate["checks"]]
    return [(status, found.count(status)) for status in ("FAIL", "INCONCLUSIVE", "PASS") if status in found]


def verdict_words(status: str) -> str:
    """What a verdict asks of the reader."""
    return {"INVALID": "do not use these numbers", "SUSPECT": "read these numbers with care"}.get(status, "")


def stream_words(streams: Mapping[str, Any]) -> str:
    """How the output came, where not a token at a time; empty where it did, or nothing is known."""
    kind, shares = streams["kind"], streams["shares"]
    at_once = streams["tokens_at_a_time"]
    match kind:
        case None | "tokens":
            return ""
        case "one_piece":
            return "in one piece at the end"
        case "at_once":
            return "at once, too fast to see the tokens apart"
        case "blocks":
            return block_words(streams["blocks"])
        case "intervals":
            size = streams["tokens_per_event"]["interval"]
            return f"an event every {size} tokens: ITL is an average over {size}"
        case "speculative":
            return f"{significant(at_once)} tokens at a time, in varying number (speculative decoding?)"
    names = {
        "one_piece": "in one piece",
        "at_once": "at once",
        "tokens": "a token at a time",
        "intervals": "some tokens an event",
    }
    names |= {"blocks": "in blocks", "speculative": "some tokens at a time"}
    return ", ".join(f"{percent(share)} {names[name]}" for name, share in shares.items())


def title_line(summary: Mapping[str, Any]) -> list[str]:
    """Name, target, model: the parts that are known."""
    run = summary["run"]
    model = run["model"] or ""
    if run["server"]:
        model = f"{model} ({run['server']})".strip()
    return [part for part in (summary["name"], run["target"], model) if part]


def plan_line(summary: Mapping[str, Any]) -> list[str]:
    """The load in words, how many requests were measured, the seed."""
    run, measured = summary["run"], summary["counts"]["measured"]
    load = run["load"] or ("open loop" if run["open_loop"] else "closed loop")
    seed = "" if run["seed"] is None else f", seed {run['seed']}"
    # What follows three spaces was planned; how many there were is known by now.
    return [load.split("   ")[0], f"{measured:,} {'request' if measured == 1 else 'requests'}{seed}"]
