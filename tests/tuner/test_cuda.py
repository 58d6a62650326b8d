"""The GPU runner's and the timer's logic, over a fake CuPy."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tuner.fake_cupy import Gpu, OutOfMemoryError
from tests.tuner.toy import TOY, Toy
from tuner import judge
from tuner.backends import cuda
from tuner.backends.cuda import CudaRunner, Prepared
from tuner.devices import find
from tuner.judge import CudaWorkplace, FinalsJob, Job, WarmUp, _judged, _warm_up
from tuner.kernel import Argument, Array, Gemm, Role
from tuner.measure import RACED, SAMPLES, SLOWER, Timing, median_interval, time_interleaved, time_kernel, time_library
from tuner.timed_graph import SAMPLE_US, WARM_UP_US
from tuner.types import Binary, CacheState, Config, Failure, Launch, Measurement, Problem, Status
from tuner.verify import verify

T4 = find("t4")
PROBLEM = TOY.problem(1000)
CONFIG = Config.of(TILE=64, STAGES=2, MODE="plain")
BINARY = Binary(Path("toy.cubin"), "toy", "sm_75", 32, 0, 0)


def compute(x: Any, y: Any, arrived: Any, offset: Any) -> None:
    y[...] = 2 * x + offset


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu().install(monkeypatch)
    made.compute = compute
    return made


@pytest.fixture
def runner(gpu: Gpu) -> CudaRunner:
    return CudaRunner(T4)


class Shaped(Toy):
    """The toy with a launch of one's choice."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def launch(self, problem: Problem, config: Config) -> Launch:
        return self._launch


def test_a_right_kernel_passes(runner: CudaRunner) -> None:
    verdict = verify(runner, TOY, PROBLEM, CONFIG, BINARY, seed=0)
    assert verdict.ok, verdict.message
    assert verdict.verified_by == "cuda"


def test_outputs_are_nan_before_the_launch(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.compute = lambda *_: None
    verdict = verify(runner, TOY, PROBLEM, CONFIG, BINARY, seed=0)
    assert verdict.status is Status.WRONG
    assert "1000 of 1000 elements" in verdict.message


@pytest.mark.parametrize("where", [-1, 1])
def test_a_write_outside_of_an_array_is_a_failure(gpu: Gpu, runner: CudaRunner, where: int) -> None:
    def stray(x: Any, y: Any, arrived: Any, offset: Any) -> None:
        compute(x, y, arrived, offset)
        outside = y.base if y.base.dtype == np.uint8 else y.base.base
        outside[0 if where < 0 else -1] = 0

    gpu.compute = stray
    verdict = verify(runner, TOY, PROBLEM, CONFIG, BINARY, seed=0)
    assert (verdict.status, verdict.message) == (Status.RUNTIME, "y: wrote outside of the array")


def test_an_array_without_data_is_a_null_pointer(gpu: Gpu, runner: CudaRunner) -> None:
    class Partial(Toy):
        def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
            x, y, _, offset = super().arguments(problem, config, rng)
            return (x, y, Array("arrived", None, Role.COUNTER), offset)

    assert verify(runner, Partial(), PROBLEM, CONFIG, BINARY, seed=0).ok
    assert gpu.launches[-1][2] is None


@pytest.mark.parametrize(
    ("fault", "text", "status", "lost"),
    [
        ("load_error", "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image", Status.LAUNCH, False),
        ("launch_error", "CUDA_ERROR_INVALID_VALUE: invalid argument", Status.LAUNCH, False),
        ("launch_error", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many", Status.RESOURCES, False),
        ("sync_error", "cudaErrorIllegalAddress: an illegal memory access", Status.RUNTIME, True),
    ],
)
def test_errors_have_their_status(
    gpu: Gpu, runner: CudaRunner, fault: str, text: str, status: Status, lost: bool
) -> None:
    setattr(gpu, fault, text)
    verdict = verify(runner, TOY, PROBLEM, CONFIG, BINARY, seed=0)
    assert (verdict.status, verdict.message, runner.lost) == (status, text, lost)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch((1, 1, 1), (2048, 1, 1)), "2048 threads"),
        (Launch((1, 1, 1), (64, 1, 1), 65 << 10), "66560 bytes of shared memory"),
        (Launch((161, 1, 1), (64, 1, 1), 0, True), "room for only 4 on each of 40 SMs"),
    ],
)
def test_what_does_not_fit_is_not_launched(gpu: Gpu, runner: CudaRunner, launch: Launch, words: str) -> None:
    seen = runner.prepare(Shaped(launch), PROBLEM, CONFIG, BINARY)
    assert isinstance(seen, Failure)
    assert seen.status is Status.RESOURCES
    assert words in seen.message
    assert gpu.launches == []


