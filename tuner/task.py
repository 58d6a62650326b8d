"""What a search is given, what it hands back, and the one problem that it is at work on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tuner.candidates import WINDOW, Candidates, Compiler
from tuner.guesses import SAMPLE, best_guesses, expectation
from tuner.judge import measurement
from tuner.kernel import Kernel
from tuner.measure import cache_state
from tuner.progress import Progress
from tuner.search import Search, neighbours
from tuner.space import Space
from tuner.spent import Spent
from tuner.store import Store
from tuner.types import Binary, CacheState, Config, Device, Environment, Failure, Kind, Measurement, Problem
from tuner.worker import Answer, Waitable


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user chooses about a search."""

    trials: int = 100
    """Configurations per problem, those that are stored already included."""
    timeout_s: float | None = None
    """Per problem; what is under way when it ends is dropped."""
    seed: int = 0
    sampler: str = "gp"
    arch: str | None = None
    """What to compile for without a GPU; the device's own where it is None."""
    predict_for: str = "Tesla T4"
    """The GPU that is predicted where there is none."""
    verify: int = 3
    """Without a GPU: how many of the best-ranked candidates must pass the emulation."""
    limit_s: float = 30.0
    """For one candidate on the GPU, its verification included."""
    early_stop: bool = True
    """End before `trials` when the search has settled (`tuner.stopping`)."""
    workers: int | None = None
    """Compiler processes; as many as there are cores where it is None."""
    step_bytes: Mapping[Problem, int] = field(default_factory=dict)
    """How much memory the training step that a problem belongs to touches: decides whether it is timed hot or cold.
    Estimated where a problem is not in it (`measure.cache_state`)."""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """What is known of a problem when its search ends."""

    problem: Problem
    kind: Kind
    best: Measurement | None
    library_us: float | None
    """What cuBLAS and one element-wise kernel need for it; None where there is no such way, or without a GPU."""
    products_us: float | None
    """What cuBLAS needs for the products alone; None as above."""
    trials: int
    """Configurations that are known now."""
    new: int
    """Those that were tried in this run."""
    failures: Mapping[str, int]
    ended: str
    """`trials` reached, space `exhausted`, `time` over, `settled` (further trials were not worth their time), or
    `unfit` (the kernel has no configuration for this problem on this device), or `unemulated` (without a GPU: no
    smaller problem stands for it either)."""
    seconds: float
    spent: Mapping[str, Any] = field(default_factory=dict)
    """Where the time went (`tuner.spent.Spent.summary`)."""

    @property
    def ratio(self) -> float | None:
        """The library's time over the best one: above 1 the tuned kernel is faster."""
        if self.best is None or self.best.median_us is None or self.library_us is None:
            return None
        return self.library_us / self.best.median_us

    def summary(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kernel": self.problem.kernel,
            "dims": dict(self.problem.dims),
            "options": dict(self.problem.options),
            "kind": self.kind.value,
            "us": self.best.median_us if self.best else None,
            "spread": self.best.spread if self.best else None,
            "ci_us": self.best.extra.get("ci_us") if self.best else None,
            "tied_with": self.best.extra.get("tied_with") if self.best else None,
            "config": dict(self.best.config) if self.best else None,
            "message": self.best.message if self.best else "",
            "library_us": self.library_us,
            "products_us": self.products_us,
            "ratio": self.ratio,
            "trials": self.trials,
            "new": self.new,
            "failures": dict(self.failures),
            "ended": self.ended,
            "seconds": round(self.seconds, 3),
            "spent": dict(self.spent),
        }


class Caller(Protocol):
    """Whoever answers the requests of `tuner.judge`: a `Worker`, or a replayed source in a test."""

    def call(self, request: Any, *, limit_s: float | None = None) -> Any: ...


class Poster(Caller, Protocol):
    """One that can also be given requests ahead (see `Worker`)."""

    def post(self, request: Any, *, limit_s: float | None = None) -> None: ...

    def wait(self, *, also: Sequence[Waitable] = (), timeout_s: float | None = None) -> Answer | None: ...


