"""Scenario files as text: YAML's traps, encodings, the environment, --set, bundled names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llmbench.errors import ScenarioError
from llmbench.scenario.bundled import bundled_scenarios, find_scenario
from llmbench.scenario.load import check_files, load_scenario
from llmbench.scenario.source import decode, override, read_yaml

GOOD = """\
name: chat
target:
  url: http://127.0.0.1:8000
load: {arrivals: poisson, rate: 4/s, duration: 60s}
workload: {kind: synthetic, input_tokens: 512, output_tokens: 128}
"""


def flaws(text: str, env: dict[str, str] | None = None) -> list[str]:
    return [f"{flaw.place.line}: {flaw.text}" for flaw in read_yaml(text, env or {}).flaws]


def mistakes(file: Path, *sets: str, **env: str) -> list[str]:
    (check,) = check_files([file], sets, env)
    return [f"{item.where} | {item.key} | {item.text}" for item in check.mistakes]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    file = tmp_path / "chat.yaml"
    file.write_text(GOOD, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("1e3", 1000.0),
        ("1_000", 1000),
        ("010", 10),
        ("0x10", 16),
        ("0o17", 15),
        ("+7", 7),
        (".5", 0.5),
        ("12:30:00", "12:30:00"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("'7'", "7"),
        ("=", "="),
        ("9" * 500, "9" * 500),
        ("50%", "50%"),
        ("8/s", "8/s"),
    ],
)
def test_scalars_follow_yaml_1_2(written: str, value: object) -> None:
    read = read_yaml(f"k: {written}", {}).tree["k"]
    assert read == value
    assert isinstance(read, type(value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", "2: duplicate key (first on line 1); remove one"),
        ("a:\n\tb: 1\n", "2: a tab; YAML is indented with blanks"),
        ("a: b: c\n", "1: a second colon in one line, or wrong indentation; quote the value"),
        ("a: 1\nb\nc: 2\n", "3: a key without a colon, or wrong indentation"),
        ("a: *b\n", "1: an alias (*) without its anchor (&); quote the value if the * is meant"),
        ("a: 1\n---\nb: 2\n", "2: a second document (---); keep one scenario in a file"),
        ("a: !!python/object:os.system x\n", "1: the tag !!python/object:os.system has no meaning"),
        ("a: !secret x\n", "1: the tag !secret has no meaning here; remove it"),
        ("? [a, b]\n: c\n", "1: a key must be text; quote a key that begins with { or ["),
        ("a: \x07\n", "1: character U+0007 is not allowed in YAML"),
        ("a: &x [*x]\n", "1: nested too deeply or too large (an alias inside its own anchor?)"),
        ("[" * 600, "1: nested too deeply"),
        ("a: {b: 1\n", "2: a mapping { that is never closed, or a value with { or } to be quoted"),
        ("<<: 3\n", "1: << merges mappings only; write << : *anchor"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(text: str, expected: str) -> None:
    (flaw,) = flaws(text)
    assert flaw.startswith(expected)


def test_aliases_that_multiply_without_end_are_cut_off_soon() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    start = time.monotonic()
    assert any("nested too deeply or too large" in flaw for flaw in flaws("\n".join(levels)))
    assert time.monotonic() - start < 20


def test_anchors_and_merges_are_expanded() -> None:
    tree = read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\n", {}).tree
    assert tree["b"] == {"x": 1, "y": 3}
    assert tree["c"] == {"x": 1, "y": 2}


def test_every_value_knows_line_and_column() -> None:
    document = read_yaml("a:\n  b: [1, {c: 2}]\n", {})
    places = {path: (place.line, place.column) for path, place in document.places.items()}
    assert places["a", "b"] == (2, 3)
    assert places["a", "b", 0] == (2, 7)
    assert places["a", "b", 1, "c"] == (2, 11)
    assert document.place(("a", "b", 1, "zzz")).column == 10


def test_utf_8_is_read_with_or_without_a_mark_and_nothing_else_is(good: Path) -> None:
    text = GOOD.replace("name: chat", "name: chat\ndescription: größe 你")
    for encoding in ("utf-8", "utf-8-sig"):
        good.write_bytes(text.encode(encoding))
        assert load_scenario(good, env={}).description == "größe 你"
    good.write_bytes(text.encode("latin-1", "replace"))
    assert mistakes(good) == ["line 2 |  | byte 0xF6 at offset 26 is not UTF-8; save the file as UTF-8"]
    assert decode(b"ok") == ("ok", None)


def test_windows_line_ends_are_line_ends(good: Path) -> None:
    good.write_bytes(GOOD.replace("\n", "\r\n").replace("4/s", "4").encode())
    assert mistakes(good) == ["line 4 | load.rate: 4 | no unit; write 4/s (requests per second)"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("# only\n# comments\n", "the file holds comments only"),
        ("- a\n", "a scenario is a mapping"),
        ("x\n", "a scenario is a"),
    ],
)
def test_a_file_without_a_mapping_says_so(good: Path, content: str, message: str) -> None:
    good.write_text(content)
    (mistake,) = mistakes(good)
    assert message in mistake


@pytest.mark.parametrize(
    ("written", "env", "value"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("pre-${A}-${B:-z}", {"A": "x"}, "pre-x-z"),
        ("${A:-}", {}, None),
        ("${A:-d}", {"A": ""}, "d"),
        ("${A}", {"A": "16"}, 16),
        ("'${A}'", {"A": "16"}, "16"),
        ("$${A}", {"A": "x"}, "${A}"),
        ("$A $ {A}", {"A": "x"}, "$A $ {A}"),
        ("{k: ${A}, l: ${B:-a, b}}", {"A": "x: ]"}, {"k": "x: ]", "l": "a, b"}),
        ("${A}", {"A": "# no comment: {"}, "# no comment: {"),
        ("${A:-http://h:1/?a=b#c}", {}, "http://h:1/?a=b#c"),
    ],
)
def test_variables_are_expanded_as_text_that_cannot_change_the_yaml(written, env, value) -> None:
    document = read_yaml(f"k: {written}", env)
    assert document.flaws == []
    assert document.tree["k"] == value


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${A}", "1: A is not set; export A=…, or write ${A:-default}"),
        ("${1A}", "1: not a reference; write ${NAME}, ${NAME:-default}, or $${ for a literal ${"),
        ("${A-b}", "1: not a reference; write ${NAME}, ${NAME:-default}, or $${ for a literal ${"),
        ('"${A"', "1: not a reference; write ${NAME}, ${NAME:-default}, or $${ for a literal ${"),
    ],
)
def test_a_wrong_reference_is_a_mistake(written: str, expected: str) -> None:
    assert flaws(f"k: {written}") == [expected]


def test_unset_variables_and_other_mistakes_are_reported_together(good: Path) -> None:
    good.write_text(GOOD.replace("4/s", "4").replace("http://127.0.0.1:8000", "${URL}"))
    assert mistakes(good) == [
        "line 3 | target.url: ${URL} | URL is not set; export URL=…, or write ${URL:-default}",
        "line 4 | load.rate: 4 | no unit; write 4/s (requests per second)",
    ]


def test_names_keys_and_headers_keep_their_digits(good: Path) -> None:
    good.write_text(
        GOOD.replace("  url", "  api_key: ${K}\n  model: 0123\n  headers: {X-A: 1_0, X-B: on}\n  url")
    )
    target = load_scenario(good, env={"K": "00123456"}).target
    assert target.api_key is not None
    assert target.api_key.get_secret_value() == "00123456"
    assert target.model == "0123"
    assert target.headers == {"X-A": "1_0", "X-B": "on"}


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("load.rate=8/s", lambda s: s.load.rate_per_s, 8.0),
        (
            "target.body={temperature: 0, stop: [a]}",
            lambda s: s.target.body,
            {"temperature": 0, "stop": ["a"]},
        ),
        ("target.headers.X-A=b: c # d", lambda s: s.target.headers, {"X-A": "b: c # d"}),
        ("target.headers.'X.A'=b", lambda s: s.target.headers, {"X.A": "b"}),
        ("target.api_key=", lambda s: s.target.api_key, None),
        ("target.model='7'", lambda s: s.target.model, "7"),
        ("target.url=http://h/?a=b", lambda s: s.target.url, "http://h?a=b"),
        ("slo.ttft.p95=1s", lambda s: s.slo.limits[0].limit, 1.0),
        ('slo.ttft."p99.9"=1s', lambda s: s.slo.limits[0].stat, "p999"),
        (
            "workload.input_tokens={uniform: {min: 1, max: 2}}",
            lambda s: s.workloads[0].input_tokens.shape,
            "uniform",
        ),
        ("name=${N}", lambda s: s.name, "from-env"),
        ("target.headers={X-A: b}", lambda s: s.target.headers, {"X-A": "b"}),
    ],
)
def test_a_setting_replaces_a_value(good: Path, setting, read, value) -> None:
    assert read(load_scenario(good, [setting], env={"N": "from-env"})) == value


def test_settings_reach_into_lists() -> None:
    document = read_yaml("load: {stages: [{rate: 1/s}, {rate: 2/s}]}", {})
    for setting in (
        "load.stages[0].rate=5/s",
        "load.stages.1.rate=6/s",
        "load.stages[2]={rate: 7/s}",
        "a[0].b=1",
    ):
        override(document, setting, {})
    assert document.flaws == []
    assert document.tree == {
        "load": {"stages": [{"rate": "5/s"}, {"rate": "6/s"}, {"rate": "7/s"}]},
        "a": [{"b": 1}],
    }


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("load.rate=8", "--set | load.rate: 8 | no unit; write 8/s (requests per second)"),
        ("loda.rate=8/s", "--set | loda | unknown key; did you mean load?"),
        ("load.raet=8/s", "--set | load.raet: 8/s | unknown key; did you mean rate?"),
        ("rate=8/s", "--set | rate: 8/s | unknown key here; rate belongs under load"),
        ("foo", "--set | foo | write path=value, as in --set load.rate=8/s"),
        ("=3", "--set | =3 | write path=value, as in --set load.rate=8/s"),
        ("load..rate=3", "--set | load..rate=3 | write path=value, as in --set load.rate=8/s"),
        (
            "target.url.x=3",
            "--set | target.url: 3 | is a single value in the file; nothing can be set below it",
        ),
        ("target.body={a: [}", "--set | target.body | not YAML"),
        ("target.api_key=${K}", "--set | target.api_key: ${K} | K is not set"),
    ],
)
def test_a_mistake_in_a_setting_is_said_to_come_from_it(good: Path, setting: str, expected: str) -> None:
    (mistake,) = mistakes(good, setting)
    assert mistake.startswith(expected)


def test_an_index_beyond_a_list_is_refused(good: Path) -> None:
    good.write_text(GOOD.replace("rate: 4/s, duration: 60s", "stages: [{rate: 1/s, for: 2s}]"))
    assert mistakes(good, "load.stages[3].for=1s") == [
        "--set | load.stages.3: 1s | is a list of 1; write an index from 0 to 1"
    ]
    assert mistakes(good, "load.stages.last.for=1s") == [
        "--set | load.stages.last: 1s | is a list of 1; write an index from 0 to 1"
    ]


def test_a_url_from_the_command_line_takes_the_engines_place(good: Path) -> None:
    good.write_text(GOOD.replace("url: http://127.0.0.1:8000", "engine: {model: tiny}"))
    target = load_scenario(good, env={}, url="http://h:1/v1/chat/completions").target
    assert (target.url, target.engine) == ("http://h:1/v1", None)
    with pytest.raises(
        ScenarioError, match=r"--url\s+target\.url: h\s+no scheme; write https://h, or http://h"
    ):
        load_scenario(good, env={}, url="h")


def test_a_scenario_without_a_name_takes_its_files(tmp_path: Path) -> None:
    file = tmp_path / "_mein täst!.yaml"
    file.write_text(GOOD.replace("name: chat\n", ""))
    assert load_scenario(file, env={}).name == "mein täst-"


def test_every_bundled_scenario_validates_and_is_found_by_name() -> None:
    files = bundled_scenarios()
    assert "quickstart" in files
    for check in check_files(files, env={}):
        assert check.message == ""
        assert check.warning_message == ""
        assert check.scenario is not None
        assert check.scenario.name == check.label
        assert check.scenario.description


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("quickstrat", r"named 'quickstrat'; did you mean quickstart\?\nBundled: .*quickstart"),
        ("nothing-like-it", r"named 'nothing-like-it'\nBundled: "),
        ("absent/quickstart.yaml", r"absent/quickstart.yaml: no such file; did you mean quickstart\?"),
        (".", r"\. is a folder"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one_and_the_list(name: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        find_scenario(name)
