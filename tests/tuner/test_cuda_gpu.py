"""On a GPU: each fault gets its own status and costs its candidate only; times are times. Run with `make gpu-test`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.test_selftest import searched
from tests.tuner.toy import Toy
from tuner.compile import compile_kernel
from tuner.judge import CheckJob, CudaWorkplace, Describe, FinalsJob, Job, LibraryJob
from tuner.kernel import Gemm
from tuner.measure import SAMPLES, Timing
from tuner.selftest import run_selftest
from tuner.selftest.faults import FAULTS
from tuner.selftest.trials import KERNEL, PROBLEM
from tuner.timed_graph import LAUNCHES
from tuner.types import Binary, CacheState, Config, Device, Measurement, Problem, Status
from tuner.worker import Worker

pytestmark = pytest.mark.gpu

LIMIT_S = 10.0


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(partial(CudaWorkplace, None), limit_s=LIMIT_S) as started:
        yield started


@pytest.fixture(scope="module")
def device(worker: Worker) -> Device:
    found, environment = worker.call(Describe())
    assert isinstance(found, Device)
    assert environment.driver
    assert environment.cupy
    return found


def judged(
    worker: Worker, device: Device, fault: str, *, problem: Problem = PROBLEM, cache: CacheState = CacheState.HOT
) -> Any:
    config = Config.of(FAULT=fault)
    binary = compile_kernel(KERNEL, problem, config, device.arch)
    assert isinstance(binary, Binary), binary
    return worker.call(Job(KERNEL, problem, config, binary, cache, 0))


def right(worker: Worker, device: Device) -> Measurement:
    seen = judged(worker, device, "none")
    assert isinstance(seen, Measurement)
    assert seen.status is Status.OK, seen.message
    return seen


def test_a_right_kernel_is_verified_and_timed(worker: Worker, device: Device) -> None:
    seen = right(worker, device)
    assert len(seen.samples_us) == SAMPLES
    assert seen.median_us is not None
    assert 0.2 < seen.median_us < 20
    assert seen.error is not None
    assert seen.error <= 1e-6
    assert (seen.verified_by, seen.cache) == ("cuda", CacheState.HOT)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("illegal_address", "ILLEGAL_ADDRESS|IllegalAddress|illegal"),
        ("trap", ""),
        ("out_of_bounds", "y: wrote outside of the array"),
        ("nan", r"y: 1 of 20011 elements are not finite .*\(17\)"),
        ("outlier", r"y: an element's error .* worst at \(17\)"),
        ("partial", r"y: 43 of 20011 elements .*\(19968\)"),
        ("stale", "y: not reproducible"),
        ("read_outside", "y: .* elements are not finite"),
        ("changed_input", "x: an input was changed"),
        ("counter", "arrived: a counter is not zero"),
        ("race", "y: relative error"),
        ("order", "y: not reproducible"),
        ("shared_limit", "shared memory"),
        ("threads_limit", "2048 threads"),
        ("cooperative_limit", "cooperative grid of 1048576 blocks"),
        ("large_shared", "^$"),
    ],
)
def test_each_fault_has_its_status_and_the_next_candidate_runs(
    worker: Worker, device: Device, fault: str, words: str
) -> None:
    seen = judged(worker, device, fault)
    (expected,) = (known.expected for known in FAULTS if known.name == fault)
    assert seen.status in expected, seen
    assert re.search(words, seen.message), seen.message
    right(worker, device)


def test_a_hang_costs_its_time_limit(worker: Worker, device: Device) -> None:
    right(worker, device)
    started = time.monotonic()
    assert judged(worker, device, "hang").status is Status.TIMEOUT
    assert time.monotonic() - started < LIMIT_S + 5
    right(worker, device)


def test_a_slow_kernel_is_timed_by_few_launches(worker: Worker, device: Device) -> None:
    seen = judged(worker, device, "slow")
    assert seen.status is Status.OK, seen.message
    assert seen.median_us > 500
    assert seen.extra["launches"] < LAUNCHES


@pytest.mark.parametrize("cache", [CacheState.HOT, CacheState.COLD])
def test_finalists_in_turns_are_as_fast_as_alone(worker: Worker, device: Device, cache: CacheState) -> None:
    names = ("none", "slow", "large_shared", "none")
    binaries = [compile_kernel(KERNEL, PROBLEM, Config.of(FAULT=name), device.arch) for name in names]
    contestants = tuple(
        (Config.of(FAULT=name), binary)
        for name, binary in zip(names, binaries, strict=True)
        if isinstance(binary, Binary)
    )
    assert len(contestants) == len(names)
    timings = worker.call(FinalsJob(KERNEL, PROBLEM, contestants, cache, 0))
    assert isinstance(timings, tuple), timings
    assert all(len(timing.samples_us) == SAMPLES for timing in timings)
    first, slow, _, again = (timing.median_us for timing in timings)
    assert again == pytest.approx(first, rel=0.05)
    assert slow > 500
    assert judged(worker, device, "none", cache=cache).median_us == pytest.approx(first, rel=0.1)


def test_the_selftest_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_selftest(device="cuda", limit_s=LIMIT_S, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert code == 0, document
    assert [row["fault"] for row in document["faults"]] == [fault.name for fault in FAULTS]
    assert document["not_run"] == []
    assert all(row["next"]["us"] < 100 for row in document["faults"])


def test_a_search_through_all_faults_measures_what_is_right(worker: Worker, device: Device, tmp_path: Path) -> None:
    result, found = searched(worker, device, tmp_path)
    assert {fault.name: found[fault.name] in fault.expected for fault in FAULTS} == {
        fault.name: True for fault in FAULTS
    }
    assert result.best is not None
    assert result.best.config["FAULT"] in {"none", "large_shared"}


def test_a_check_is_not_timed(worker: Worker, device: Device) -> None:
    config = Config.of(FAULT="none")
    binary = compile_kernel(KERNEL, PROBLEM, config, device.arch)
    assert isinstance(binary, Binary)
    verdict = worker.call(CheckJob(KERNEL, PROBLEM, config, 0, binary))
    assert (verdict.status, verdict.verified_by) == (Status.OK, "cuda")


def test_cold_inputs_take_longer(worker: Worker, device: Device) -> None:
    """Inputs of a quarter of L2, so that hot ones stay there and cold ones do not."""
    problem = KERNEL.problem(device.l2_bytes // 32)
    states = (CacheState.HOT, CacheState.COLD)
    hot, cold = (judged(worker, device, "none", problem=problem, cache=cache) for cache in states)
    assert (hot.status, cold.status) == (Status.OK, Status.OK), (hot.message, cold.message)
    assert cold.cache is CacheState.COLD
    assert cold.median_us > hot.median_us


class Products(Toy):
    """The toy, with the products of a layer's forward and backward pass."""

    def library(self, problem: Problem) -> tuple[Gemm, ...]:
        n = problem["n"]
        return (Gemm(32, n, n), Gemm(32, n, n, transpose_b=True), Gemm(n, n, 32, transpose_a=True))


