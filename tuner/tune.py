"""THE path: problem -> space -> ask -> compile -> verify -> measure -> record + tell -> finals.

`tune` is the loop over problems, `measure_problem` the path with a GPU; `tuner.predicting` has the one without. Each
row is committed before the next candidate is looked at, so a killed search loses nothing; the same command again asks
the same questions, has those that are stored answered by the store, and goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from tuner.candidates import Compiler
from tuner.compile import CompilePool
from tuner.finals import hold_finals
from tuner.kernel import Kernel
from tuner.measuring import WARM_UP_LIMIT_S, Measuring
from tuner.pipeline import Pipeline
from tuner.predicting import predict_problem
from tuner.progress import Progress
from tuner.reduced import reduced
from tuner.space import Space
from tuner.stopping import Patience
from tuner.store import Store
from tuner.task import Poster, ProblemResult, Settings, Task, fastest
from tuner.types import Device, Environment, Kind, Problem

__all__ = ["WARM_UP_LIMIT_S", "ProblemResult", "Settings", "tune"]


def tune(
    problems: Sequence[Problem],
    *,
    kernels: Mapping[str, Kernel],
    store: Store,
    device: Device,
    environment: Environment,
    settings: Settings,
    progress: Progress,
    worker: Poster,
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
            skipped = _why_skipped(kernel, problem, space, device, kind)
            if skipped:
                result = ProblemResult(problem, kind, None, None, None, 0, 0, {}, skipped, 0.0)
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


def _why_skipped(kernel: Kernel, problem: Problem, space: Space, device: Device, kind: Kind) -> str:
    """How a problem ends that is not worth a search; empty where it is."""
    if next(iter(space), None) is None:
        return "unfit"
    if kind is Kind.PREDICTED and reduced(kernel, problem, space.default(), device) is None:
        return "unemulated"  # a prediction that nobody can verify is not stored
    return ""


def measure_problem(task: Task) -> ProblemResult:
    """With a GPU: every candidate is verified, timed and recorded; the fastest are timed again, against each other."""
    with task.spent.during("begin"):
        rows = task.rows()
        stored = task.stored(rows)
        known = [row for row in stored.values() if row.seed != task.settings.seed]
        search = task.search(rows, known)
    patience = Patience(task.settings.trials)
    for row in known:
        patience.better(row)
    gpu = Measuring(task, stored)
    with task.candidates(search, stored) as candidates:
        library = gpu.library(rows, meanwhile=candidates.fill)
        pipeline = Pipeline(task, candidates, gpu)
        for row in pipeline.rows():
            with task.spent.during("tell"):
                search.tell(row)
            patience.saw(row)
            if task.settings.early_stop and patience.over:
                candidates.settle()
            task.progress.trial(row, search.best, len(stored) + len(pipeline.recorded))
    seen = {**stored, **pipeline.recorded}
    rivals = seen if library is None else {**seen, library.config: library}
    with task.spent.during("finals"):
        settled = hold_finals(task, rivals, {**rivals, **task.latest(rows)})
    return task.result(
        fastest(settled), (gpu.library_us, gpu.products_us), seen, len(seen) - len(stored), candidates.ended
    )
