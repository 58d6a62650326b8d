"""The ladder, rung by rung, with exact answers and the sentences that explain them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console

from tests.tuner.store.conftest import (
    A100,
    ENVIRONMENT,
    H200,
    RTX_2080_TI,
    T4,
    Bench,
    config,
    failed,
    measured,
    predicted,
)
from tuner.store import Match, Rung
from tuner.store.explain import as_json, explain, explain_lines, source_of
from tuner.store.record import add_observation
from tuner.types import Config, Kind, Status

DEFAULT = config(32, 2)


def why(match: Match, rung: Rung) -> list[str]:
    return [reason for at, reason in match.reasons if at is rung]


class TestExact:
    def test_the_lowest_median_wins(self, bench: Bench) -> None:
        problem = bench.problem()
        bench.record(measured(problem, config(16), 7.0))
        uuid = bench.record(measured(problem, config(64), 5.0))
        bench.record(measured(problem, config(128), 6.0))
        match = bench.lookup(problem)
        assert (match.rung, match.config, match.expected_us, match.reasons) == (Rung.EXACT, config(64), 5.0, ())
        assert match.observation is not None
        assert match.observation.uuid == uuid
        assert match.observation.environment == ENVIRONMENT

    def test_a_later_measurement_of_the_same_configuration_replaces_the_earlier(self, bench: Bench) -> None:
        problem = bench.problem()
        bench.record(measured(problem, config(64), 5.0))
        bench.record(measured(problem, config(16), 7.0))
        bench.record(measured(problem, config(64), 9.0))
        assert bench.lookup(problem).config == config(16)
        assert bench.lookup(problem).expected_us == 7.0

    def test_later_is_by_the_rows_own_time_not_by_when_it_came_into_this_store(self, bench: Bench) -> None:
        """A row that is brought in from elsewhere may be older than one that is here."""
        problem = bench.problem()
        bench.record(measured(problem, config(64), 5.0))
        [row] = bench.store.observations()
        bench.record(failed(problem, config(64)))
        older = replace(row, uuid="from elsewhere", created_at=row.created_at - timedelta(days=1))
        with bench.store._database.writing() as session:
            add_observation(session, older)
        assert bench.lookup(problem).observation is None

    def test_another_devices_measurement_replaces_nothing(self, bench: Bench) -> None:
        problem = bench.problem()
        bench.record(measured(problem, config(64), 5.0), T4)
        bench.record(measured(problem, config(64), 9.0), RTX_2080_TI)
        assert bench.lookup(problem, T4).expected_us == 5.0

    def test_equal_medians_are_decided_by_the_configuration_not_by_the_order(self, bench: Bench) -> None:
        problem = bench.problem()
        for block_n in (64, 16, 128):
            bench.record(measured(problem, config(block_n), 5.0))
        assert bench.lookup(problem).config == config(128)  # '{"BLOCK_N":128' sorts before '{"BLOCK_N":16'

    def test_an_invalid_configuration_is_passed_over(self, bench: Bench) -> None:
        problem = bench.problem(outputs=50)
        bench.record(measured(problem, config(64), 3.0))
        bench.record(measured(problem, Config.of(BLOCK_N=8), 2.0))
        match = bench.lookup(problem)
        assert match.observation is None
        assert why(match, Rung.EXACT) == [
            "config: BLOCK_N=8 (32x784x50 at 2.00 us): "
            "has the parameters ['BLOCK_N'], the space has ['BLOCK_N', 'STAGES']",
            "config: BLOCK_N=64 STAGES=2 (32x784x50 at 3.00 us): the tile is wider than the matrix",
        ]

    def test_a_slice_of_a_gpu_is_another_device(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(), config(64), 5.0), replace(H200, sm_count=16))
        match = bench.lookup(bench.problem(), H200)
        assert match.rung is Rung.ARCHITECTURE
        assert why(match, Rung.EXACT) == [
            "device: rows exist for NVIDIA H200 (sm_90, 16 SMs), this is NVIDIA H200 (sm_90, 132 SMs)"
        ]


class TestSource:
    def test_a_changed_source_is_a_miss(self, bench: Bench) -> None:
        problem = bench.problem()
        for device in (T4, RTX_2080_TI):
            bench.record(measured(problem, config(64), 5.0), device)
            bench.record(predicted(problem, config(64), 5.0), device)
            bench.record(measured(bench.problem(outputs=256), config(64), 5.0), device)
        old = bench.kernel.source_hash
        bench.kernel.source.write_text("changed")
        match = bench.lookup(problem)
        assert (match.rung, match.config, match.observation) == (Rung.DEFAULT, DEFAULT, None)
        changed = f"source: stored {old[:8]}, current {bench.kernel.source_hash[:8]}: the kernel was changed since"
        assert match.reasons == tuple((rung, changed) for rung in list(Rung)[:4])

    def test_a_changed_header_is_a_miss(self, bench: Bench) -> None:
        header = bench.kernel.source.with_name("common.cuh")
        header.write_text("// one")
        bench.kernel.source.write_text('#include "common.cuh"\n')
        bench.record(measured(bench.problem(), config(64), 5.0))
        assert bench.lookup(bench.problem()).rung is Rung.EXACT
        header.write_text("// two")
        assert bench.lookup(bench.problem()).rung is Rung.DEFAULT

    def test_the_source_put_back_is_a_hit_again(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(), config(64), 5.0))
        text = bench.kernel.source.read_text()
        bench.kernel.source.write_text("changed")
        bench.record(failed(bench.problem(), config(64)))
        bench.kernel.source.write_text(text)
        assert bench.lookup(bench.problem()).rung is Rung.EXACT


class TestNearest:
    def test_dimensions_are_compared_one_by_one(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(32, 64, 1024), config(16), 3.0))
        bench.record(measured(bench.problem(32, 512, 64), config(64), 9.0))
        match = bench.lookup(bench.problem(32, 1024, 64))
        assert (match.rung, match.config, match.expected_us) == (Rung.NEAREST, config(64), None)
        assert why(match, Rung.EXACT) == ["problem: rows exist for 32x512x64, 32x64x1024, wanted is 32x1024x64"]

    def test_distance_is_in_ratios_not_in_differences(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(outputs=64), config(16), 3.0))
        bench.record(measured(bench.problem(outputs=2048), config(64), 3.0))
        assert bench.lookup(bench.problem(outputs=1024)).config == config(64)
        assert bench.lookup(bench.problem(outputs=300)).config == config(16)

    def test_the_next_problem_is_taken_where_the_nearest_has_nothing_valid(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(outputs=128), config(128), 3.0))
        bench.record(measured(bench.problem(outputs=1024), config(64), 9.0))
        match = bench.lookup(bench.problem(outputs=64))
        assert (match.rung, match.config) == (Rung.NEAREST, config(64))

    def test_within_the_nearest_problem_the_fastest_wins(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(outputs=256), config(16), 8.0))
        bench.record(measured(bench.problem(outputs=256), config(64), 6.0))
        bench.record(measured(bench.problem(outputs=1024), config(128), 1.0))
        assert bench.lookup(bench.problem(outputs=128)).config == config(64)

    def test_equally_near_problems_are_decided_by_their_sizes(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(outputs=512), config(64), 1.0))
        bench.record(measured(bench.problem(outputs=128), config(16), 9.0))
        assert bench.lookup(bench.problem(outputs=256)).config == config(16)

    def test_other_options_are_another_computation(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(activation="none"), config(64), 5.0))
        match = bench.lookup(bench.problem(activation="relu"))
        assert match.rung is Rung.DEFAULT
        assert why(match, Rung.EXACT) == ["options: rows exist for activation=none, wanted is activation=relu"]
        assert why(match, Rung.NEAREST) == [
            "options: rows exist for activation=none, wanted is activation=relu",
            "problem: rows exist for 32x784x128 only, there is no other to take the nearest of",
        ]

    def test_a_configuration_that_failed_for_this_very_problem_is_not_taken_from_another(self, bench: Bench) -> None:
        bench.record(failed(bench.problem(outputs=128), config(64)))
        bench.record(measured(bench.problem(outputs=256), config(64), 5.0))
        bench.record(measured(bench.problem(outputs=256), config(16), 6.0))
        match = bench.lookup(bench.problem(outputs=128))
        assert (match.rung, match.config) == (Rung.NEAREST, config(16))
        assert why(match, Rung.EXACT) == [
            "config: BLOCK_N=64 STAGES=2 (32x784x128): its latest row is wrong (the error is 0.3, over 0.001)"
        ]


class TestArchitecture:
    def test_the_same_problem_comes_before_a_nearer_gpu(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(outputs=256), config(16), 3.0), RTX_2080_TI)
        bench.record(measured(bench.problem(), config(64), 9.0), replace(T4, name="Quadro", sm_count=400))
        match = bench.lookup(bench.problem())
        assert (match.rung, match.config, match.expected_us) == (Rung.ARCHITECTURE, config(64), None)
        assert why(match, Rung.EXACT) == [
            "device: rows exist for Quadro (sm_75, 400 SMs), this is Tesla T4 (sm_75, 40 SMs)"
        ]

    def test_then_the_nearest_problem(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(outputs=1024), config(64), 3.0), RTX_2080_TI)
        bench.record(measured(bench.problem(outputs=256), config(16), 3.0), RTX_2080_TI)
        assert bench.lookup(bench.problem()).config == config(16)

    def test_of_two_gpus_the_one_of_more_alike_size(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(), config(16), 3.0), replace(T4, name="big", sm_count=400))
        bench.record(measured(bench.problem(), config(64), 9.0), RTX_2080_TI)
        assert bench.lookup(bench.problem()).config == config(64)

    def test_another_architecture_is_not_this_rung(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(), config(64), 3.0), H200)
        match = bench.lookup(bench.problem())
        assert match.rung is Rung.DEFAULT
        assert why(match, Rung.ARCHITECTURE) == [
            "architecture: rows exist for sm_90 (NVIDIA H200), this is sm_75 (Tesla T4)"
        ]

    def test_its_configuration_must_fit_this_device(self, bench: Bench) -> None:
        roomy = replace(H200, name="roomy", sm_count=144)
        small = replace(H200, shared_per_block=65536)
        bench.record(measured(bench.problem(outputs=1024), config(256, 4), 3.0), roomy)
        match = bench.lookup(bench.problem(outputs=1024), small)
        assert match.rung is Rung.DEFAULT
        assert why(match, Rung.ARCHITECTURE) == [
            "config: BLOCK_N=256 STAGES=4 (32x784x1024 at 3.00 us): the stages do not fit into shared memory"
        ]


class TestPredicted:
    def test_a_measurement_wins_over_a_faster_prediction(self, bench: Bench) -> None:
        bench.record(predicted(bench.problem(), config(16), 0.5))
        bench.record(measured(bench.problem(), config(64), 50.0))
        assert bench.lookup(bench.problem()).config == config(64)

    @pytest.mark.parametrize(
        ("device", "sizes"), [(T4, (32, 784, 2048)), (RTX_2080_TI, (32, 784, 128)), (RTX_2080_TI, (32, 784, 2048))]
    )
    def test_also_one_for_another_problem_or_gpu_of_the_architecture(self, bench: Bench, device, sizes) -> None:
        bench.record(predicted(bench.problem(), config(16), 0.5))
        bench.record(measured(bench.problem(*sizes), config(64), 50.0), device)
        match = bench.lookup(bench.problem())
        assert match.config == config(64)
        assert match.observation.measurement.kind is Kind.MEASURED

    def test_the_order_of_predictions(self, bench: Bench) -> None:
        """Each is taken once all before it failed."""
        sm_70 = replace(T4, name="V100", arch="sm_70", sm_count=80)
        here, near = bench.problem(), bench.problem(outputs=256)
        order = [
            (here, T4),
            (here, RTX_2080_TI),
            (here, sm_70),
            (here, A100),
            (here, H200),
            (near, T4),
            (near, RTX_2080_TI),
            (near, sm_70),
            (near, A100),
            (near, H200),
        ]
        uuids = []
        for index, (problem, device) in reversed(list(enumerate(order))):
            setting = config(16 << index % 4, 1 + index // 4)
            uuids.append(bench.record(predicted(problem, setting, 1.0 + 10 * (len(order) - index)), device))
        served = []
        while (match := bench.lookup(here, T4)).observation:
            assert match.rung is Rung.PREDICTED
            served.append((match.observation.measurement.problem, match.observation.device))
            bench.store.quarantine(match.observation.uuid, Status.RUNTIME, "trap", ENVIRONMENT)
        assert served == order

    def test_among_older_architectures_the_latest_comes_first(self, bench: Bench) -> None:
        bench.record(predicted(bench.problem(), config(16), 1.0), T4)
        bench.record(predicted(bench.problem(), config(64), 2.0), A100)
        bench.record(predicted(bench.problem(), config(128), 0.5), replace(H200, name="B200", arch="sm_100"))
        assert bench.lookup(bench.problem(), H200).config == config(64)

    def test_a_prediction_for_this_very_gpu_tells_its_time(self, bench: Bench) -> None:
        bench.record(predicted(bench.problem(), config(16), 3.5))
        match = bench.lookup(bench.problem())
        assert (match.rung, match.expected_us) == (Rung.PREDICTED, 3.5)
        assert why(match, Rung.EXACT) == ["kind: rows are predicted, none is measured"]
        assert why(match, Rung.NEAREST) == [
            "problem: rows exist for 32x784x128 only, there is no other to take the nearest of",
            "kind: rows are predicted, none is measured",
        ]

    def test_a_measured_failure_is_not_undone_by_a_later_prediction(self, bench: Bench) -> None:
        bench.record(failed(bench.problem(), config(16)))
        bench.record(predicted(bench.problem(), config(16), 1.0))
        match = bench.lookup(bench.problem())
        assert match.rung is Rung.DEFAULT
        assert why(match, Rung.PREDICTED) == [
            "config: BLOCK_N=16 STAGES=2 (32x784x128): its latest row is wrong (the error is 0.3, over 0.001)"
        ]

    def test_a_later_measurement_undoes_a_predicted_failure(self, bench: Bench) -> None:
        bench.record(failed(bench.problem(), config(16), kind=Kind.PREDICTED))
        assert bench.lookup(bench.problem()).rung is Rung.DEFAULT
        bench.record(measured(bench.problem(), config(16), 1.0))
        assert bench.lookup(bench.problem()).rung is Rung.EXACT

    def test_a_later_failure_of_either_kind_forbids(self, bench: Bench) -> None:
        bench.record(measured(bench.problem(), config(16), 1.0))
        bench.record(failed(bench.problem(), config(16), kind=Kind.PREDICTED))
        assert bench.lookup(bench.problem()).observation is None


class TestDefault:
    def test_an_empty_store(self, bench: Bench) -> None:
        match = bench.lookup(bench.problem())
        assert (match.config, match.rung, match.observation, match.expected_us) == (DEFAULT, Rung.DEFAULT, None, None)
        assert match.reasons == tuple((rung, "kernel: the store has no row of product") for rung in list(Rung)[:4])

    def test_a_default_that_fails_is_replaced_by_the_configuration_next_to_it(self, bench: Bench) -> None:
        bench.record(failed(bench.problem(), DEFAULT))
        assert bench.lookup(bench.problem()).config == config(16, 2)
        assert bench.lookup(bench.problem(outputs=256)).config == DEFAULT
        assert bench.lookup(bench.problem(), RTX_2080_TI).config == DEFAULT

    def test_where_all_fail_the_default_is_tried_after_all(self, bench: Bench) -> None:
        problem = bench.problem(outputs=16)
        for setting in bench.kernel.space(problem, T4):
            bench.record(failed(problem, setting))
        assert bench.lookup(problem).config == bench.kernel.space(problem, T4).default() == config(16, 2)

    def test_another_kernels_problem_is_refused(self, bench: Bench) -> None:
        with pytest.raises(ValueError, match="is not a problem of product"):
            bench.lookup(replace(bench.problem(), kernel="other"))


class TestQuarantine:
    def test_the_next_best_is_served_until_a_new_measurement(self, bench: Bench) -> None:
        problem = bench.problem()
        best = bench.record(measured(problem, config(64), 5.0))
        bench.record(measured(problem, config(16), 6.0))
        bench.store.quarantine(best, Status.WRONG, "error 0.2", ENVIRONMENT)
        assert bench.lookup(problem).config == config(16)
        bench.record(measured(problem, config(64), 5.5))
        assert bench.lookup(problem).config == config(64)
        assert bench.lookup(problem).expected_us == 5.5

    def test_with_the_match_it_is_booked_where_it_was_tried(self, bench: Bench) -> None:
        problem = bench.problem()
        uuid = bench.record(measured(problem, config(64), 5.0), RTX_2080_TI)
        match = bench.lookup(problem, T4)
        assert match.rung is Rung.ARCHITECTURE
        bench.store.quarantine(uuid, Status.LAUNCH, "too many registers", ENVIRONMENT, match=match)

        assert bench.lookup(problem, RTX_2080_TI).expected_us == 5.0
        match = bench.lookup(problem, T4)
        assert match.rung is Rung.DEFAULT
        reason = "its latest row is launch (too many registers)"
        assert why(match, Rung.EXACT) == [f"config: BLOCK_N=64 STAGES=2 (32x784x128): {reason}"]
        assert why(match, Rung.ARCHITECTURE) == [
            f"config: BLOCK_N=64 STAGES=2 (32x784x128 at 5.00 us): {reason} for this problem on this device"
        ]
        [row] = bench.store.observations(device=T4)
        assert row.space_hash == bench.kernel.space(problem, T4).hash

    def test_training_comes_to_an_end_whatever_fails(self, bench: Bench) -> None:
        problem = bench.problem()
        for block_n in (16, 64, 128):
            bench.record(measured(problem, config(block_n), 5.0))
            bench.record(measured(bench.problem(outputs=256), config(block_n), 5.0), RTX_2080_TI)
        tried = []
        while (match := bench.lookup(problem)).observation:
            tried.append(match.config)
            bench.store.quarantine(match.observation.uuid, Status.COMPILE, "", ENVIRONMENT, match=match)
        assert sorted(setting.integer("BLOCK_N") for setting in tried) == [16, 64, 128]


class TestBest:
    def test_it_is_the_fastest_row_that_still_stands(self, bench: Bench) -> None:
        problem, source = bench.problem(), bench.kernel.source_hash
        assert bench.store.best(problem, T4, source) is None
        fast = bench.record(measured(problem, config(64), 5.0))
        slow = bench.record(measured(problem, config(16), 6.0))
        guess = bench.record(predicted(problem, config(128), 1.0))

        def uuid(**more: Kind) -> str:
            return bench.store.best(problem, T4, source, **more).uuid

        assert uuid() == fast
        assert uuid(kind=Kind.PREDICTED) == guess
        bench.store.quarantine(fast, Status.WRONG, "", ENVIRONMENT)
        assert uuid() == slow
        assert bench.store.best(problem, H200, source) is None
        assert bench.store.best(problem, T4, "another source") is None


class TestExplain:
    @pytest.fixture
    def match(self, bench: Bench) -> Match:
        bench.record(measured(bench.problem(outputs=512), config(256), 4.0))
        bench.record(measured(bench.problem(outputs=512), config(64), 5.0))
        bench.record(measured(bench.problem(outputs=128), config(256), 4.0), RTX_2080_TI)
        return bench.lookup(bench.problem(outputs=128))

    def test_plain_lines(self, match: Match) -> None:
        row = match.observation
        assert row is not None
        assert explain_lines(match) == [
            f"product 32x784x128 activation=relu on Tesla T4 (sm_75), source {match.source_hash[:8]}",
            "  exact: did not hold",
            "    device: rows exist for RTX 2080 Ti (sm_75, 68 SMs), this is Tesla T4 (sm_75, 40 SMs)",
            "  nearest: held",
            "    measured at 5.00 us for 32x784x512, 2.00 powers of two away on Tesla T4 "
            f"({row.created_at:%Y-%m-%d}, row {row.uuid[:8]})",
            "  config: BLOCK_N=64 STAGES=2",
        ]

    def test_the_table_says_the_same(self, match: Match) -> None:
        console = Console(width=200, record=True, file=None, quiet=False, force_terminal=False)
        with console.capture() as capture:
            console.print(explain(match))
        shown = capture.get()
        for line in explain_lines(match):
            assert line.strip().removesuffix(": held").removesuffix(": did not hold") in shown

    def test_json(self, match: Match) -> None:
        row = match.observation
        assert row is not None
        assert json.loads(json.dumps(as_json(match))) == {
            "kernel": "product",
            "dims": {"batch": 32, "inputs": 784, "outputs": 128},
            "options": {"activation": "relu"},
            "device": "Tesla T4/sm_75/40",
            "source_hash": match.source_hash,
            "rung": "nearest",
            "config": {"BLOCK_N": 64, "STAGES": 2},
            "expected_us": None,
            "held": source_of(match),
            "reasons": [
                {
                    "rung": "exact",
                    "reason": "device: rows exist for RTX 2080 Ti (sm_75, 68 SMs), this is Tesla T4 (sm_75, 40 SMs)",
                }
            ],
            "observation": {
                "uuid": row.uuid,
                "dims": {"batch": 32, "inputs": 784, "outputs": 512},
                "device": "Tesla T4/sm_75/40",
                "kind": "measured",
                "median_us": 5.0,
                "spread": 0.1,
                "error": 1e-4,
                "verified_by": "cuda",
                "created_at": row.created_at.isoformat(),
            },
        }

    def test_the_default(self, bench: Bench) -> None:
        match = bench.lookup(bench.problem())
        assert explain_lines(match)[-2:] == [
            "    the kernel's default; search this problem to do better",
            "  config: BLOCK_N=32 STAGES=2",
        ]
        assert as_json(match)["observation"] is None

    def test_many_rejections_are_counted_not_listed(self, bench: Bench) -> None:
        for block_n in (16, 32, 64, 128, 256):
            bench.record(failed(bench.problem(), config(block_n)))
        lines = why(bench.lookup(bench.problem()), Rung.EXACT)
        assert len(lines) == 4
        assert lines[-1] == "config: and 2 more that are not valid here or failed"