def test_cublas(worker: Worker, device: Device) -> None:
    kernel = Products()
    times = [worker.call(LibraryJob(kernel, kernel.problem(n), CacheState.HOT, 0)) for n in (1024, 4096)]
    assert all(isinstance(seen, Timing) for seen in times), times
    assert 1.0 < times[0].median_us < times[1].median_us < 1000


def test_cublas_computes_the_product_that_is_meant(worker: Worker, device: Device) -> None:
    import cupy

    from tuner.backends.cublas import Cublas

    rng = cupy.random.default_rng(0)
    cublas = Cublas()
    cublas.use_current_stream()
    for gemm in (Gemm(32, 48, 64), Gemm(32, 48, 64, transpose_b=True), Gemm(32, 48, 64, transpose_a=True)):
        a = rng.standard_normal((gemm.k, gemm.m) if gemm.transpose_a else (gemm.m, gemm.k), dtype=cupy.float32)
        b = rng.standard_normal((gemm.n, gemm.k) if gemm.transpose_b else (gemm.k, gemm.n), dtype=cupy.float32)
        a, b, c = a.astype(cupy.float16), b.astype(cupy.float16), cupy.empty((gemm.m, gemm.n), cupy.float16)
        cublas.multiply(gemm, a, b, c)
        wide_a, wide_b = a.astype(cupy.float32), b.astype(cupy.float32)
        expected = (wide_a.T if gemm.transpose_a else wide_a) @ (wide_b.T if gemm.transpose_b else wide_b)
        assert float(cupy.abs(c - expected).max()) < 0.05


def test_a_binary_for_another_architecture_is_refused(worker: Worker, device: Device) -> None:
    other = "sm_75" if device.arch != "sm_75" else "sm_90"
    binary = compile_kernel(KERNEL, PROBLEM, Config.of(FAULT="none"), other)
    assert isinstance(binary, Binary)
    seen = worker.call(Job(KERNEL, PROBLEM, Config.of(FAULT="none"), replace(binary, arch=other), CacheState.HOT, 0))
    assert seen.status is Status.LAUNCH, seen
    right(worker, device)
