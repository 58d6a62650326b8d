"""What a report says, as plain frozen data: every renderer (terminal, Markdown, JSON, HTML) draws from this alone.

Times are microseconds, start-up times seconds, sizes bytes. `None` means that nothing is known, never zero.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tuner.types import Device, Environment

OURS = "tuned"
"""The name under which our own step is kept among a race's contenders."""

STORY = "max_autotune"
"""The contender in the story's own form: the model under torch.compile(mode="max-autotune"), the rest eager."""

JSON_FORMAT = 1
"""Version of the layout that `as_json` returns; raised when a field changes its meaning or goes."""


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """One tuned problem on one device: what the trainer would run there, and what is known about it."""

    kernel: str
    shape: str
    options: str
    """`activation=relu`; empty where the kernel has none."""
    rung: str
    """Where a lookup finds the configuration: `exact`, `nearest`, `architecture`, `predicted`, `default`; `unknown`
    where this program has no kernel of that name."""
    kind: str | None
    """`measured` or `predicted`: what `us` is. None where there is no time for this very problem."""
    config: dict[str, int | str] | None
    us: float | None
    spread: float | None
    """Interquartile range over median."""
    cache: str | None
    """`hot` or `cold`: where the kernel found its inputs."""
    floor_us: float | None
    """Fewest bytes that any kernel must move, over the device's bandwidth (L2's where the inputs were hot)."""
    floor_percent: float | None
    """`floor_us / us` in percent."""
    library: str | None
    """What `library_us` is the time of: the library's products and one element-wise kernel for all the rest, or the
    products alone where that was not measured."""
    library_us: float | None
    library_ratio: float | None
    """The library's time over ours: above 1 ours is faster. Only between measurements in the same cache state."""
    products_us: float | None
    """The library's products alone, of which it has less to do than we."""
    products_ratio: float | None
    trials: int
    """Rows of the current kernel source: for a prediction those whose results were verified, and the failures."""
    candidates: int | None
    """Configurations that the search of a predicted problem compiled and ranked, rows of none included. None for a
    measured problem, where each has its row, and for rows that do not say."""
    failures: dict[str, int]
    """Trials that failed, by status."""
    stale: int
    """Rows of an older kernel source: kept in the store, but they count nowhere here."""
    error: float | None
    tolerance: float | None
    verified_by: str
    registers: int | None
    shared_bytes: int | None
    when: datetime | None


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender of a race; ours among them."""

    name: str
    description: str
    """What it is, in one line; empty where this program has no contender of that name."""
    us: float | None
    """Median per step. None where it failed."""
    spread: float | None
    start_s: float | None
    """From nothing to its first timed step: imports aside, compilation and warm-up."""
    peak_bytes: int | None
    accuracy: float | None
    """On the test images, 0 to 1."""
    speedup: float | None
    """Its time over ours: how many times as fast as it our step is."""
    error: str | None
    losses: tuple[tuple[int, float], ...]
    """(step, mean loss of the steps after the point before it up to and with this one), rising steps."""

    @property
    def ours(self) -> bool:
        return self.name == OURS

    @property
    def last_loss(self) -> float | None:
        """Mean over the last tenth of the steps, at least one, as `train` prints it; None without a curve.

        A point counts by how many of these steps it stands for. Exact where a point starts with the tenth, so always
        for a whole curve; else the point across it counts in part, with its own mean.
        """
        if not self.losses:
            return None
        steps = self.losses[-1][0] + 1
        first = steps - max(1, steps // 10)
        total, start = 0.0, 0
        for step, loss in self.losses:
            total += loss * max(0, step + 1 - max(start, first))
            start = step + 1
        return total / (steps - first)


@dataclass(frozen=True, slots=True)
class Race:
    """The latest race of one network on one device; or its latest run without one, where `timed` is false."""

    width: int
    layers: int
    batch: int
    steps: int
    lr: float
    seed: int
    command: str
    when: datetime
    environment: Environment
    contenders: tuple[Contender, ...]
    """Ours first, then the fastest to the slowest, the failed last."""
    strongest: str | None
    """The fastest contender that is not ours: whom the headline compares with."""
    story: str | None
    """`STORY`, where it took part and has a time."""
    earlier: int
    """Older ones of the same network on this device that this one replaces in the report."""

    def contender(self, name: str | None) -> Contender | None:
        return next((contender for contender in self.contenders if contender.name == name), None)

    @property
    def ours(self) -> Contender | None:
        return self.contender(OURS)

    @property
    def timed(self) -> bool:
        """Whether there is a race at all: our time and somebody else's."""
        return self.ours is not None and self.ours.us is not None and self.strongest is not None

    @property
    def raced(self) -> int:
        """How many contenders besides ours have a time: among how many the strongest is the strongest."""
        return sum(not contender.ours and contender.us is not None for contender in self.contenders)

    @property
    def emulated(self) -> bool:
        """Whether nobody has a time because there was no GPU: a run by emulation."""
        return all(contender.us is None and contender.error is None for contender in self.contenders)

    @property
    def form(self) -> str:
        """`128 x 3 layers, batch 32`."""
        return f"{self.width} x {self.layers} layers, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Versions:
    """One software environment that rows of a device come from."""

    environment: Environment
    rows: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class ProblemRanking:
    """How well the model ranks the measured configurations of one problem."""

    shape: str
    options: str
    rows: int
    """Configurations."""
    spearman: float
    """Rank correlation of predicted with measured times: 1 is the same order, 0 none, -1 the reverse."""
    top_over_best: float
    """The fastest of the model's ten best guesses over the fastest of all."""
    predicted_over_measured: float
    """Median of the ratio: above 1 the model is too slow. It ranks, so this matters little."""


@dataclass(frozen=True, slots=True)
class KernelRanking:
    """The same for a kernel."""

    kernel: str
    rows: int
    pooled: float
    """Over the rows of all problems. It flatters: that a larger problem takes longer is not hard to tell."""
    mean: float
    """Of the problems' own correlations."""
    least: float
    problems: tuple[ProblemRanking, ...]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Everything the store knows about one device."""

    device: Device
    problems: tuple[ProblemRow, ...]
    races: tuple[Race, ...]
    """Ours against others, all timed; ascending width."""
    runs: tuple[Race, ...]
    """Training without a race: ours alone, by emulation, or with ours failing; ascending width."""
    versions: tuple[Versions, ...]
    """Newest first."""
    rankings: tuple[KernelRanking, ...] = ()
    """How well the model ranks what was measured here, kernel by kernel."""

    @property
    def measured(self) -> bool:
        """Whether any number here was measured on this device."""
        return any(row.kind == "measured" for row in self.problems) or bool(self.races) or self._timed_run

    @property
    def _timed_run(self) -> bool:
        return any(contender.us is not None for run in self.runs for contender in run.contenders)


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report."""

    store: str
    """The store's file name, or its URL without the password."""
    created: datetime
    version: str
    """Of mnist-tune."""
    devices: tuple[DeviceReport, ...]
    """Those that were measured first."""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; times as ISO 8601 in UTC."""
        plain: dict[str, Any] = _plain({"format": JSON_FORMAT, **dataclasses.asdict(self)})
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value
