"""What is asked of the child that owns the GPU, or of the one that emulates, and how it answers.

Requests and answers travel between processes by pickle; the workplaces exist in the child only (`tuner.worker`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tuner.backends import Runner
from tuner.backends.cuda import CudaRunner
from tuner.devices import device_index, environment, resolve
from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.measure import Timing, time_interleaved, time_kernel, time_library, unbelievable
from tuner.types import (
    Binary,
    CacheState,
    Config,
    Device,
    Environment,
    Failure,
    Kind,
    Measurement,
    Problem,
    Status,
)
from tuner.verify import Verdict, rehearse, verify


@dataclass(frozen=True, slots=True)
class Describe:
    """Asks for the device (None without a GPU) and the environment."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Asks to do once all that surrounds a candidate's launch; the answer is None.

    CuPy compiles the kernels that make inputs and references at their first use, which may take longer than a candidate
    is allowed, and would be blamed on the first one.
    """

    kernel: Kernel
    problem: Problem
    config: Config
    seed: int


@dataclass(frozen=True, slots=True)
class Job:
    """Asks to verify a compiled candidate, and to time it where it is right; the answer is a `Measurement`."""

    kernel: Kernel
    problem: Problem
    config: Config
    binary: Binary
    cache: CacheState
    seed: int
    rival_us: float | None = None
    """The fastest time so far; one that is clearly slower is not timed to the end (`measure.SLOWER`)."""


@dataclass(frozen=True, slots=True)
class FinalsJob:
    """Asks to time compiled candidates that were right, in turns; the answer is their `Timing`s, or a `Failure`."""

    kernel: Kernel
    problem: Problem
    contestants: tuple[tuple[Config, Binary], ...]
    cache: CacheState
    seed: int


@dataclass(frozen=True, slots=True)
class LibraryJob:
    """Asks to time what cuBLAS needs for the products of a problem alone; the answer is a `Timing` or a `Failure`."""

    kernel: Kernel
    problem: Problem
    cache: CacheState
    seed: int


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Asks to verify a candidate without timing it; the answer is a `Verdict`. The emulation compiles for itself."""

    kernel: Kernel
    problem: Problem
    config: Config
    seed: int
    binary: Binary | None = None


class CudaWorkplace:
    """In the child that owns the GPU `spec` (as `--device` has it)."""

    def __init__(self, spec: str | None) -> None:
        self.device = resolve(spec)
        self._runner = CudaRunner(self.device, device_index(spec) or 0) if self.device is not None else None
        self.spent: dict[str, float] = {}
        """Of the last `Job`: the seconds of `load`, `verify` and `time`."""

    @property
    def lost(self) -> bool:
        return self._runner is not None and self._runner.lost

    def handle(
        self, request: Describe | WarmUp | Job | FinalsJob | LibraryJob | CheckJob
    ) -> tuple[Device | None, Environment] | Measurement | tuple[Timing, ...] | Timing | Verdict | Failure | None:
        if isinstance(request, Describe):
            return self.device, environment()
        if self._runner is None:
            raise UserError(
                "The GPU is gone; look for it with nvidia-smi, then run the same command again: everything measured "
                "so far is stored."
            )
        import cupy

        self.spent.clear()
        try:
            if isinstance(request, WarmUp):
                _warm_up(self._runner, request)
                return None
            if isinstance(request, LibraryJob):
                gemms = request.kernel.library(request.problem)
                return time_library(self._runner, gemms, cache=request.cache, seed=request.seed)
            if isinstance(request, FinalsJob):
                return time_interleaved(
                    self._runner,
                    request.kernel,
                    request.problem,
                    request.contestants,
                    cache=request.cache,
                    seed=request.seed,
                )
            if isinstance(request, CheckJob):
                return _checked(self._runner, request)
            return _judged(self._runner, request, self.spent)
        except cupy.cuda.memory.OutOfMemoryError as error:
            return Failure(Status.RESOURCES, f"the GPU's memory does not hold the problem: {error}")


