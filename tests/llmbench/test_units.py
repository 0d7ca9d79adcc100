"""Quantities with units: read exactly, written back losslessly, refused with a remedy."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.scenario.units import (
    Money,
    format_duration,
    format_money,
    format_rate,
    format_share,
    parse_duration,
    parse_latency,
    parse_money,
    parse_rate,
    parse_share,
)

SANE = st.floats(min_value=0, max_value=1e9, allow_subnormal=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("0.5s", 0.5),
        ("2s", 2.0),
        (" 2 s ", 2.0),
        ("1m", 60.0),
        ("1min", 60.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("250us", 250e-6),
        ("250µs", 250e-6),
        ("250μs", 250e-6),
        ("10ns", 10e-9),
        ("1m30s", 90.0),
        ("1h 2m 3s", 3723.0),
        ("1e3ms", 1.0),
        (".5s", 0.5),
        ("0s", 0.0),
        ("0.1s", 0.1),
    ],
)
def test_a_duration_is_read_exactly(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "per_second"),
    [
        ("8/s", 8.0),
        ("30/m", 0.5),
        ("30/min", 0.5),
        ("100/h", 100 / 3600),
        ("0.25 / s", 0.25),
        ("1e3/s", 1000.0),
    ],
)
def test_a_rate_is_read_per_second(text: str, per_second: float) -> None:
    assert parse_rate(text) == per_second


@pytest.mark.parametrize(("text", "share"), [("95%", 0.95), ("0%", 0.0), ("100 %", 1.0), ("0.5%", 0.005)])
def test_a_share_is_read_from_percent(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("parse", "wrong", "message"),
    [
        (parse_latency, 500, "no unit; write 500ms or 0.5s"),
        (parse_latency, "500", "no unit; write 500ms or 0.5s"),
        (parse_latency, 0.2, "no unit; write 0.2s or 200ms"),
        (parse_duration, 60, "no unit; write 60s or 1m"),
        (parse_duration, 7, "no unit; write 7s"),
        (parse_duration, "5 sec", "unknown unit sec; write ns, us, ms, s, m or h, as in 500ms"),
        (parse_duration, "soon", "not a duration; write 500ms, 2s, 1m or 1h"),
        (parse_duration, "2s soon", "not a duration; write 500ms, 2s, 1m or 1h"),
        (parse_duration, "-2s", "a duration cannot be negative"),
        (parse_duration, "", "write a duration such as 500ms, 2s or 1m"),
        (parse_duration, [2], "not a duration such as 500ms, 2s or 1m"),
        (parse_duration, True, "not a duration such as 500ms, 2s or 1m"),
        (parse_duration, float("inf"), "no unit; write 500ms, 2s or 1m"),
        (parse_rate, 4, "no unit; write 4/s (requests per second)"),
        (parse_rate, "4", "no unit; write 4/s (requests per second)"),
        (parse_rate, "8 rps", "not a rate; write 8/s"),
        (parse_rate, "8 req/s", "not a rate; write 8/s"),
        (parse_rate, "8/d", "unknown unit /d; write 8/s, 8/m or 8/h"),
        (parse_rate, "fast", "not a rate; write 8/s, 30/m or 100/h"),
        (parse_rate, "-1/s", "a rate cannot be negative"),
        (parse_share, 95, "no unit; write 95%"),
        (parse_share, 0.95, "no unit; write 95%"),
        (parse_share, "0.95", "no unit; write 95%"),
        (parse_share, "101%", "a share is at most 100%"),
        (parse_share, "-1%", "a share cannot be negative"),
        (parse_share, "most", "not a share; write 95% or 0.5%"),
        (parse_money, 3.5, "no currency; write 3.5 USD"),
        (parse_money, "$3.50", "not an amount; write 3.50 USD (amount, then currency code)"),
        (parse_money, "3.50 usd", "not an amount; write 3.50 USD (amount, then currency code)"),
    ],
)
def test_a_wrong_quantity_is_refused_with_the_remedy(parse, wrong, message) -> None:
    with pytest.raises(ValueError) as caught:
        parse(wrong)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "500ms"),
        (0, "0s"),
        (60.0, "60s"),
        (120.0, "120s"),
        (300.0, "5m"),
        (7200.0, "2h"),
        (1.5, "1.5s"),
        (250e-6, "250us"),
        (90.0, "90s"),
        (5e-9, "5ns"),
    ],
)
def test_a_duration_is_written_as_people_write_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(8.0, "8/s"), (0.5, "0.5/s"), (100 / 3600, "100/h"), (1 / 60, "1/m")]
)
def test_a_rate_is_written_in_its_shortest_unit(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_money_keeps_two_decimals() -> None:
    assert format_money(parse_money("3.5 USD")) == "3.50 USD"
    assert parse_money("0.125 EUR") == Money(0.125, "EUR")
    assert format_money(Money(0.125, "EUR")) == "0.125 EUR"


@given(SANE)
def test_writing_and_reading_a_duration_loses_nothing(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(SANE)
def test_writing_and_reading_a_rate_loses_nothing(per_second: float) -> None:
    assert parse_rate(format_rate(per_second)) == per_second


@given(st.floats(min_value=0, max_value=1, allow_subnormal=False))
def test_writing_and_reading_a_share_loses_nothing(share: float) -> None:
    assert parse_share(format_share(share)) == share


@given(st.one_of(st.text(max_size=80), st.integers(), st.floats(), st.none(), st.booleans(), st.binary()))
def test_whatever_is_given_the_only_error_is_a_value_error(value: object) -> None:
    for parse in (parse_duration, parse_latency, parse_rate, parse_share, parse_money):
        with contextlib.suppress(ValueError):
            parse(value)
