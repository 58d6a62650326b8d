"""What goes into the store comes out again, value by value."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.tuner.store.conftest import ENVIRONMENT, H200, T4, Bench, config, failed, measured, predicted
from tuner.store import ContenderRow, RaceRow, Store
from tuner.store.rows import median_and_spread
from tuner.types import CacheState, Kind, Measurement, Status


def test_an_observation_comes_back_as_it_was_recorded(bench: Bench) -> None:
    problem = bench.problem()
    measurement = Measurement(
        problem=problem,
        config=config(64, 3),
        status=Status.OK,
        kind=Kind.MEASURED,
        message="after one retry",
        samples_us=(12.25, 12.5, 0.1 + 0.2),
        median_us=12.25,
        spread=0.02,
        error=3.1e-5,
        tolerance=1e-3,
        cache=CacheState.COLD,
        seed=2**40,
        registers=96,
        shared_bytes=24576,
        spill_bytes=0,
        compile_s=1.75,
        verified_by="cuda",
        extra={"clocks": [1590, 1585], "note": "µs"},
    )
    before = datetime.now(UTC)
    uuid = bench.record(measurement)

    [row] = bench.store.observations()
    assert row.measurement == measurement
    assert row.measurement.problem.dims == (("batch", 32), ("inputs", 784), ("outputs", 128))
    assert (row.uuid, row.device, row.environment) == (uuid, T4, ENVIRONMENT)
    assert row.source_hash == bench.kernel.source_hash
    assert row.space_hash == bench.kernel.space(problem, T4).hash
    assert before <= row.created_at <= datetime.now(UTC)
    assert row.created_at.tzinfo is UTC


def test_a_failure_comes_back_with_its_message_and_without_a_time(bench: Bench) -> None:
    measurement = failed(bench.problem(), config(), Status.COMPILE, message="line 3: expected a ';'")
    bench.record(measurement)
    [row] = bench.store.observations()
    assert row.measurement == measurement
    assert row.measurement.median_us is None


def test_an_error_of_nan_is_stored_as_infinity(bench: Bench) -> None:
    bench.record(failed(bench.problem(), config(), error=math.nan))
    assert bench.store.observations()[0].measurement.error == math.inf


@pytest.mark.parametrize("time_us", [None, 0.0, -1.0, math.nan, math.inf])
def test_an_ok_row_needs_a_time(bench: Bench, time_us: float | None) -> None:
    with pytest.raises(ValueError, match="needs a positive time"):
        bench.record(replace(measured(bench.problem(), config(), 1.0), median_us=time_us))
    assert bench.store.observations() == []


def test_another_kernels_measurement_is_refused(bench: Bench) -> None:
    other = replace(bench.problem(), kernel="other")
    with pytest.raises(ValueError, match="is not a problem of product"):
        bench.record(measured(other, config(), 1.0))


def test_observations_are_filtered_by_each_condition(bench: Bench) -> None:
    small, large = bench.problem(), bench.problem(outputs=1024)
    rows = {
        "small on T4": bench.record(measured(small, config(), 5.0), T4),
        "large on T4": bench.record(measured(large, config(), 9.0), T4),
        "small on H200": bench.record(measured(small, config(), 2.0), H200),
        "predicted": bench.record(predicted(small, config(16), 4.0), T4),
    }
    old = bench.kernel.source_hash
    bench.kernel.source.write_text("changed")
    rows["changed"] = bench.record(measured(small, config(), 6.0), T4)

    def found(**conditions: object) -> list[str]:
        uuids = [row.uuid for row in bench.store.observations(**conditions)]  # type: ignore[arg-type]
        return [name for uuid in uuids for name in rows if rows[name] == uuid]

    assert found() == ["small on T4", "large on T4", "small on H200", "predicted", "changed"]
    assert found(kernel="product", device=H200) == ["small on H200"]
    assert found(kernel="other") == []
    assert found(problem=large) == ["large on T4"]
    assert found(problem=small, device=T4, source_hash=old) == ["small on T4", "predicted"]
    assert found(kind=Kind.PREDICTED) == ["predicted"]
    assert found(source_hash=bench.kernel.source_hash) == ["changed"]


def test_devices_and_environments_are_stored_once(bench: Bench) -> None:
    for block_n in (16, 32, 64):
        bench.record(measured(bench.problem(), config(block_n), 5.0), T4)
    bench.record(measured(bench.problem(), config(), 5.0), H200)
    with bench.store._database.connection() as connection:
        counts = [
            connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
            for table in ("devices", "environments", "observations")
        ]
    assert counts == [2, 1, 4]
    assert bench.store.devices() == [H200, T4]


def test_a_device_whose_properties_changed_keeps_both_and_is_one_device(bench: Bench) -> None:
    slower = replace(T4, clock_hz=1.0e9)
    bench.record(measured(bench.problem(), config(32), 5.0), T4)
    bench.record(measured(bench.problem(), config(64), 4.0), slower)
    assert [row.device for row in bench.store.observations(device=T4)] == [T4, slower]
    assert bench.store.devices() == [slower]
    assert bench.lookup(bench.problem(), T4).config == config(64)


def test_baselines(bench: Bench) -> None:
    problem = bench.problem(activation="none")
    bench.store.record_baseline(problem, T4, ENVIRONMENT, "cuBLAS", [4.0, 3.0, 5.0, 6.0, 2.0], CacheState.HOT)
    bench.store.record_baseline(problem, H200, ENVIRONMENT, "cuBLAS", [1.5], CacheState.COLD)

    [row] = bench.store.baselines(T4)
    assert (row.problem, row.device, row.environment, row.library) == (problem, T4, ENVIRONMENT, "cuBLAS")
    assert row.samples_us == (4.0, 3.0, 5.0, 6.0, 2.0)
    assert (row.median_us, row.spread, row.cache) == (4.0, 0.5, CacheState.HOT)
    [row] = bench.store.baselines(H200)
    assert (row.median_us, row.spread, row.cache) == (1.5, 0.0, CacheState.COLD)


@pytest.mark.parametrize("samples", [[], [1.0, 0.0], [math.nan], [math.inf]])
def test_a_baseline_needs_times(bench: Bench, samples: list[float]) -> None:
    with pytest.raises(ValueError, match="needs positive times"):
        bench.store.record_baseline(bench.problem(), T4, ENVIRONMENT, "cuBLAS", samples, CacheState.HOT)


def test_the_spread_is_the_interquartile_range_over_the_median() -> None:
    # Quartiles of 1..9 with both ends included: 3, 5, 7.
    assert median_and_spread([9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == (5.0, 0.8)


def race(**more: object) -> RaceRow:
    contenders = (
        ContenderRow("tuned", 5.0, (5.0, 4.9, 5.2), 0.03, 1.5, 9 << 32, ((0, 2.3), (100, 0.5)), 0.975),
        ContenderRow("whole step compiled", 46.0, (46.0,), 0.01, 40.0, None, ((0, 2.3), (100, 0.51)), 0.974),
        ContenderRow("eager", None, error="out of memory"),
    )
    values = {
        "device": H200,
        "environment": ENVIRONMENT,
        "width": 128,
        "layers": 3,
        "batch": 32,
        "steps": 2000,
        "lr": 0.003,
        "seed": 7,
        "command": "mnist-tune train --width 128",
        "strongest": "whole step compiled",
        "contenders": contenders,
    }
    return RaceRow(**(values | more))  # type: ignore[arg-type]


def test_a_race_comes_back_with_its_contenders_in_order(bench: Bench) -> None:
    recorded = race()
    assert bench.store.record_race(recorded) == recorded.uuid
    assert bench.store.races() == [recorded]
    assert bench.store.races(H200) == [recorded]
    assert bench.store.races(T4) == []
    assert bench.store.devices() == [H200]


def test_what_a_race_says() -> None:
    assert race().speedup == pytest.approx(9.2)
    assert race().accuracy_ours == 0.975
    assert race(strongest="eager").speedup is None
    assert race(contenders=()).speedup is None
    assert race(contenders=()).accuracy_ours is None


def test_a_loss_that_diverged_is_kept(bench: Bench) -> None:
    bench.store.record_race(race(contenders=(ContenderRow("tuned", 5.0, losses=((0, 2.3), (1, math.nan))),)))
    (first, second) = bench.store.races()[0].contenders[0].losses
    assert first == (0, 2.3)
    assert second[0] == 1
    assert math.isnan(second[1])


def test_quarantine_appends_and_keeps_the_row(bench: Bench) -> None:
    good = measured(bench.problem(), config(), 5.0, registers=96, seed=3)
    uuid = bench.record(good)
    other = replace(ENVIRONMENT, driver="590.0")
    failure = bench.store.quarantine(uuid, Status.WRONG, "differs from the reference", other)

    first, second = bench.store.observations()
    assert (first.uuid, first.measurement) == (uuid, good)
    assert second.uuid == failure
    assert second.environment == other
    assert second.created_at > first.created_at
    assert (second.source_hash, second.space_hash) == (first.source_hash, first.space_hash)
    assert second.measurement == replace(
        good,
        status=Status.WRONG,
        message="differs from the reference",
        samples_us=(),
        median_us=None,
        spread=None,
        error=None,
        extra={"quarantined": uuid},
    )


def test_quarantine_holds_where_the_clock_was_set_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = bench.record(measured(bench.problem(), config(), 5.0))
    monkeypatch.setattr("tuner.store.record.now", lambda: datetime.now(UTC) - timedelta(days=400))
    bench.store.quarantine(uuid, Status.TIMEOUT, "hung", ENVIRONMENT)
    assert bench.lookup(bench.problem()).observation is None


def test_quarantine_refuses_nonsense(bench: Bench) -> None:
    uuid = bench.record(measured(bench.problem(), config(), 5.0))
    with pytest.raises(ValueError, match="has no observation"):
        bench.store.quarantine("not-there", Status.WRONG, "", ENVIRONMENT)
    with pytest.raises(ValueError, match="not ok"):
        bench.store.quarantine(uuid, Status.OK, "", ENVIRONMENT)
    assert len(bench.store.observations()) == 1


def test_a_store_in_memory(kernel: object) -> None:
    for url in (":memory:", "sqlite://"):
        with Store.open(url) as store:
            bench = Bench(store, kernel)  # type: ignore[arg-type]
            bench.record(measured(bench.problem(), config(), 5.0))
            assert bench.lookup(bench.problem()).config == config()
            assert store.path is None


def test_rows_that_break_a_foreign_key_are_refused(bench: Bench) -> None:
    with pytest.raises(Exception, match="FOREIGN KEY"), bench.store._database.connection(write=True) as connection:
        connection.exec_driver_sql(
            "INSERT INTO contenders (race_id, name, samples, losses) VALUES (99, 'x', '[]', '[]')"
        )


def test_speed(bench: Bench) -> None:
    """A row in milliseconds, and ten thousand rows read and looked up at once; the limits are far above the usual.

    Of this process's own time: the machine may be busy with something else.
    """
    problem, count = bench.problem(outputs=256), 100
    start = time.process_time()
    for index in range(count):
        bench.record(measured(problem, config(16 << index % 5, 1), 5.0 + index))
    assert (time.process_time() - start) / count < 0.02

    with bench.store._database.connection(write=True) as connection:
        columns = [row[1] for row in connection.exec_driver_sql("PRAGMA table_info(observations)")]
        copied = ", ".join(name for name in columns if name not in {"id", "uuid"})
        connection.exec_driver_sql(
            f"INSERT INTO observations (uuid, {copied}) "
            f"SELECT hex(randomblob(16)), {copied} FROM observations, "
            "(WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n WHERE i < 99) SELECT i FROM n)"
        )
    start = time.process_time()
    assert len(bench.store.observations()) == 100 * count
    assert time.process_time() - start < 5
    start = time.process_time()
    bench.lookup(bench.problem(outputs=512))
    assert time.process_time() - start < 2
