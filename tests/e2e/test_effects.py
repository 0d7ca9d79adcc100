"""Each technique of the engine has its effect, in small versions of the bundled scenarios.

Where it can be, the proof is a count (sequences at the same time, tokens found in a cache), which holds on
the slowest machine; where it must be a time, the two sides lie far apart.
"""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from llmbench.scenario.bundled import bundled_scenarios
from llmbench.scenario.load import check_files
from tests.benchmarks import effects
from tests.benchmarks.effects import EFFECTS, Effect, Run

README = Path(__file__).parents[2] / "README.md"
NAMES = [effect.scenario for effect in EFFECTS]


def effect_named(name: str) -> Effect:
    return next(effect for effect in EFFECTS if effect.scenario == name)


def on_and_off(name: str, *smaller: str) -> tuple[Run, Run]:
    effect = effect_named(name)
    on, off = (
        effects.replay(name, [*effect.settings(value, "tiny"), *smaller]) for value in (effect.on, effect.off)
    )
    for run in (on, off):
        assert run.measured.any()
        assert run.summary["errors"]["share"] == 0
    return on, off


def header_commands(name: str) -> list[list[str]]:
    """The commands in a scenario's first comment, as words."""
    text = bundled_scenarios()[name].read_text(encoding="utf-8").partition("\nname:")[0]
    joined = "\n".join(line.removeprefix("#") for line in text.splitlines()).replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.strip().startswith("llmbench run")]


def settings_of(command: list[str]) -> list[str]:
    return [word for before, word in pairwise(command) if before == "--set"]


def test_there_is_an_effect_for_every_scenario_named_so():
    assert sorted(NAMES) == sorted(name for name in bundled_scenarios() if name.startswith("effect-"))


@pytest.mark.parametrize("effect", EFFECTS, ids=NAMES)
def test_a_scenarios_header_says_the_commands_that_are_measured(effect):
    plain, switched, larger = header_commands(effect.scenario)
    assert plain == ["llmbench", "run", effect.scenario]
    assert settings_of(switched) == effect.settings(effect.off, "tiny")
    assert settings_of(larger) == effect.settings(effect.on, "smollm2-135m")[1:]


@pytest.mark.parametrize("effect", EFFECTS, ids=NAMES)
def test_the_readme_names_the_command_that_turns_it_off(effect):
    command = f"`llmbench run {effect.scenario} --set {effect.switch}={effect.off}`"
    assert command in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("model", ["tiny", "smollm2-135m"])
@pytest.mark.parametrize("effect", EFFECTS, ids=NAMES)
def test_both_sides_validate_and_the_file_itself_is_the_one_that_is_on(effect, model):
    file = bundled_scenarios()[effect.scenario]
    for value in (effect.on, effect.off):
        (check,) = check_files([file], env={}, sets=effect.settings(value, model))
        assert check.message == ""
    (as_it_is,) = check_files([file], env={})
    (set_on,) = check_files([file], env={}, sets=effect.settings(effect.on, "tiny"))
    assert as_it_is.scenario == set_on.scenario


@pytest.mark.alone
@pytest.mark.slow  # two engines
def test_without_a_cache_the_time_for_a_token_grows_with_the_length():
    on, off = on_and_off("effect-kv-cache", "load.requests=2", "workload.output_tokens=224")
    growth, growth_without = (effects.last_gaps(run) / effects.first_gaps(run) for run in (on, off))
    assert growth_without > 1.5
    assert growth_without > 1.5 * growth


@pytest.mark.alone
@pytest.mark.slow  # two engines
def test_a_static_batch_keeps_places_empty():
    on, off = on_and_off(
        "effect-batching", "load.duration=4s", "load.warmup=1s", "workload.output_tokens.uniform.max=64"
    )
    assert effects.most_decoding(on) == 16
    assert effects.mean_decoding(off) < 0.75 * effects.mean_decoding(on)


@pytest.mark.alone
@pytest.mark.slow  # two engines
def test_a_shared_prefix_is_found_and_saves_the_time_to_compute_it():
    on, off = on_and_off("effect-prefix-caching", "load.requests=10")
    assert effects.cached_share(on) > 0.5
    assert effects.cached_share(off) == 0
    assert on.summary["metrics"]["ttft"]["p50"] < 0.67 * off.summary["metrics"]["ttft"]["p50"]


@pytest.mark.alone
@pytest.mark.slow  # two engines
def test_chats_go_on_while_a_long_prompt_is_computed_in_pieces():
    on, off = on_and_off("effect-chunked-prefill", "load.duration=6s")
    meanwhile, meanwhile_whole = (effects.tokens_meanwhile(run) for run in (on, off))
    assert meanwhile > 1.5 * meanwhile_whole
    worst = effects.longest_of_a_stream("chat")
    assert worst(on) < worst(off)


@pytest.mark.alone
@pytest.mark.slow  # two engines
def test_more_sequences_fit_into_blocks_than_into_slabs():
    on, off = on_and_off("effect-paging", "load.duration=4s", "load.warmup=1s")
    assert effects.most_decoding(on) >= 12
    # Four slabs; a client that is held up for a step may see a fifth begin before it sees the first end.
    assert effects.most_decoding(off) <= 6
    assert effects.mean_decoding(off) <= 4.5
