"""What a run's figures may be off by: the arithmetic, the cache, and a calibration as it happens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.bench import run_scenario
from llmbench.calibration.cache import cache_folder, cache_key, load_calibration, store_calibration
from llmbench.calibration.error import FLOOR_NS, Both, Pair, error_bounds, statistic_errors, widened
from llmbench.calibration.known import Known
from llmbench.calibration.null_target import null_target, pairs_of, read_truth
from llmbench.calibration.of_run import calibrate
from llmbench.calibration.shape import MOST_EVENTS_PER_S, Shape, peak_in_flight, replay_of, shape_of
from llmbench.columns import from_records
from llmbench.errors import CannotMeasure
from llmbench.parquet import read_requests
from llmbench.report.markdown import render_markdown
from llmbench.report.rebuild import rebuild
from llmbench.report.summary import summarise, with_calibration
from llmbench.scenario.load import parse_scenario
from tests.llmbench.sample_runs import MS, S, closed_loop, ok_record, steady_run

SHAPE = Shape(
    concurrency=16,
    requests_per_s=20.0,
    events_per_s=1_500.0,
    events_per_answer=60,
    tokens_per_event=1,
    ttft_s=0.1,
    gap_s=0.01,
    body_bytes=100,
    transport="fast",
    timestamps="kernel",
    workers=1,
)
KNOWN = Known(errors={"ttft_p99_s": 0.0004, "itl_p99_s": None}, shape=SHAPE, lag_s=0.001)


def stream(chance, start_ns, *, ttft_ns, gap_ns, num, late_ns):
    """A pair of one stream; `late_ns` draws how late a stamp is."""
    gaps = chance.gamma(4.0, gap_ns / 4.0, size=num - 1)
    true = start_ns + np.concatenate([[0.0], ttft_ns + np.concatenate([[0.0], np.cumsum(gaps)])])
    reported = true + np.concatenate([[0.0], late_ns(num)])
    return Pair(reported.astype(int).tolist(), true.astype(int).tolist())


def simulated(chance, num, late_ns):
    starts = np.sort(chance.uniform(0, 4e9, size=num))
    return [stream(chance, start, ttft_ns=2e8, gap_ns=1e7, num=40, late_ns=late_ns) for start in starts]


# ---- the arithmetic


@pytest.mark.parametrize("kind", ["exponential", "in bouts"])
def test_the_bound_of_one_run_covers_the_error_of_another_in_19_of_20(kind):
    """Errors like those of a loop that stamps: calibrated once, then the true error of a run of its own."""
    covered = dict.fromkeys(("ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s", "tpot_p50_s"), 0)
    for seed in range(40):
        chance = np.random.default_rng(seed)

        def late_ns(num, chance=chance):
            bout = chance.random() < 0.1 if kind == "in bouts" else False
            return chance.exponential(3e6 if bout else 4e5, size=num)

        bounds = error_bounds(simulated(chance, 130, late_ns))
        run = simulated(chance, 400, late_ns)
        for name in covered:
            metric, percent, _ = name.split("_")
            error = true_error(run, metric, float(percent[1:]))
            covered[name] += error <= bounds[name] * 1e9
    # 19 in 20, less what chance takes of 40 (the 5 % point of the binomial distribution)
    assert all(count >= 36 for count in covered.values()), covered


def true_error(pairs, metric, percent):
    values = {"reported": [], "true": []}
    for pair in pairs:
        for end, found in values.items():
            instants = np.array(getattr(pair, end), dtype=float)
            if metric == "ttft":
                found.append([instants[1] - instants[0]])
            elif metric == "itl":
                found.append(np.diff(instants[1:]))
            else:
                found.append([(instants[-1] - instants[1]) / (len(instants) - 2)])
    reported, true = (np.percentile(np.concatenate(found), percent) for found in values.values())
    return abs(reported - true)


@given(
    true=st.lists(st.integers(0, 10**9), min_size=1, max_size=50),
    late=st.integers(-(10**7), 10**7),
)
def test_an_error_that_is_always_the_same_is_found_exactly(true, late):
    values = np.array(true, dtype=float)
    assert statistic_errors(Both(values + late, values)) == pytest.approx([abs(late)] * 2, abs=1e-3)


@given(seed=st.integers(0, 2**32 - 1), num=st.integers(1, 60))
def test_no_bound_is_below_the_error_found_nor_below_its_floor(seed, num):
    chance = np.random.default_rng(seed)
    pairs = simulated(chance, num, lambda count: chance.normal(0, 2e5, size=count))
    bounds = error_bounds(pairs)
    for metric in ("ttft", "itl", "tpot"):
        for percent in (50, 99):
            bound = bounds[f"{metric}_p{percent}_s"]
            assert bound * 1e9 >= FLOOR_NS[metric] * 0.999999
            assert bound * 1e9 >= true_error(pairs, metric, percent) - 1e-3


def test_a_first_token_that_a_loop_stamps_is_known_to_half_a_millisecond_at_best():
    pairs = [
        Pair([start, start + S, start + 2 * S], [start, start + S, start + 2 * S]) for start in range(40)
    ]
    assert error_bounds(pairs, timestamps="loop")["ttft_p50_s"] == 0.0005
    assert error_bounds(pairs, timestamps="kernel")["ttft_p50_s"] == 0.0002
    assert error_bounds(pairs, timestamps="loop")["itl_p50_s"] == 0.00002


def test_requests_that_both_ends_count_otherwise_say_nothing():
    assert set(error_bounds([Pair([0, 1, 2], [0, 1])]).values()) == {None}
    assert set(error_bounds([]).values()) == {None}


def test_tokens_that_come_together_share_the_error_of_their_gap():
    true = [[start, start + 50 * MS, start + 90 * MS] for start in range(0, 40 * S, S)]
    late = [[a, b, c + 4 * MS] for a, b, c in true]
    pairs = [Pair(mine, theirs, 4) for mine, theirs in zip(late, true, strict=True)]
    assert error_bounds(pairs)["itl_p50_s"] == pytest.approx(0.0012, rel=0.2)


@pytest.mark.parametrize(
    ("instrument", "added"),
    [
        ({"timestamps": "loop", "loop_lag_p99_s": 0.005}, 0.004),
        ({"timestamps": "loop", "loop_lag_p99_s": 0.0005}, 0.0),
        ({"timestamps": "kernel", "read_lag_p99_s": 0.005, "stamps": {"shared_share": 0.05}}, 0.004),
        ({"timestamps": "kernel", "read_lag_p99_s": 0.005, "stamps": {"shared_share": 0.001}}, 0.0),
        ({"timestamps": "kernel", "read_lag_p99_s": None}, 0.0),
    ],
)
def test_a_run_that_was_later_than_its_calibration_has_it_added(instrument, added):
    errors = {"ttft_p50_s": 0.001, "ttft_p99_s": 0.002, "itl_p99_s": None}
    assert widened(errors, instrument, 0.001) == {
        "ttft_p50_s": 0.001,
        "ttft_p99_s": pytest.approx(0.002 + added),
        "itl_p99_s": None,
    }


# ---- the shape


def test_a_shape_is_what_the_records_say():
    records = [
        ok_record(
            index,
            sent=index * S // 2,
            events=[index * S // 2 + 100 * MS + token * 20 * MS for token in range(50)],
            input_tokens=25,
        )
        for index in range(40)
    ]
    columns = from_records(records)
    shape = shape_of(columns, summarise(columns, closed_loop(instrument={"timestamps": "loop"})))
    assert (shape.concurrency, shape.events_per_answer, shape.tokens_per_event) == (3, 50, 1)
    assert shape.ttft_s == pytest.approx(0.1)
    assert shape.gap_s == pytest.approx(0.02)
    assert shape.events_per_s == pytest.approx(100, rel=0.1)
    assert (shape.body_bytes, shape.timestamps) == (100, "loop")
    assert Shape.from_json(json.loads(json.dumps(shape.to_json()))) == shape


def test_what_was_not_streamed_has_no_shape():
    columns = from_records([ok_record(0, sent=0)])
    assert shape_of(columns, summarise(columns, closed_loop())) is None
    assert peak_in_flight(from_records([])) == 1


@given(
    concurrency=st.integers(1, 5000),
    gap_s=st.floats(0, 2),
    ttft_s=st.floats(0, 100),
    events=st.integers(2, 10_000),
)
def test_a_replay_never_asks_more_than_the_null_target_carries(concurrency, gap_s, ttft_s, events):
    shape = replace(SHAPE, concurrency=concurrency, gap_s=gap_s, ttft_s=ttft_s, events_per_answer=events)
    replay = replay_of(shape)
    assert 1 <= replay.streams <= concurrency
    assert replay.streams == 1 or replay.events_per_s <= MOST_EVENTS_PER_S * 1.001
    assert replay.share == 1.0 or replay.streams <= max(1, concurrency * replay.share)
    parse_scenario(replay.scenario("http://127.0.0.1:1", shape))


def test_a_load_of_about_the_same_size_shares_a_key_and_a_larger_one_is_not_covered():
    larger = replace(SHAPE, concurrency=15, events_per_s=1_400.0, ttft_s=3.0)
    assert cache_key(SHAPE, {}) == cache_key(larger, {})
    assert cache_key(SHAPE, {}) != cache_key(SHAPE, {"cpus": 2})
    assert cache_key(SHAPE, {}) != cache_key(replace(SHAPE, timestamps="loop"), {})
    assert SHAPE.covers(larger)
    assert not larger.covers(replace(SHAPE, concurrency=30))


# ---- the cache


def test_what_was_stored_is_found_again_and_holds_for_no_larger_load(tmp_path):
    assert load_calibration(SHAPE, tmp_path) is None
    assert store_calibration(KNOWN, tmp_path)
    known, age_s = load_calibration(replace(SHAPE, concurrency=15), tmp_path)
    assert known == KNOWN
    assert 0 <= age_s < 60
    store_calibration(replace(KNOWN, shape=replace(SHAPE, concurrency=9)), tmp_path)
    assert load_calibration(SHAPE, tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"{",
        b'{"schema": "llmbench.calibration/1"}',
        b'{"schema": "llmbench.calibration/1", "made": 1e400, "shape": {}, "errors": 3}',
    ],
)
def test_a_damaged_cache_is_as_good_as_none(tmp_path, content):
    store_calibration(KNOWN, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert load_calibration(SHAPE, tmp_path) is None


@given(st.data())
def test_a_cache_with_one_value_of_another_kind_never_raises(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cache")
    store_calibration(KNOWN, folder)
    (path,) = folder.iterdir()
    stored = json.loads(path.read_text())
    part = data.draw(st.sampled_from([stored, stored["shape"], stored["errors"]]))
    name = data.draw(st.sampled_from(sorted(part)))
    part[name] = data.draw(st.sampled_from([None, -1, [], {}, "x", True, 1e308]))
    path.write_text(json.dumps(stored))
    load_calibration(SHAPE, folder)


def test_an_old_calibration_is_not_believed(tmp_path):
    store_calibration(KNOWN, tmp_path)
    (path,) = tmp_path.iterdir()
    stored = json.loads(path.read_text())
    for days, found in ((6, True), (8, False), (-1, False)):
        path.write_text(json.dumps({**stored, "made": stored["made"] - days * 86_400}))
        assert (load_calibration(SHAPE, tmp_path) is not None) == found


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert not store_calibration(KNOWN, tmp_path / "file" / "below")


def test_the_cache_lies_where_the_environment_says(tmp_path):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "llmbench" / "calibration"
    relative = cache_folder({"XDG_CACHE_HOME": "relative"})
    assert relative == Path.home() / ".cache" / "llmbench" / "calibration"


# ---- the decision


def never(*_):
    raise AssertionError("nothing was to be calibrated")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "llmbench" / "calibration"


def summary_of(duration_s):
    return {"window": {"duration_s": duration_s}, "instrument": {"timestamps": "kernel"}}


def test_a_short_run_is_calibrated_from_the_cache_alone(cache):
    found = calibrate(SHAPE, never, asked="auto", summary=summary_of(29))
    assert (found.source, found.errors) == ("none", {})
    store_calibration(KNOWN)
    found = calibrate(SHAPE, never, asked="auto", summary=summary_of(29))
    assert (found.source, found.errors) == ("cache", KNOWN.errors)
    assert calibrate(SHAPE, never, asked=False, summary=summary_of(99)).source == "none"
    assert calibrate(None, never, asked=True, summary=summary_of(99)).source == "none"


@pytest.mark.parametrize("error", [CannotMeasure("no\nmore"), OSError("disk"), KeyboardInterrupt()])
def test_a_calibration_that_fails_says_why(cache, error):
    def fails(*_):
        raise error

    found = calibrate(SHAPE, fails, asked="auto", summary=summary_of(30))
    assert (found.source, dict(found.errors)) == ("none", {})
    assert found.note
    assert not cache.exists()


# ---- the verdict and the page


def calibrated_summary(**errors):
    records, context = steady_run()
    summary = summarise(from_records(records), context)
    calibration = {"source": "this run", "age_s": 0.0, "lag_p99_s": None, "shape": {}, "note": None}
    return with_calibration(summary, {"calibrated_error": errors, "calibration": calibration})


def test_an_error_above_a_twentieth_of_the_figure_is_told():
    sound = calibrated_summary(ttft_p50_s=0.005, ttft_p99_s=0.01, itl_p50_s=0.0005, itl_p99_s=9.0)
    assert "instrument_error" not in [reason["code"] for reason in sound["verdict"]["reasons"]]
    for name, error in (("ttft_p50_s", 0.05), ("ttft_p99_s", 0.1), ("itl_p50_s", 0.005)):
        poor = calibrated_summary(**{name: error})
        (reason,) = [one for one in poor["verdict"]["reasons"] if one["code"] == "instrument_error"]
        assert reason["severity"] == "SUSPECT"
        assert reason["measured"] > reason["limit"] == 0.05


def test_the_page_has_the_error_at_each_figure():
    page = render_markdown(calibrated_summary(ttft_p50_s=0.0002, itl_p99_s=0.0012))
    assert page.count(" ± 0.2 |") == 1
    assert page.count(" ± 1.20 |") == 1
    assert "± is the instrument's own error at this load, calibrated after this run." in page


# ---- as it happens


def test_the_null_target_logs_when_the_kernel_had_the_request(tmp_path):
    """Thirty-two at once: a log by the server's loop would have the last of them come late."""
    tree = {
        "target": {"model": "mock", "ignore_eos": False},
        "load": {"arrivals": "closed", "concurrency": 32, "requests": 96},
        "workload": {"kind": "inline", "prompts": ["Hi."], "output_tokens": 4},
        "instrument": {"calibrate": False},
    }
    with null_target(["--ttft", "30ms", "--itl", "5ms"], tmp_path / "log") as url:
        tree["target"]["url"] = url
        result = run_scenario(parse_scenario(tree), out=tmp_path)
    pairs = pairs_of(read_requests(result.folder / "requests.parquet"), read_truth(tmp_path / "log"), 1)
    assert len(pairs) == 96
    assert result.summary["counts"]["ok"] == 96
    # both stamps are of the same clock: what is left is what a busy machine puts between them
    errors_ms = [((mine[1] - mine[0]) - (true[1] - true[0])) / 1e6 for mine, true in map(both_ends, pairs)]
    assert abs(np.median(errors_ms)) < 2


