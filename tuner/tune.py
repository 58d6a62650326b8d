"""THE path: problem -> space -> ask -> compile -> verify -> measure -> record + tell.

`tune` is the loop over problems, `measure_problem` the path with a GPU; `tuner.predicting` has the one without. Each
row is committed before the next candidate is looked at, so a killed search loses nothing; the same command again asks
the same questions, has those that are stored answered by the store, and goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from tuner.candidates import Candidates, Compiler
from tuner.compile import CompilePool
from tuner.judge import Job, LibraryJob, WarmUp
from tuner.kernel import Kernel
from tuner.measure import Timing
from tuner.predicting import predict_problem
from tuner.progress import Progress
from tuner.store import Store
from tuner.task import Caller, ProblemResult, Settings, Task, fastest
from tuner.types import Binary, CacheState, Config, Device, Environment, Failure, Kind, Measurement, Problem

__all__ = ["ProblemResult", "Settings", "tune"]

LIBRARY = "cuBLAS"

WARM_UP_LIMIT_S = 180.0
"""For CuPy to compile some tens of its own kernels on a slow machine, once; it keeps them on disk."""


def tune(
    problems: Sequence[Problem],
    *,
    kernels: Mapping[str, Kernel],
    store: Store,
    device: Device,
    environment: Environment,
    settings: Settings,
    progress: Progress,
    worker: Caller,
    kind: Kind = Kind.MEASURED,
    pool: AbstractContextManager[Compiler] | None = None,
) -> Iterator[ProblemResult]:
    """Tune `problems` on `device`, one after the other; yields each one's result when it is done.

    With `kind` MEASURED, `worker` holds a `CudaWorkplace` of the device; with PREDICTED, an `EmulationWorkplace`.

    Raises:
        UserError: what the user can mend (no compiler, a store that cannot be written, a GPU that is gone).
    """
    with pool or CompilePool(settings.workers) as compiler:
        for number, problem in enumerate(problems, 1):
            kernel = kernels[problem.kernel]
            space = kernel.space(problem, device)
            progress.begin(number, len(problems), problem, settings.trials)
            if next(iter(space), None) is None:
                result = ProblemResult(problem, kind, None, None, 0, 0, {}, "exhausted", 0.0)
            else:
                task = Task(
                    kernel=kernel,
                    problem=problem,
                    space=space,
                    default=space.default(),
                    device=device,
                    environment=environment,
                    settings=settings,
                    store=store,
                    compiler=compiler,
                    worker=worker,
                    progress=progress,
                    kind=kind,
                    started=time.monotonic(),
                )
                result = measure_problem(task) if kind is Kind.MEASURED else predict_problem(task)
            progress.end(result.best)
            yield result


def measure_problem(task: Task) -> ProblemResult:
    """With a GPU: every candidate is verified, timed and recorded."""
    rows = task.rows()
    stored = task.stored(rows)
    search = task.search(rows, known=[row for row in stored.values() if row.seed != task.settings.seed])
    if len(stored) >= task.settings.trials:
        library_us = _stored_library(task)
    else:
        task.worker.call(WarmUp(task.kernel, task.problem, task.default, task.settings.seed), limit_s=WARM_UP_LIMIT_S)
        library_us = _time_library(task)
    task.progress.library(library_us)
    candidates = Candidates(
        search, stored, task.kernel, task.problem, task.device.arch, task.settings.trials, task.compiler
    )
    seen = dict(stored)
    cache = task.cache
    for config, compiled in candidates.until(task.overdue):
        if isinstance(compiled, Measurement):
            row = compiled
        else:
            row = _measured(task, config, compiled, cache)
            task.record(row)
            seen[config] = row
        search.tell(row)
        task.progress.trial(row, search.best, len(seen))
    return task.result(fastest(seen.values()), library_us, seen, len(seen) - len(stored), candidates.ended)


def _measured(task: Task, config: Config, compiled: Binary | Failure, cache: CacheState) -> Measurement:
    if isinstance(compiled, Failure):
        return task.row(config, compiled)
    job = Job(task.kernel, task.problem, config, compiled, cache, task.settings.seed)
    answer = task.worker.call(job, limit_s=task.settings.limit_s)
    return task.row(config, answer, compiled) if isinstance(answer, Failure) else answer


def _time_library(task: Task) -> float | None:
    """The library's time, once per problem and search, recorded."""
    if not task.kernel.library(task.problem):
        return None
    answer = task.worker.call(LibraryJob(task.kernel, task.problem, task.cache, task.settings.seed))
    if not isinstance(answer, Timing) or not all(sample > 0 for sample in answer.samples_us):
        task.progress.note(
            f"no {LIBRARY} time for {task.problem.label}: {getattr(answer, 'message', 'not believable')}"
        )
        return None
    task.store.record_baseline(task.problem, task.device, task.environment, LIBRARY, answer.samples_us, answer.cache)
    return answer.median_us


def _stored_library(task: Task) -> float | None:
    times = [row.median_us for row in task.store.baselines(task.device) if row.problem == task.problem]
    return times[-1] if times else None
