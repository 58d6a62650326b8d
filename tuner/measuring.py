"""What one problem's search asks of the GPU: the library's way of doing it once, then candidate after candidate."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.candidates import outcome
from tuner.judge import Job, LibraryJob, WarmUp
from tuner.measure import Timing
from tuner.task import Task
from tuner.types import Binary, Config, Failure, Launch, Measurement

LIBRARY = "cuBLAS"

WARM_UP_LIMIT_S = 180.0
"""For CuPy to compile some tens of its own kernels on a slow machine, once; it keeps them on disk."""


class Measuring:
    """Turns compiled candidates into rows. The GPU is first touched when a candidate needs it."""

    def __init__(self, task: Task, stored: Mapping[Config, Measurement]) -> None:
        self._task = task
        self._begun = False
        self._twins = {row.extra["binary"]: row for row in stored.values() if row.ok and "binary" in row.extra}
        self.products_us = _stored_products(task)
        """What the library needs for the problem's products alone; None where that is not known."""
        self._library: Measurement | None = None
        task.progress.library(self.library_us)

    @property
    def library_us(self) -> float | None:
        """What the library's way takes: with all that the kernel does besides, where it is declared, or its products
        alone. None where that is not known.
        """
        if self._task.kernel.library_form is None:
            return self.products_us
        return self._library.median_us if self._library is not None and self._library.ok else None

    def library(self, rows: Sequence[Measurement]) -> Measurement | None:
        """The row of the library's way (`Kernel.library_form`): out of `rows`, the store's, or measured and recorded.

        It is verified and timed as a candidate is, and may win. None where the kernel has no such form.
        """
        task = self._task
        form = task.kernel.library_form
        if form is None:
            return None
        config = form.only_config
        row = task.latest(row for row in rows if not row.finalist).get(config)
        if row is None:
            compiled = outcome(task.compiler.submit(task.kernel, task.problem, config, task.device.arch))
            row = self.judge(config, compiled)
            task.record(row)
        if not row.ok:
            task.progress.note(f"no {LIBRARY} time for {task.problem.label}: {row.status.value}, {row.message}")
        self._library = row
        task.progress.library(self.library_us)
        return row

    def judge(self, config: Config, compiled: Binary | Failure) -> Measurement:
        """The row of a candidate; not recorded.

        Where another configuration gave the same machine code and the same launch, it has that one's measurement, and
        `extra` says whose (`same_binary_as`). A failure is not handed on: it may have been the machine's.
        """
        task = self._task
        if isinstance(compiled, Failure):
            return task.row(config, compiled)
        mark = fingerprint(compiled, task.kernel.form(config).launch(task.problem, config))
        twin = self._twins.get(mark)
        if twin is not None:
            extra = {**twin.extra, "same_binary_as": twin.config.key}
            return replace(twin, config=config, seed=task.settings.seed, compile_s=compiled.seconds, extra=extra)
        self._begin()
        job = Job(task.kernel, task.problem, config, compiled, task.cache, task.settings.seed)
        answer: Measurement | Failure = task.worker.call(job, limit_s=task.settings.limit_s)
        if isinstance(answer, Failure):
            return task.row(config, answer, compiled)
        row = replace(answer, extra={**answer.extra, "binary": mark})
        if row.ok:
            self._twins[mark] = row
        return row

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        task = self._task
        task.worker.call(WarmUp(task.kernel, task.problem, task.default, task.settings.seed), limit_s=WARM_UP_LIMIT_S)
        self.products_us = _time_products(task)
        task.progress.library(self.library_us)


def fingerprint(binary: Binary, launch: Launch) -> str:
    """Equal for two configurations that the GPU cannot tell apart: the same machine code, started in the same way."""
    digest = hashlib.sha256(binary.path.read_bytes())
    digest.update(repr(launch).encode())
    return digest.hexdigest()[:16]


def _time_products(task: Task) -> float | None:
    """The library's time for the products alone, once per problem and search, recorded."""
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


def _stored_products(task: Task) -> float | None:
    times = [row.median_us for row in task.store.baselines(task.device) if row.problem == task.problem]
    return times[-1] if times else None