def both_ends(pair):
    return pair.reported, pair.true


def test_a_null_target_that_does_not_start_is_said():
    with pytest.raises(CannotMeasure, match="did not start"), null_target(["--no-such-flag"]):
        pass


@pytest.mark.slow
def test_a_run_is_calibrated_and_the_next_one_knows(cache, tmp_path):
    parts = {
        "target": {"model": "mock", "ignore_eos": False},
        "load": {"arrivals": "closed", "concurrency": 4, "duration": "2s"},
        "workload": {"kind": "inline", "prompts": ["Hi."], "output_tokens": 20},
    }
    with null_target(["--ttft", "100ms", "--itl", "10ms"]) as url:
        parts["target"]["url"] = url
        first = run_scenario(parse_scenario({**parts, "instrument": {"calibrate": True}}), out=tmp_path)
        second = run_scenario(parse_scenario(parts), out=tmp_path)
    known = first.summary["instrument"]["calibration"]
    assert known["source"] == "this run"
    assert first.summary["instrument"]["calibrated_error"]["ttft_p99_s"] > 0
    assert len(list(cache.iterdir())) == 1
    if second.summary["instrument"]["calibration"]["source"] != "cache":  # its load was larger by a tenth
        assert second.summary["instrument"]["calibration"]["source"] == "none"
    assert " ± " in (first.folder / "summary.md").read_text(encoding="utf-8")
    before = json.loads((first.folder / "summary.json").read_text())
    assert before == json.loads(json.dumps(rebuild(first.folder).summary))
    assert not [path for path in tmp_path.iterdir() if "calibration" in path.name]
