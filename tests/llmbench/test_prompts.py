"""Prompts: the same by seed and index, new with every salt, shared where sharing is asked for, given ones
verbatim.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.errors import UsageError
from llmbench.scenario.model import Scenario
from llmbench.workload.data import load_data, parse_prompts
from llmbench.workload.fit import stated_fit
from llmbench.workload.prompts import RequestSpec, make_workload, prompt_set_hash
from llmbench.workload.prose import Story, Tags
from llmbench.workload.vocabulary import CORE, VOCABULARY

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SYNTHETIC = {"kind": "synthetic", "input_tokens": {"uniform": {"min": 30, "max": 90}}, "output_tokens": 5}


def scenario(*workloads, seed=7, **target) -> Scenario:
    return Scenario.model_validate(
        {
            "target": {"url": "http://localhost", **target},
            "load": {"arrivals": "closed", "concurrency": 1, "requests": 1},
            "workloads": list(workloads),
            "seed": seed,
        }
    )


def source(*workloads, salt="one", seed=7, scenario_dir=None, **target):
    made = scenario(*workloads, seed=seed, **target)
    return make_workload(made, load_data(made, scenario_dir), salt=salt)


def text(spec: RequestSpec) -> str:
    """Everything the model reads, in order."""
    if spec.prompt is not None:
        return spec.prompt
    return "\n".join(message["content"] for message in spec.messages)


def shared_words(one: str, other: str) -> int:
    """How many words two texts begin with in common."""
    count = 0
    for left, right in zip(one.split(), other.split(), strict=False):
        if left != right:
            break
        count += 1
    return count


PREFIX = {"prefix": {"tokens": 60, "groups": 4}}


class TestDeterminism:
    @given(indices=st.lists(st.integers(0, 5000), min_size=1, max_size=3), seed=st.integers(0, 2**32))
    @settings(deadline=None, max_examples=10)
    def test_a_request_depends_on_seed_salt_and_index_alone(self, indices, seed):
        workloads = (
            {**SYNTHETIC, "prefix": {"tokens": 10, "groups": 3}},
            {**SYNTHETIC, "tenant": "b", "weight": 2.0},
        )
        alone = [source(*workloads, seed=seed).spec(index) for index in indices]
        together = source(*workloads, seed=seed)
        assert [together.spec(index) for index in reversed(indices)] == alone[::-1]
        assert [together.spec(index) for index in indices] == alone

    def test_another_seed_makes_other_lengths_and_texts(self):
        one, other = source(SYNTHETIC), source(SYNTHETIC, seed=8)
        assert [one.spec(i).input_tokens_asked for i in range(20)] != [
            other.spec(i).input_tokens_asked for i in range(20)
        ]
        assert text(one.spec(0)) != text(other.spec(0))

    def test_lengths_are_drawn_from_the_distribution_and_do_not_depend_on_the_salt(self):
        one, other = source(SYNTHETIC, salt="one"), source(SYNTHETIC, salt="two")
        lengths = [one.spec(i).input_tokens_asked for i in range(500)]
        assert lengths == [other.spec(i).input_tokens_asked for i in range(500)]
        assert (min(lengths), max(lengths)) == (30, 90)
        assert {one.spec(i).output_tokens_asked for i in range(500)} == {5}


class TestUniqueness:
    @pytest.mark.parametrize("vocabulary", [VOCABULARY, CORE], ids=["whole", "core"])
    def test_tags_of_unlike_numbers_are_unlike(self, vocabulary):
        fit = stated_fit()
        tags = Tags(
            type(fit)(
                source="estimate", method="stated", vocabulary=vocabulary, overhead_tokens=0, per_word=1
            ),
            salt="s",
            seed=1,
            purpose="t",
        )
        numbers = [*range(20_000), *range(3_900_000, 3_905_000)]
        assert len({tags.tag(number)[0] for number in numbers}) == len(numbers)

    def test_neighbours_differ_in_their_very_first_word(self):
        first_words = [
            text(source_spec).split()[0] for source_spec in map(source(SYNTHETIC).spec, range(100))
        ]
        assert len(set(first_words)) == 100

    def test_ten_thousand_prompts_are_all_different_within_their_first_words(self):
        specs = map(source({**SYNTHETIC, "input_tokens": 20}).spec, range(10_000))
        assert len({" ".join(text(spec).split()[:4]) for spec in specs}) == 10_000

    def test_a_prompt_too_short_for_a_tag_still_has_a_word(self):
        spec = source({**SYNTHETIC, "input_tokens": 1}).spec(0)
        assert len(text(spec).split()) == 1
        assert spec.input_tokens_asked == 1


class TestCache:
    @pytest.mark.parametrize("more", [{}, PREFIX, {"system": "Be brief."}, {**PREFIX, "system": "Be brief."}])
    def test_cold_shares_no_beginning_with_an_earlier_run(self, more):
        one, other = source({**SYNTHETIC, **more}), source({**SYNTHETIC, **more}, salt="two")
        earlier = [text(one.spec(i)) for i in range(60)]
        shared = [max(shared_words(text(other.spec(i)), old) for old in earlier) for i in range(60)]
        assert max(shared) <= 3  # a chance word or two of a tag; far below any cache block
        assert np.mean(shared) < 1.5

    def test_cold_differs_from_the_same_request_of_an_earlier_run_in_its_tag_only(self):
        one, other = source(SYNTHETIC).spec(3), source(SYNTHETIC, salt="two").spec(3)
        assert text(one).split()[4:] == text(other).split()[4:]
        assert text(one).split()[0] != text(other).split()[0]

    @pytest.mark.parametrize("more", [{}, PREFIX, {**PREFIX, "system": "Be brief."}])
    def test_warm_repeats_every_prompt(self, more):
        workload = {**SYNTHETIC, **more, "cache": "warm"}
        one, other = source(workload), source(workload, salt="two")
        assert [one.spec(i) for i in range(50)] == [other.spec(i) for i in range(50)]

    def test_mixed_repeats_system_and_prefix_and_nothing_behind_them(self):
        workload = {**SYNTHETIC, **PREFIX, "system": "Be brief.", "cache": "mixed"}
        one, other = source(workload), source(workload, salt="two")
        for index in range(50):
            left, right = one.spec(index).messages, other.spec(index).messages
            assert left[0] == right[0] == {"role": "system", "content": "Be brief."}
            shared = shared_words(left[1]["content"], right[1]["content"])
            assert 60 <= shared <= 62

    def test_groups_share_their_prefix_and_only_that(self):
        requests = source({**SYNTHETIC, **PREFIX})
        by_group: dict[int, list[str]] = {}
        for index in range(200):
            spec = requests.spec(index)
            by_group.setdefault(spec.prefix_group, []).append(text(spec))
            assert spec.input_tokens_asked >= 60 + 30
        assert set(by_group) == {0, 1, 2, 3}
        assert min(map(len, by_group.values())) > 25
        for texts in by_group.values():
            assert {shared_words(texts[0], later) for later in texts[1:]} <= {60, 61}
        assert shared_words(by_group[0][0], by_group[1][0]) <= 1

    def test_the_hash_is_of_the_unsalted_prompts(self):
        def hashed(*workloads, **more):
            made = scenario(*workloads, **more)
            return prompt_set_hash(made, load_data(made), num_requests=50)

        assert hashed(SYNTHETIC) == hashed({**SYNTHETIC, "cache": "warm"})
        others = [
            hashed(SYNTHETIC, seed=8),
            hashed({**SYNTHETIC, "output_tokens": 6}),
            hashed({**SYNTHETIC, "system": "Hi."}),
            hashed({**SYNTHETIC, "tenant": "a"}),
        ]
        assert len({hashed(SYNTHETIC), *others}) == 5


class TestFrames:
    def test_chat_and_responses_have_messages_and_completions_a_prompt(self):
        system = {**SYNTHETIC, "system": "Be brief.", "cache": "warm"}
        for api in ("chat", "responses"):
            spec = source(system, api=api).spec(0)
            assert spec.prompt is None
            assert [message["role"] for message in spec.messages] == ["system", "user"]
        spec = source(system, api="completions").spec(0)
        assert spec.messages is None
        assert spec.prompt.startswith("Be brief.\n\n")

    def test_text_is_words_of_the_vocabulary_in_clauses(self):
        words = text(source({**SYNTHETIC, "input_tokens": 100}).spec(0)).split()
        assert len(words) == 92  # eight tokens are the template's, as stated
        assert set(words) <= set(VOCABULARY.words)
        clause = words[4:12]
        assert clause[0] in VOCABULARY.determiners
        assert clause[2] in VOCABULARY.nouns
        assert clause[7] in VOCABULARY.conjunctions


@given(start=st.integers(0, 4095), num_words=st.integers(0, 200_000))
@settings(deadline=None, max_examples=60)
def test_a_story_goes_round_and_gives_exactly_the_words_asked_for(start, num_words):
    stretch, cost = STORY.stretch(start, float(num_words))
    assert len(stretch.split()) == cost == num_words
    assert "  " not in stretch


STORY = Story(stated_fit(), seed=1, purpose="story")


class TestMix:
    def test_workloads_come_in_proportion_to_their_weights(self):
        requests = source(
            {**SYNTHETIC, "tenant": "a", "weight": 1.0},
            {**SYNTHETIC, "tenant": "b", "weight": 3.0},
            {**SYNTHETIC, "tenant": "c", "weight": 6.0},
        )
        counts = Counter(requests.spec(index).tenant for index in range(4000))
        for tenant, share in (("a", 0.1), ("b", 0.3), ("c", 0.6)):
            assert abs(counts[tenant] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5

    def test_given_prompts_keep_their_order_within_a_mix(self):
        prompts = [f"Question {number}" for number in range(7)]
        requests = source({**SYNTHETIC, "tenant": "a"}, {"kind": "inline", "prompts": prompts, "tenant": "b"})
        specs = [requests.spec(index) for index in range(3000)]
        asked = [text(spec) for spec in specs if spec.workload == 1]
        assert asked == [prompts[number % 7] for number in range(len(asked))]


class TestGiven:
    def test_inline_prompts_are_sent_word_for_word_in_order_and_again(self):
        requests = source({"kind": "inline", "prompts": ["Say hi.", "Say bye."], "output_tokens": 9})
        assert [text(requests.spec(index)) for index in range(5)] == ["Say hi.", "Say bye."] * 2 + ["Say hi."]
        assert requests.spec(0).output_tokens_asked == 9
        assert requests.spec(0).input_tokens_asked is None

    def test_a_row_limits_its_own_answer(self, tmp_path):
        (tmp_path / "p.jsonl").write_text(
            '{"prompt": "a", "max_tokens": 3}\n{"prompt": "b", "output_tokens": 4}\n{"prompt": "c"}\n'
        )
        requests = source({"kind": "jsonl", "path": "p.jsonl", "output_tokens": 7}, scenario_dir=tmp_path)
        assert [requests.spec(index).output_tokens_asked for index in range(3)] == [3, 4, 7]

    def test_messages_pass_through_and_a_system_message_is_added_where_there_is_none(self, tmp_path):
        image = {"role": "user", "content": [{"type": "text", "text": "What is it?"}]}
        own = [{"role": "system", "content": "Mine."}, image]
        rows = [{"messages": [image]}, {"messages": own}]
        (tmp_path / "p.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        requests = source({"kind": "jsonl", "path": "p.jsonl", "system": "Be brief."}, scenario_dir=tmp_path)
        assert requests.spec(0).messages == ({"role": "system", "content": "Be brief."}, image)
        assert requests.spec(1).messages == tuple(own)
        with pytest.raises(UsageError, match="has messages, which target"):
            source({"kind": "jsonl", "path": "p.jsonl"}, scenario_dir=tmp_path, api="completions")

    def test_azure_rows_are_asked_for_in_order(self):
        requests = source(
            {"kind": "azure", "path": "azure-sample.csv", "max_input": 300, "max_output": 50},
            scenario_dir=SCENARIOS,
        )
        made = scenario({"kind": "azure", "path": "azure-sample.csv", "max_input": 300, "max_output": 50})
        trace = load_data(made, SCENARIOS).trace
        for index in (0, 1, 500, len(trace), len(trace) + 3):
            spec = requests.spec(index)
            assert spec.input_tokens_asked == trace.input_tokens[index % len(trace)] <= 300
            assert spec.output_tokens_asked == trace.output_tokens[index % len(trace)] <= 50
            assert len(text(spec).split()) == max(spec.input_tokens_asked - 8, 1)


class TestJsonl:
    def test_the_readmes_lines_are_prompts(self):
        readme = (SCENARIOS.parent / "README.md").read_text(encoding="utf-8")
        lines = readme.partition("```jsonl\n")[2].partition("```")[0].encode()
        first, second, third = parse_prompts(lines, "README.md")
        assert (first.prompt, second.max_tokens) == ("Say hello.", 32)
        assert third.messages is not None

    def test_blank_lines_bom_and_crlf_are_passed_over(self):
        content = b'\xef\xbb\xbf{"prompt":"a"}\n\n  \r\n{"prompt":"b"}\r\n'
        assert [row.prompt for row in parse_prompts(content, "p.jsonl")] == ["a", "b"]

    def test_unicode_line_separators_are_no_matter(self):
        content = '{"prompt": "a\u2028b"}\n'.encode()
        assert parse_prompts(content, "p.jsonl")[0].prompt == "a\u2028b"

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"{", "not JSON"),
            (b'{"prompt": NaN}', "not JSON"),
            (b'"hi"', "not a JSON object"),
            (b"[1]", "not a JSON object"),
            (b"{}", "needs one of prompt and messages; has none"),
            (b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}', "has prompt and messages"),
            (b'{"prompt": ""}', "prompt must be text"),
            (b'{"prompt": 3}', "prompt must be text"),
            (b'{"messages": []}', "at least one message"),
            (b'{"messages": {"role": "user"}}', "must be a list"),
            (b'{"messages": [{"role": "robot", "content": "a"}]}', "message 1 needs a role"),
            (
                b'{"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}',
                "message 2 has no content",
            ),
            (b'{"promt": "a"}', "unknown key 'promt', did you mean prompt?"),
            (b'{"prompt": "a", "max_token": 9}', "unknown key 'max_token', did you mean max_tokens?"),
            (b'{"prompt": "a", "Output-Tokens": 9}', "did you mean output_tokens?"),
            (
                b'{"prompt": "a", "id": 1, "x": 2, "y": 3, "z": 4}',
                "unknown key 'id'; 'x'; 'y' and 1 more (known: prompt, messages, max_tokens, output_tokens)",
            ),
            (b'{"prompt": "a", "max_tokens": 0}', "max_tokens must be a whole number of 1 or more"),
            (b'{"prompt": "a", "max_tokens": true}', "max_tokens must be"),
            (b'{"prompt": "a", "output_tokens": "9"}', "output_tokens must be"),
            (b'{"prompt": "a", "output_tokens": 9, "max_tokens": 8}', "differ; keep one"),
        ],
    )
    def test_a_broken_line_is_named_by_number(self, line, message):
        with pytest.raises(UsageError) as caught:
            parse_prompts(b'{"prompt": "a"}\n\n' + line + b"\n", "p.jsonl")
        assert str(caught.value).startswith("p.jsonl line 3: ")
        assert message in str(caught.value)

    def test_all_broken_lines_are_named_up_to_ten(self):
        with pytest.raises(UsageError) as caught:
            parse_prompts(b"{}\n" * 12, "p.jsonl")
        assert str(caught.value).count("\n") == 10
        assert str(caught.value).endswith("and 2 more broken lines")

    def test_bytes_that_are_not_utf_8_are_refused_with_their_offset(self):
        with pytest.raises(
            UsageError, match=r"p\.jsonl line 2: byte 28 is not UTF-8; save the file as UTF-8"
        ):
            parse_prompts(b'{"prompt": "a"}\n{"prompt": "\xe9t\xe9"}\n', "p.jsonl")

    @pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
    def test_a_file_without_prompts_is_refused(self, content):
        with pytest.raises(UsageError, match="no prompts; expected a line like"):
            parse_prompts(content, "p.jsonl")


def test_the_mistakes_of_all_workloads_files_are_told_together(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    made = scenario(
        {"kind": "jsonl", "path": "a.jsonl"},
        {"kind": "azure", "path": "gone.csv"},
        {"kind": "sharegpt", "path": "s.json", "output_tokens": 5},
    )
    with pytest.raises(UsageError) as caught:
        load_data(made, tmp_path)
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("workloads.0.path: ")
    assert "a.jsonl line 1: needs one of" in lines[0]
    assert "gone.csv: no such file" in lines[1]
    assert lines[2].startswith("workloads.2.kind: sharegpt reads no file in this version")


def test_a_folder_is_no_file_of_prompts(tmp_path):
    with pytest.raises(UsageError, match=r"workload\.path: .*: is a folder; name one file in it"):
        load_data(scenario({"kind": "jsonl", "path": str(tmp_path)}))


@pytest.mark.parametrize("kind", ["synthetic", "inline", "mixed"])
def test_an_outline_is_the_request_without_its_text(kind):
    synthetic = {
        "kind": "synthetic",
        "input_tokens": {"uniform": {"min": 10, "max": 90}},
        "output_tokens": {"uniform": {"min": 5, "max": 50}},
        "prefix": {"tokens": 20, "groups": 3},
        "tenant": "a",
    }
    inline = {
        "kind": "inline",
        "prompts": ["Say hi", "Say ho"],
        "output_tokens": {"uniform": {"min": 5, "max": 50}},
    }
    mixed = [synthetic, {**inline, "tenant": "b"}]
    parts = {"synthetic": [synthetic], "inline": [inline], "mixed": mixed}[kind]
    made = source(*parts)
    for index in range(200):
        whole, outline = made.spec(index), made.outline(index)
        for name in ("index", "workload", "tenant", "input_tokens_asked", "output_tokens_asked"):
            assert getattr(outline, name) == getattr(whole, name)
        assert outline.messages is None is outline.prompt