@dataclass(frozen=True, slots=True)
class Task:
    """One problem's search and all that it needs."""

    kernel: Kernel
    problem: Problem
    space: Space
    default: Config
    """The kernel's own choice in `space`."""
    device: Device
    environment: Environment
    settings: Settings
    store: Store
    compiler: Compiler
    worker: Poster
    progress: Progress
    kind: Kind
    started: float
    spent: Spent = field(default_factory=Spent)

    @property
    def cache(self) -> CacheState:
        """The one that the trainer will have."""
        work = self.kernel.work(self.problem, self.default)
        return cache_state(work, self.device, self.settings.step_bytes.get(self.problem))

    def rows(self) -> list[Measurement]:
        """What the store knows of this kernel's present source on this device, in the order of recording."""
        observations = self.store.observations(
            kernel=self.kernel.name, device=self.device, source_hash=self.kernel.source_hash, kind=self.kind
        )
        return [observation.measurement for observation in observations]

    def stored(self, rows: Sequence[Measurement]) -> dict[Config, Measurement]:
        """The trials of this problem that are in its space; a configuration's latest one counts.

        The library's way is none. The finalists' second rows are left out: a search that goes on must hear again what
        it was told.
        """
        return self.latest(row for row in rows if not row.finalist and not row.by_library)

    def latest(self, rows: Iterable[Measurement]) -> dict[Config, Measurement]:
        """Each configuration's latest row of this problem, of those that are in its space."""
        return {row.config: row for row in rows if row.problem == self.problem and row.config in self.space}

    def search(self, rows: Sequence[Measurement], known: Sequence[Measurement]) -> Search:
        """A search that starts from the default, what was best for the nearest other problems, and the model's guesses.

        `known` are told beforehand. Rows of this search's own seed should not be among them: it asks for them again,
        in the same order, and is answered by the store, so a search that was killed goes on exactly as it would have.
        """
        others = [row for row in rows if row.problem != self.problem and row.problem.options == self.problem.options]
        first = [self.default, *neighbours(self.problem.dims, others)]
        expected = expectation(self.kernel, self.problem, self.device, self.cache)
        settings = self.settings
        search = Search(
            self.space, sampler=settings.sampler, seed=settings.seed, first=first, known=known, expected=expected
        )
        sample = search.sample(SAMPLE)
        search.prefer(best_guesses(expected, sample))
        return search

    def row(self, config: Config, failure: Failure, binary: Binary | None = None) -> Measurement:
        return measurement(self.problem, config, self.kind, failure, binary, seed=self.settings.seed)

    def candidates(self, search: Search, stored: Mapping[Config, Measurement], *, window: int = WINDOW) -> Candidates:
        """The candidates of `search`, of which `stored` need not be compiled."""
        arch = self.settings.arch or self.device.arch
        trials = self.settings.trials
        return Candidates(
            search, stored, self.kernel, self.problem, arch, trials, self.compiler, self.spent, window=window
        )

    def record(self, row: Measurement) -> None:
        with self.spent.during("record"):
            self.store.record(row, kernel=self.kernel, device=self.device, environment=self.environment)

    def overdue(self) -> bool:
        limit = self.settings.timeout_s
        return limit is not None and time.monotonic() - self.started > limit

    def result(
        self,
        best: Measurement | None,
        library_us: tuple[float | None, float | None],
        seen: Mapping[Config, Measurement],
        new: int,
        ended: str,
    ) -> ProblemResult:
        """`seen` is all that is known now, `new` how many of it were tried in this run; `library_us`: see
        `ProblemResult.library_us` and `products_us`.
        """
        failures = Counter(row.status.value for row in seen.values() if not row.ok)
        seconds = time.monotonic() - self.started
        return ProblemResult(
            self.problem,
            self.kind,
            best,
            *library_us,
            len(seen),
            new,
            dict(failures),
            ended,
            seconds,
            self.spent.summary(),
        )


def fastest(rows: Iterable[Measurement]) -> Measurement | None:
    """The right one that is served: the smallest median, of a tie the simplest; None where none is right."""
    right = (row for row in rows if row.ok and row.median_us is not None)
    return min(right, key=lambda row: row.standing, default=None)