def test_a_cooperative_grid_that_fits_is_prepared(runner: CudaRunner) -> None:
    assert isinstance(
        runner.prepare(Shaped(Launch((160, 1, 1), (64, 1, 1), 0, True)), PROBLEM, CONFIG, BINARY), Prepared
    )


@pytest.mark.parametrize(("together", "cooperative", "fits"), [(16, True, True), (15, True, False), (1, False, True)])
def test_clusters_that_must_be_there_at_once_are_counted(
    runner: CudaRunner, monkeypatch: pytest.MonkeyPatch, together: int, cooperative: bool, fits: bool
) -> None:
    monkeypatch.setattr(cuda, "admit_cluster", lambda *_: together)
    kernel = Shaped(Launch((128, 1, 1), (64, 1, 1), cooperative=cooperative, cluster=8))
    seen = runner.prepare(kernel, PROBLEM, CONFIG, BINARY)
    if fits:
        assert isinstance(seen, Prepared)
    else:
        message = "16 clusters of 8 blocks at once, but this GPU has room for 15"
        assert seen == Failure(Status.RESOURCES, message)


def test_no_block_fits(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.blocks_per_sm = 0
    assert runner.prepare(TOY, PROBLEM, CONFIG, BINARY) == Failure(Status.RESOURCES, "not even one block fits on an SM")


@pytest.mark.parametrize(("shared", "asked"), [(48 << 10, None), (50 << 10, 50 << 10)])
def test_shared_memory_beyond_48_kb_is_asked_for(gpu: Gpu, runner: CudaRunner, shared: int, asked: int | None) -> None:
    runner.prepare(Shaped(Launch((1, 1, 1), (64, 1, 1), shared)), PROBLEM, CONFIG, BINARY)
    assert gpu.opted_in == asked


def test_a_binary_is_needed(runner: CudaRunner) -> None:
    with pytest.raises(ValueError, match="compiled binary"):
        runner.execute(TOY, PROBLEM, CONFIG, None, ())


def timed(runner: CudaRunner, cache: CacheState = CacheState.HOT) -> Timing:
    seen = time_kernel(runner, TOY, PROBLEM, CONFIG, BINARY, cache=cache, seed=0)
    assert isinstance(seen, Timing), seen
    return seen


@pytest.mark.parametrize(("us", "launches"), [(2.0, 100), (0.5, 400), (40.0, 20), (300.0, 7), (3000.0, 1)])
def test_samples_are_the_time_of_one_launch(gpu: Gpu, runner: CudaRunner, us: float, launches: int) -> None:
    gpu.launch_us = us
    seen = timed(runner)
    assert seen.samples_us == pytest.approx((us,) * SAMPLES)
    assert seen.launches == launches


def test_hot_inputs_are_one_set(gpu: Gpu, runner: CudaRunner) -> None:
    timed(runner)
    assert len({id(values[0]) for values in gpu.launches}) == 1


def test_cold_inputs_rotate_over_twice_the_l2_evenly(gpu: Gpu, runner: CudaRunner) -> None:
    problem = TOY.problem(100_000)  # 0.8 MB a set; a T4 has 4 MB of L2
    seen = time_kernel(runner, TOY, problem, CONFIG, BINARY, cache=CacheState.COLD, seed=0)
    assert isinstance(seen, Timing)
    sample = gpu.launches[-seen.launches :]
    sets = {id(values[0]) for values in sample}
    assert len(sets) == 12
    assert len(sets) * 2 * 4 * 100_000 >= 2 * T4.l2_bytes
    assert seen.launches % len(sets) == 0
    assert all(id(first[0]) != id(second[0]) for first, second in itertools.pairwise(sample))


def test_cold_sets_leave_half_of_the_free_memory(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.free_bytes = 40_000
    seen = timed(runner, CacheState.COLD)
    assert len({id(values[0]) for values in gpu.launches[-seen.launches :]}) == 2


def test_a_timer_that_stands_still_ends_and_is_not_believed(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.launch_us = 0.0
    seen = _judged(runner, Job(TOY, PROBLEM, CONFIG, BINARY, CacheState.HOT, 0), {})
    assert seen.status is Status.UNSTABLE
    assert seen.median_us is None
    assert len(seen.samples_us) == SAMPLES


def test_an_error_while_timing_loses_the_context(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.launch_error = "CUDA_ERROR_ILLEGAL_ADDRESS"
    seen = time_kernel(runner, TOY, PROBLEM, CONFIG, BINARY, cache=CacheState.HOT, seed=0)
    assert isinstance(seen, Failure)
    assert (seen.status, runner.lost) == (Status.RUNTIME, True)


def test_a_judged_candidate_has_all_that_is_stored(runner: CudaRunner) -> None:
    seen = _judged(runner, Job(TOY, PROBLEM, CONFIG, replace(BINARY, static_shared_bytes=100), CacheState.HOT, 5), {})
    assert seen.status is Status.OK
    assert (seen.median_us, seen.spread, seen.seed, seen.cache) == (statistics.median(seen.samples_us), 0, 5, "hot")
    assert (seen.registers, seen.shared_bytes, seen.verified_by) == (32, 100 + 4 * 64, "cuda")
    assert seen.extra["launches"] == 100
    assert 0 < seen.extra["worst"] <= TOY.worst_element * 1e-6


def test_a_wrong_candidate_is_not_timed(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.compute = lambda *_: None
    seen = _judged(runner, Job(TOY, PROBLEM, CONFIG, BINARY, CacheState.HOT, 0), {})
    assert (seen.status, seen.samples_us, len(gpu.launches)) == (Status.WRONG, (), 1)


def test_memory_that_is_too_small_is_a_failure(gpu: Gpu, runner: CudaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    def full(*_: Any, **__: Any) -> None:
        raise OutOfMemoryError("out of memory allocating 4 bytes")

    monkeypatch.setattr(cupy, "full", full)
    seen = _judged(runner, Job(TOY, PROBLEM, CONFIG, BINARY, CacheState.HOT, 0), {})
    assert seen.status is Status.RESOURCES
    assert "out of memory" in seen.message


def test_warming_up_launches_nothing(gpu: Gpu, runner: CudaRunner) -> None:
    _warm_up(runner, WarmUp(TOY, PROBLEM, CONFIG, 0))
    assert gpu.launches == []


def raced(runner: CudaRunner, rival_us: float | None) -> Measurement:
    return _judged(runner, Job(TOY, PROBLEM, CONFIG, BINARY, CacheState.HOT, 0, rival_us), {})


def test_one_that_is_clearly_slower_is_given_up(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.launch_us = 4.0
    seen = raced(runner, 4.0 / (SLOWER * 1.01))
    assert (seen.status, seen.samples_us) == (Status.OK, pytest.approx((4.0,) * RACED))
    assert (seen.extra["samples"], seen.extra["gave_up_us"]) == (RACED, 4.0 / (SLOWER * 1.01))
    low, high = median_interval(seen.samples_us)
    assert (low, high) == (min(seen.samples_us), max(seen.samples_us)), "all of what there is, and no narrower"


@pytest.mark.parametrize("rival_us", [None, 4.0 / (SLOWER * 0.99), 4.0, 100.0])
def test_one_that_may_be_as_fast_has_all_samples(gpu: Gpu, runner: CudaRunner, rival_us: float | None) -> None:
    gpu.launch_us = 4.0
    seen = raced(runner, rival_us)
    assert len(seen.samples_us) == SAMPLES
    assert "gave_up_us" not in seen.extra


def test_a_candidate_that_is_disturbed_at_first_is_not_given_up(gpu: Gpu, runner: CudaRunner) -> None:
    """Half of the samples are slow: the interval of the median reaches down to the others."""
    count = itertools.count()

    def now_and_then(*arguments: Any) -> None:
        gpu.launch_us = 9.0 if next(count) // 100 % 2 else 2.0
        compute(*arguments)

    gpu.compute = now_and_then
    assert len(raced(runner, 2.0).samples_us) == SAMPLES


def test_a_full_timing_spends_little_beside_its_samples(gpu: Gpu, runner: CudaRunner) -> None:
    timed(runner)
    # Calibration counts as warming up; what is left over is one replay at most.
    assert gpu.now_us <= WARM_UP_US + (SAMPLES + 2) * SAMPLE_US


@given(st.lists(st.floats(1.0, 50.0), min_size=8, max_size=12, unique=True))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_giving_up_changes_no_winner_and_saves_time(gpu: Gpu, runner: CudaRunner, times: list[float]) -> None:
    def spent(race: bool) -> tuple[float, int]:
        started, best = gpu.now_us, None
        medians = []
        for us in times:
            gpu.launch_us = us
            median = raced(runner, best if race else None).median_us
            assert median is not None
            medians.append(median)
            best = min(medians)
        return gpu.now_us - started, medians.index(min(medians))

    (raced_us, winner), (whole_us, expected) = spent(True), spent(False)
    assert winner == expected == times.index(min(times))
    slower = sum(us > SLOWER * 1.001 * min(times[:place]) for place, us in enumerate(times) if place)
    assert raced_us <= whole_us - slower * (SAMPLES - RACED) * SAMPLE_US * 0.99


OTHERS = [Config.of(TILE=tile, STAGES=2, MODE="plain") for tile in (16, 32, 64)]


def against_each_other(runner: CudaRunner, cache: CacheState = CacheState.HOT, seed: int = 0) -> tuple[Timing, ...]:
    contestants = [(config, BINARY) for config in OTHERS]
    seen = time_interleaved(runner, TOY, PROBLEM, contestants, cache=cache, seed=seed)
    assert isinstance(seen, tuple), seen
    return seen


def replays(gpu: Gpu, timings: Sequence[Timing]) -> list[int]:
    """Whose graph was replayed, in the order of the rounds: the number of the contestant, by its arrays."""
    [launches] = {timing.launches for timing in timings}
    numbers: dict[int, int] = {}
    order = [numbers.setdefault(id(values[0]), len(numbers)) for values in gpu.launches]
    return order[-2 * SAMPLES * len(timings) * launches :: launches]


def test_finalists_take_turns_in_an_order_that_changes(gpu: Gpu, runner: CudaRunner) -> None:
    timings = against_each_other(runner)
    assert [timing.samples_us for timing in timings] == [pytest.approx((2.0,) * SAMPLES)] * 3
    order = replays(gpu, timings)
    assert order[::2] == order[1::2]  # one replay that is not timed, then the one that is
    rounds = [tuple(order[start : start + 6 : 2]) for start in range(0, len(order), 6)]
    assert len(rounds) == SAMPLES
    assert {tuple(sorted(each)) for each in rounds} == {(0, 1, 2)}
    assert len(set(rounds)) > 3
    gpu.launches.clear()
    assert replays(gpu, against_each_other(runner)) == order
    gpu.launches.clear()
    assert replays(gpu, against_each_other(runner, seed=1)) != order


def test_a_clock_that_drifts_does_the_same_to_all_finalists(gpu: Gpu, runner: CudaRunner) -> None:
    def slower(*arguments: Any) -> None:
        gpu.launch_us *= 1.00002

    gpu.compute = slower
    timings = against_each_other(runner)
    assert max(timing.samples_us[-1] / timing.samples_us[0] for timing in timings) > 1.2
    medians = [timing.median_us for timing in timings]
    assert max(medians) / min(medians) < 1.01


def test_finalists_share_the_memory_for_cold_inputs(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.free_bytes = 120_000
    against_each_other(runner, CacheState.COLD)
    assert len({id(values[0]) for values in gpu.launches}) == 3 * 2


def test_a_finalist_that_does_not_fit_fails_them_all(gpu: Gpu, runner: CudaRunner) -> None:
    gpu.blocks_per_sm = 0
    seen = time_interleaved(runner, TOY, PROBLEM, [(CONFIG, BINARY)], cache=CacheState.HOT, seed=0)
    assert seen == Failure(Status.RESOURCES, "not even one block fits on an SM")


def test_a_workplace_times_finalists(gpu: Gpu, runner: CudaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "resolve", lambda _: T4)
    place = CudaWorkplace(None)
    request = FinalsJob(TOY, PROBLEM, tuple((config, BINARY) for config in OTHERS), CacheState.HOT, 0)
    seen = place.handle(request)
    assert isinstance(seen, tuple)
    assert [timing.median_us for timing in seen if isinstance(timing, Timing)] == pytest.approx([2.0] * 3)
    gpu.launch_error = "CUDA_ERROR_ILLEGAL_ADDRESS"
    failed = place.handle(request)
    assert isinstance(failed, Failure)
    assert (failed.status, place.lost) == (Status.RUNTIME, True)


class FakeCublas:
    """Products that take as long as a launch of the fake GPU."""

    gpu: Gpu
    made = 0

    def __init__(self) -> None:
        FakeCublas.made += 1

    def use_current_stream(self) -> None: ...

    def multiply(self, gemm: Gemm, a: Any, b: Any, c: Any) -> None:
        assert (a.size, b.size, c.size) == (gemm.m * gemm.k, gemm.k * gemm.n, gemm.m * gemm.n)
        self.gpu.do(lambda: self.gpu.run((a, b, c, 0)))


def test_the_library_is_timed_on_all_its_products(
    gpu: Gpu, runner: CudaRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCublas.gpu = gpu
    gpu.compute = lambda *_: None
    monkeypatch.setattr(cuda, "Cublas", FakeCublas)
    before = FakeCublas.made
    for _ in range(2):
        seen = time_library(runner, (Gemm(32, 8, 16), Gemm(32, 16, 8)), cache=CacheState.HOT, seed=0)
        assert isinstance(seen, Timing)
        assert seen.median_us == pytest.approx(2 * gpu.launch_us)
    assert FakeCublas.made == before + 1, "making one takes a while, so the runner keeps it"


def test_no_library_is_a_failure_that_says_so(runner: CudaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("cuBLAS was not found")

    monkeypatch.setattr(cuda, "Cublas", missing)
    seen = time_library(runner, (Gemm(32, 8, 16),), cache=CacheState.HOT, seed=0)
    assert seen == Failure(Status.LAUNCH, "cuBLAS is not installed: cuBLAS was not found")
