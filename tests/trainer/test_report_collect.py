"""Store -> report data: each figure against the rows that it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.report_rows import (
    GPU_HOST,
    H200,
    KERNELS,
    LAPTOP,
    SQUARE,
    T4,
    TOY,
    fill,
    losses,
    measured,
    of,
    predicted,
    race,
)
from trainer.race import thinned
from trainer.report import text
from trainer.report.collect import collect
from trainer.report.model import Contender, Report
from tuner.store import ContenderRow, Store
from tuner.types import CacheState, Status


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def report_of(store: Store) -> Report:
    return collect(store, KERNELS, label="tuning.db", devices=store.devices())


def test_the_best_configuration_and_its_time(store: Store) -> None:
    fill(store)
    (row,) = of(report_of(store), H200).problems
    assert (row.kernel, row.shape, row.options) == ("toy", "1000x1000", "mode=plain")
    assert (row.config, row.us, row.spread, row.cache) == ({"TILE": 16}, 2.0, 0.02, "hot")
    assert (row.kind, row.rung, row.verified_by) == ("measured", "exact", "cuda")
    assert (row.error, row.tolerance) == (2e-4, 1e-3)


def test_trials_and_failures_by_status(store: Store) -> None:
    fill(store)
    (row,) = of(report_of(store), H200).problems
    assert (row.trials, row.failures, row.stale) == (4, {"compile": 1, "wrong": 1}, 0)


def test_of_a_prediction_the_candidates_are_counted_too(store: Store) -> None:
    fill(store)
    (silent,) = of(report_of(store), T4).problems
    assert (silent.trials, silent.candidates, text.trials(silent)) == (1, None, "1")
    for tile, candidates in ((8, 12), (16, 16)):
        seen = predicted(tile, 13.0, extra={"candidates": candidates, "all": False})
        store.record(seen, kernel=TOY, device=T4, environment=LAPTOP)
    store.record(predicted(64, None), kernel=TOY, device=T4, environment=LAPTOP)
    device = of(report_of(store), T4)
    (row,) = device.problems
    assert (row.trials, row.candidates, text.trials(row)) == (4, 16, "4 of 16")
    assert text.counts(device) == "1 problem, 4 of 16 trials kept (1 failed)"
    assert text.trials(replace(row, trials=17)) == "17"
    (gpu,) = of(report_of(store), H200).problems
    assert gpu.candidates is None


def test_of_a_tie_the_served_one_is_shown_and_finalists_are_no_further_trials(store: Store) -> None:
    fill(store)
    tie = {"finalist": True, "tied_with": 1, "tied_us": 2.1}
    for seen in (measured(16, 2.1, extra={**tie, "tie_rank": 1}), measured(8, 2.2, extra={**tie, "tie_rank": 0})):
        store.record(seen, kernel=TOY, device=H200, environment=GPU_HOST)
    (row,) = of(report_of(store), H200).problems
    assert (row.config, row.us, row.trials) == ({"TILE": 8}, 2.2, 4)


def test_the_floor_is_reckoned_with_the_bandwidth_of_where_the_inputs_were(store: Store) -> None:
    # 8 MB: 1 us at 8 TB/s from L2, 2 us at 4 TB/s from memory.
    cold = TOY.problem(1000, 1000, mode="fancy")
    store.record(measured(16, 2.0), kernel=TOY, device=H200, environment=GPU_HOST)
    store.record(measured(16, 2.5, problem=cold, cache=CacheState.COLD), kernel=TOY, device=H200, environment=GPU_HOST)
    rows = {row.options: row for row in of(report_of(store), H200).problems}
    hot, cold_row = rows["mode=plain"], rows["mode=fancy"]
    assert (hot.floor_us, hot.floor_percent) == (pytest.approx(1.0), pytest.approx(50.0))
    assert (cold_row.floor_us, cold_row.floor_percent) == (pytest.approx(2.0), pytest.approx(80.0))


def test_the_library_is_compared_in_the_same_cache_state_only(store: Store) -> None:
    fill(store)
    (row,) = of(report_of(store), H200).problems
    assert (row.library, row.library_us, row.library_ratio) == ("cuBLAS", 5.0, 2.5)
    assert (row.products_us, row.products_ratio) == (5.0, 2.5)


def test_a_prediction_is_labelled_as_one_and_has_neither_spread_nor_library(store: Store) -> None:
    fill(store)
    store.record_baseline(SQUARE, T4, LAPTOP, "cuBLAS", [20.0], CacheState.HOT)
    device = of(report_of(store), T4)
    (row,) = device.problems
    assert (row.kind, row.rung, row.us) == ("predicted", "predicted", 12.5)
    assert (row.spread, row.library_us, row.library_ratio) == (None, None, None)
    assert not device.measured


def test_the_time_of_another_device_or_problem_is_never_shown_as_this_ones(store: Store) -> None:
    other = TOY.problem(500, 500)
    store.record(measured(16, 2.0), kernel=TOY, device=H200, environment=GPU_HOST)
    store.record(measured(8, None, problem=other), kernel=TOY, device=H200, environment=GPU_HOST)
    store.record(measured(8, None), kernel=TOY, device=T4, environment=LAPTOP)
    store.record(predicted(32, 3.0), kernel=TOY, device=replace(T4, sm_count=20), environment=LAPTOP)
    report = report_of(store)
    small = next(row for row in of(report, H200).problems if row.shape == "500x500")
    assert (small.rung, small.config, small.us, small.kind) == ("nearest", {"TILE": 16}, None, None)
    (foreign,) = of(report, T4).problems
    assert (foreign.rung, foreign.config, foreign.us, foreign.kind) == ("predicted", {"TILE": 32}, None, None)


def test_rows_of_an_older_source_count_as_stale_and_give_no_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.record(measured(16, 2.0), kernel=TOY, device=H200, environment=GPU_HOST)
    monkeypatch.setattr(type(TOY), "source_hash", "0123456789abcdef")
    (row,) = of(report_of(store), H200).problems
    assert (row.rung, row.us, row.trials, row.stale) == ("default", None, 0, 1)


def test_a_quarantined_configuration_makes_way_for_the_next(store: Store) -> None:
    store.record(measured(8, 4.0), kernel=TOY, device=H200, environment=GPU_HOST)
    best = store.record(measured(16, 2.0), kernel=TOY, device=H200, environment=GPU_HOST)
    store.quarantine(best, Status.RUNTIME, "an illegal address", GPU_HOST)
    (row,) = of(report_of(store), H200).problems
    assert (row.config, row.us, row.failures) == ({"TILE": 8}, 4.0, {"runtime": 1})


def test_rows_of_a_kernel_that_is_not_installed_are_shown_without_a_floor(store: Store) -> None:
    fill(store)
    report = collect(store, {}, label="tuning.db", devices=store.devices())
    (row,) = of(report, H200).problems
    assert (row.rung, row.config, row.us, row.floor_us) == ("unknown", {"TILE": 16}, 2.0, None)


def test_races_come_by_width_and_contenders_by_time(store: Store) -> None:
    fill(store)
    races = of(report_of(store), H200).races
    assert [each.width for each in races] == [128, 1024, 4096]
    assert [each.name for each in races[0].contenders] == ["tuned", "written_out", "max_autotune", "broken"]


def test_speed_ups_against_the_strongest_and_the_storys_form(store: Store) -> None:
    fill(store)
    found = of(report_of(store), H200).races[0]
    assert (found.strongest, found.story) == ("written_out", "max_autotune")
    strongest, story = found.contender(found.strongest), found.contender(found.story)
    assert strongest is not None
    assert story is not None
    assert (strongest.speedup, story.speedup) == (8.0, 200.0)


def test_the_strongest_is_the_fastest_whatever_the_row_says(store: Store) -> None:
    store.record_race(race(128, strongest="max_autotune"))
    assert of(report_of(store), H200).races[0].strongest == "written_out"


def test_only_the_newest_race_of_a_network_is_shown(store: Store) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    store.record_race(race(128, created_at=now, seed=7))
    store.record_race(race(128, created_at=now - timedelta(days=1), seed=6))
    store.record_race(race(128, created_at=now, batch=64))
    races = of(report_of(store), H200).races
    assert [(each.batch, each.seed, each.earlier) for each in races] == [(32, 7, 1), (64, 0, 0)]


def test_a_run_by_emulation_is_no_race(store: Store) -> None:
    both = (ContenderRow("tuned", None, losses=losses(100), accuracy=0.9), ContenderRow("reference", None))
    store.record_race(race(32, device=T4, strongest="", contenders=both))
    device = of(report_of(store), T4)
    (run,) = device.runs
    assert (device.races, device.measured, run.emulated, run.timed) == ((), False, True, False)
    assert run.ours is not None
    assert run.ours.last_loss == pytest.approx(sum(loss for _, loss in losses(100)[90:]) / 10)


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ((), None),
        (((0, 2.5),), 2.5),
        # Fewer than ten steps: the last one alone.
        (((0, 4.0), (1, 3.0), (2, 2.0)), 2.0),
        # 20 whole steps: the last two.
        (tuple((step, float(step)) for step in range(20)), 18.5),
        # 100 steps in points of 30, the last of 10: it is the last tenth.
        (((29, 4.0), (59, 3.0), (89, 2.0), (99, 1.0)), 1.0),
        # 100 steps in points of 6: the last stands for 4, the one before it for 6.
        ((*((end, 9.0) for end in range(5, 90, 6)), (95, 2.0), (99, 1.0)), 1.6),
        # 100 steps in points of 40: of the tenth, all 10 steps lie in the last point of 20.
        (((39, 9.0), (79, 5.0), (99, 1.0)), 1.0),
        # 100 steps in points of 33: of the tenth, 9 steps lie in the point before the last.
        (((32, 9.0), (65, 5.0), (98, 2.0), (99, 1.0)), 1.9),
    ],
)
def test_the_last_loss_weighs_points_by_their_steps(
    curve: tuple[tuple[int, float], ...], expected: float | None
) -> None:
    found = Contender("tuned", "", None, None, None, None, None, None, None, curve).last_loss
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


@pytest.mark.parametrize("steps", [7, 100, 199, 200, 2000, 40_000])
def test_the_last_loss_of_a_stored_curve_is_what_train_prints(steps: int) -> None:
    every = np.exp(-np.arange(steps) / steps).astype(np.float32)
    kept = Contender("tuned", "", None, None, None, None, None, None, None, thinned(every))
    assert kept.last_loss == pytest.approx(float(every[-max(1, steps // 10) :].mean()), rel=1e-6)


def test_a_later_run_without_a_race_does_not_hide_the_race(store: Store) -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    store.record_race(race(128, created_at=now))
    alone = (ContenderRow("tuned", 6.0, losses=losses(100)),)
    store.record_race(race(128, created_at=now + timedelta(days=1), strongest="", contenders=alone))
    device = of(report_of(store), H200)
    assert [each.strongest for each in device.races] == ["written_out"]
    assert [(each.emulated, each.earlier) for each in device.runs] == [(False, 0)]


def test_a_race_that_ours_did_not_finish_counts_as_none(store: Store) -> None:
    failed = (ContenderRow("tuned", 5.0, error="losses differ"), ContenderRow("eager", 40.0))
    store.record_race(race(128, contenders=failed))
    device = of(report_of(store), H200)
    assert device.races == ()
    assert text.how(device.runs[0]) == "failed: losses differ"


def test_environments_with_their_rows_and_dates(store: Store) -> None:
    fill(store)
    (versions,) = of(report_of(store), H200).versions
    assert versions.environment == GPU_HOST
    assert versions.rows == 4 + 2 + 3
    assert versions.first <= versions.last <= datetime.now(UTC)


def test_raced_devices_come_first_and_an_empty_store_has_none(store: Store) -> None:
    assert report_of(store).devices == ()
    fill(store)
    assert [each.device.name for each in report_of(store).devices] == ["NVIDIA H200", "Tesla T4"]
