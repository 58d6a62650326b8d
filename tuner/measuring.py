"""What one problem's search asks of the GPU: the library's way of doing it once, then candidate after candidate."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.candidates import outcome
from tuner.judge import Job, LibraryJob, WarmUp
from tuner.measure import Timing
from tuner.task import Task
from tuner.types import Binary, Config, Failure, Launch, Measurement
from tuner.worker import AHEAD, Answer, Waitable

LIBRARY = "cuBLAS"

WARM_UP_LIMIT_S = 180.0
"""For CuPy to compile some tens of its own kernels on a slow machine, once; it keeps them on disk."""


@dataclass(frozen=True, slots=True)
class _Posted:
    """A candidate that the GPU was given."""

    config: Config
    binary: Binary
    mark: str


class Measuring:
    """Turns compiled candidates into rows. The GPU is first touched when a candidate needs it."""

    def __init__(self, task: Task, stored: Mapping[Config, Measurement]) -> None:
        self._task = task
        self._warming = self._begun = False
        self._twins = {row.extra["binary"]: row for row in stored.values() if row.ok and "binary" in row.extra}
        self.products_us = _stored_products(task)
        """What the library needs for the problem's products alone; None where that is not known."""
        self._library: Measurement | None = None
        self._rival_us: float | None = None
        """The fastest time of this run: one of another day may have been taken at another clock."""
        self._posted: deque[_Posted] = deque()
        self._behind: dict[str, list[_Posted]] = {}
        """By `fingerprint`: those whose binary the GPU is at work on for another configuration."""
        task.progress.library(self.library_us)

    @property
    def library_us(self) -> float | None:
        """What the library's way takes: with all that the kernel does besides, where it is declared, or its products
        alone. None where that is not known.
        """
        if self._task.kernel.library_form is None:
            return self.products_us
        return self._library.median_us if self._library is not None and self._library.ok else None

    def library(self, rows: Sequence[Measurement], meanwhile: Callable[[], None]) -> Measurement | None:
        """The row of the library's way (`Kernel.library_form`): out of `rows`, the store's, or measured and recorded.

        It is verified and timed as a candidate is, and may win. None where the kernel has no such form. `meanwhile` is
        called once its compilation is under way.
        """
        task = self._task
        form = task.kernel.library_form
        if form is None:
            meanwhile()
            return None
        config = form.only_config
        row = task.latest(row for row in rows if not row.finalist).get(config)
        if row is None:
            compilation = task.compiler.submit(task.kernel, task.problem, config, task.device.arch)
            self._warm_up()
            meanwhile()
            row = self._judge(config, outcome(compilation))
            task.record(row)
        else:
            meanwhile()
        if not row.ok:
            task.progress.note(f"no {LIBRARY} time for {task.problem.label}: {row.status.value}, {row.message}")
        self._library = row
        task.progress.library(self.library_us)
        return row

    @property
    def at_work(self) -> bool:
        """Whether the GPU was given a candidate whose row is not there yet."""
        return bool(self._posted)

    @property
    def room(self) -> bool:
        """Whether the GPU should be given one more: it has none, or none after the one that it is working on."""
        return len(self._posted) < AHEAD

    def start(self, config: Config, compiled: Binary | Failure) -> Measurement | None:
        """The row of a candidate where it needs no GPU; otherwise None, and `finished` has it later.

        Where another configuration gave the same machine code and the same launch, it has that one's measurement, and
        `extra` says whose (`same_binary_as`). A failure is not handed on: it may have been the machine's.
        """
        task = self._task
        if isinstance(compiled, Failure):
            return task.row(config, compiled)
        mark = fingerprint(compiled, task.kernel.form(config).launch(task.problem, config))
        posted = _Posted(config, compiled, mark)
        if mark in self._twins:
            return self._as_its_twin(posted)
        if mark in self._behind:
            self._behind[mark].append(posted)
            return None
        self._begin()
        self._post(posted)
        return None

    def finished(
        self, *, also: Sequence[Waitable] = (), timeout_s: float | None = None
    ) -> tuple[Answer, list[Measurement]] | None:
        """The GPU's next answer, and the rows that come of it; not recorded. None as `Worker.wait` says."""
        answer = self._task.worker.wait(also=also, timeout_s=timeout_s)
        if answer is None:
            return None
        posted = self._posted.popleft()
        behind = self._behind.pop(posted.mark)
        if isinstance(answer.value, Failure):
            row = self._task.row(posted.config, answer.value, posted.binary)
        else:
            row = replace(answer.value, extra={**answer.value.extra, "binary": posted.mark})
        if row.ok:
            self._twins[posted.mark] = row
            times = (us for us in (self._rival_us, row.median_us) if us is not None)
            self._rival_us = min(times, default=None)
            return answer, [row, *map(self._as_its_twin, behind)]
        if behind:
            self._post(behind[0])
            self._behind[posted.mark] = behind[1:]
        return answer, [row]

    def _post(self, posted: _Posted) -> None:
        task = self._task
        seed, rival_us = task.settings.seed, self._rival_us
        job = Job(task.kernel, task.problem, posted.config, posted.binary, task.cache, seed, rival_us)
        task.worker.post(job, limit_s=task.settings.limit_s)
        self._posted.append(posted)
        self._behind[posted.mark] = []

    def _as_its_twin(self, posted: _Posted) -> Measurement:
        twin = self._twins[posted.mark]
        extra = {**twin.extra, "same_binary_as": twin.config.key}
        seed, seconds = self._task.settings.seed, posted.binary.seconds
        return replace(twin, config=posted.config, seed=seed, compile_s=seconds, extra=extra)

    def _judge(self, config: Config, compiled: Binary | Failure) -> Measurement:
        """The row of a candidate that is the only one."""
        row = self.start(config, compiled)
        while row is None:
            done = self.finished()
            row = done[1][0] if done is not None else None
        return row

    def _warm_up(self) -> None:
        """Have the GPU's process made ready, which goes on while the first candidates compile."""
        if not self._warming:
            self._warming = True
            task = self._task
            request = WarmUp(task.kernel, task.problem, task.default, task.settings.seed)
            task.worker.post(request, limit_s=WARM_UP_LIMIT_S)

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        task = self._task
        with task.spent.during("warm_up"):
            self._warm_up()
            task.worker.wait()
            self.products_us = _time_products(task)
        task.progress.library(self.library_us)
        task.spent.warmed_up()


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