def _warm_up(runner: CudaRunner, request: WarmUp) -> None:
    arguments = request.kernel.arguments(request.problem, request.config, runner.rng(request.seed))
    runner.warm_up(arguments)
    rehearse(request.kernel, request.problem, request.config, arguments)


def _checked(runner: Runner, job: CheckJob) -> Verdict:
    return verify(runner, job.kernel, job.problem, job.config, job.binary, seed=job.seed)


def _judged(runner: CudaRunner, job: Job, spent: dict[str, float]) -> Measurement:
    """Verify, and time what is right; `spent` is given the seconds of both."""
    kernel, problem, config, binary = job.kernel, job.problem, job.config, job.binary
    started, loaded = time.perf_counter(), runner.load_s
    verdict = verify(runner, kernel, problem, config, binary, seed=job.seed)
    verified = time.perf_counter()
    spent["load"] = runner.load_s - loaded
    spent["verify"] = verified - started - spent["load"]
    seen = measurement(problem, config, Kind.MEASURED, verdict, binary, seed=job.seed)
    seen = replace(seen, cache=job.cache, shared_bytes=shared_bytes(kernel, problem, config, binary))
    if not verdict.ok:
        return seen
    timing = time_kernel(runner, kernel, problem, config, binary, cache=job.cache, seed=job.seed, rival_us=job.rival_us)
    spent["time"] = time.perf_counter() - verified
    if isinstance(timing, Failure):
        return replace(seen, status=timing.status, message=timing.message)
    return timed(seen, timing, unbelievable(timing, kernel.form(config).work(problem, config), runner.device))


class EmulationWorkplace:
    """In the child that emulates; `time_limit` is how many seconds a launch may take there."""

    lost = False
    spent: ClassVar[Mapping[str, float]] = {}

    def __init__(self, time_limit: float = 60.0) -> None:
        from tuner.backends.emulate import EmulationRunner

        self._runner: Runner = EmulationRunner(time_limit=time_limit)

    def handle(self, request: CheckJob) -> Verdict:
        return _checked(self._runner, request)


def shared_bytes(kernel: Kernel, problem: Problem, config: Config, binary: Binary) -> int:
    """Shared memory of one block, static and dynamic."""
    return binary.static_shared_bytes + kernel.form(config).launch(problem, config).shared_bytes


def measurement(
    problem: Problem, config: Config, kind: Kind, result: Verdict | Failure, binary: Binary | None, *, seed: int
) -> Measurement:
    """A row without a time: a failure of any stage, or the verdict of a candidate that is timed next."""
    verdict = result if isinstance(result, Verdict) else None
    return Measurement(
        problem=problem,
        config=config,
        status=result.status,
        kind=kind,
        message=result.message,
        error=verdict.error if verdict else None,
        tolerance=verdict.tolerance if verdict else None,
        seed=seed,
        registers=binary.registers if binary else None,
        spill_bytes=binary.spill_bytes if binary else None,
        compile_s=binary.seconds if binary else None,
        verified_by=verdict.verified_by if verdict else "",
        extra={"worst": verdict.worst} if verdict and verdict.worst is not None else {},
    )


def timed(seen: Measurement, timing: Timing, doubt: str | None) -> Measurement:
    """`seen` with its samples; UNSTABLE where there is a doubt about them.

    Where it was given up, `extra` says how many `samples` that took, and which time it was up against (`gave_up_us`).
    """
    extra: dict[str, Any] = {**seen.extra, "launches": timing.launches}
    if timing.gave_up_us is not None:
        extra |= {"samples": len(timing.samples_us), "gave_up_us": timing.gave_up_us}
    return replace(
        seen,
        status=Status.UNSTABLE if doubt else Status.OK,
        message=doubt or "",
        samples_us=timing.samples_us,
        median_us=None if doubt else timing.median_us,
        spread=None if doubt else timing.spread,
        cache=timing.cache,
        extra=extra,
    )
