"""Store -> report data. Reads only: nothing here writes to the store, and neither CuPy nor PyTorch is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from trainer.contenders import PYTORCH, Reference
from trainer.report.model import OURS, STORY, Contender, DeviceReport, ProblemRow, Race, Report, Versions
from trainer.report.ranking import rankings
from tuner.kernel import Kernel
from tuner.store import BaselineRow, ContenderRow, Observation, RaceRow, Store
from tuner.types import CacheState, Config, Device, Environment, Kind, Measurement, Problem, Status

_DESCRIPTIONS: dict[str, str] = {name: contender.description for name, contender in PYTORCH.items()} | {
    Reference.name: Reference.description
}


def collect(store: Store, kernels: Mapping[str, Kernel], *, label: str, devices: Sequence[Device]) -> Report:
    """What `store` knows about `devices`.

    `kernels` are the declarations by name: they give the memory floors and tell current rows from stale ones. `label`
    names the store on the page.
    """
    # A device whose properties were seen to change (a driver's word on its clocks) is still one device.
    known = {device.key: device for device in devices}
    reports = [_device(store, kernels, device) for device in known.values()]
    reports = [report for report in reports if report.problems or report.races or report.runs]
    reports.sort(key=lambda report: (not report.races, not report.measured, report.device.name))
    return Report(store=label, created=datetime.now(UTC), version=_version(), devices=tuple(reports))


def _version() -> str:
    try:
        return version("mnist-tune")
    except PackageNotFoundError:
        return "from source"


def _device(store: Store, kernels: Mapping[str, Kernel], device: Device) -> DeviceReport:
    observations = store.observations(device=device)
    baselines = store.baselines(device)
    rows = store.races(device)
    races = [_race(row) for row in rows]
    by_problem: dict[Problem, list[Observation]] = {}
    for observation in observations:
        by_problem.setdefault(observation.measurement.problem, []).append(observation)
    problems = [
        _problem(store, kernels.get(problem.kernel), problem, device, same, baselines)
        for problem, same in sorted(by_problem.items(), key=lambda item: _order(item[0]))
    ]
    sources = [(row.environment, row.created_at) for row in observations]
    sources += [(row.environment, row.created_at) for row in baselines]
    sources += [(row.environment, row.created_at) for row in rows]
    return DeviceReport(
        device=device,
        problems=tuple(problems),
        races=_latest([race for race in races if race.timed]),
        runs=_latest([race for race in races if not race.timed]),
        versions=tuple(_versions(sources)),
        rankings=rankings(observations, kernels),
    )


def _order(problem: Problem) -> tuple[str, tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]:
    """Kernel by kernel, small shapes first."""
    return problem.kernel, problem.dims, problem.options


def _problem(
    store: Store,
    kernel: Kernel | None,
    problem: Problem,
    device: Device,
    rows: Sequence[Observation],
    baselines: Sequence[BaselineRow],
) -> ProblemRow:
    """A table row. The configuration is the one that the trainer would be given, so the store's own lookup picks it."""
    best: Observation | None
    config: Config | None
    if kernel is None:
        rung, current = "unknown", list(rows)
        best = _fastest(rows)
        config = best.measurement.config if best else None
    else:
        match = store.lookup(kernel, problem, device)
        rung, config = match.rung.value, match.config
        current = [row for row in rows if row.source_hash == kernel.source_hash]
        # Most rungs may hand over the configuration of another problem or device, whose time is not this row's.
        best = match.observation if match.expected_us is not None else None
    seen = best.measurement if best else None
    us = seen.median_us if seen else None
    floor_us = _floor_us(kernel, problem, config, device, seen.cache if seen else None)
    measured = seen is not None and seen.kind is Kind.MEASURED
    comparable = seen is not None and measured
    products = _products(baselines, problem, seen.cache) if seen is not None and comparable else None
    way = _way(kernel, current, seen.cache) if kernel is not None and seen is not None and comparable else None
    library_us = way.median_us if way else products.median_us if products else None
    # A finalist's second timing is no other trial.
    trials = [row for row in current if not row.measurement.finalist and not row.measurement.by_library]
    ranked = [int(row.measurement.extra["candidates"]) for row in trials if "candidates" in row.measurement.extra]
    failures = Counter(row.measurement.status.value for row in trials if not row.measurement.ok)
    return ProblemRow(
        kernel=problem.kernel,
        shape=problem.shape,
        options=" ".join(f"{name}={value}" for name, value in problem.options),
        rung=rung,
        kind=seen.kind.value if seen else None,
        config=dict(config) if config is not None else None,
        us=us,
        spread=seen.spread if seen and measured else None,
        cache=seen.cache.value if seen and seen.cache else None,
        floor_us=floor_us,
        floor_percent=100 * floor_us / us if floor_us and us else None,
        library=WAY if way else products.library if products else None,
        library_us=library_us,
        library_ratio=library_us / us if library_us and us else None,
        products_us=products.median_us if products else None,
        products_ratio=products.median_us / us if products and us else None,
        trials=len(trials),
        candidates=None if measured else max(ranked, default=None),
        failures=dict(sorted(failures.items())),
        stale=len(rows) - len(current),
        error=seen.error if seen else None,
        tolerance=seen.tolerance if seen else None,
        verified_by=seen.verified_by if seen else "",
        registers=seen.registers if seen else None,
        shared_bytes=seen.shared_bytes if seen else None,
        when=_utc(max(row.created_at for row in rows)),
    )


def _fastest(rows: Iterable[Observation]) -> Observation | None:
    """The fastest that was measured; a prediction only where nothing was."""
    good = [row for row in rows if row.measurement.status is Status.OK and row.measurement.median_us is not None]
    return min(
        good,
        key=lambda row: (row.measurement.kind is not Kind.MEASURED, row.measurement.median_us or 0.0),
        default=None,
    )


def _floor_us(
    kernel: Kernel | None, problem: Problem, config: Config | None, device: Device, cache: CacheState | None
) -> float | None:
    """Time in us to move the problem's fewest bytes; from L2 where the inputs were hot, else from memory."""
    if kernel is None or config is None or cache is None:
        return None
    bandwidth = device.l2_bandwidth if cache is CacheState.HOT else device.memory_bandwidth
    return 1e6 * kernel.form(config).work(problem, config).floor_bytes / bandwidth if bandwidth else None


WAY = "cuBLAS + element-wise"


def _way(kernel: Kernel, rows: Sequence[Observation], cache: CacheState | None) -> Measurement | None:
    """The newest measurement of the library's way (`Kernel.library_form`) in the same cache state."""
    same = [
        row.measurement
        for row in rows
        if row.measurement.config in kernel.also() and row.measurement.cache == cache and row.measurement.ok
    ]
    return same[-1] if same else None


def _products(baselines: Sequence[BaselineRow], problem: Problem, cache: CacheState | None) -> BaselineRow | None:
    """The newest time of the products alone in the same cache state: hot against cold would be no comparison."""
    same = [row for row in baselines if row.problem == problem and row.cache == cache]
    return max(same, key=lambda row: row.created_at, default=None)


def _latest(races: Sequence[Race]) -> tuple[Race, ...]:
    """The newest of every network, by rising width. Older ones stay in the store and are counted."""
    forms: dict[tuple[int, int, int], list[Race]] = {}
    for race in races:
        forms.setdefault((race.width, race.layers, race.batch), []).append(race)
    return tuple(
        replace(max(same, key=lambda race: race.when), earlier=len(same) - 1) for _, same in sorted(forms.items())
    )


def _race(row: RaceRow) -> Race:
    ours_us = next((_time(contender) for contender in row.contenders if contender.name == OURS), None)
    contenders = sorted(
        (_contender(contender, ours_us) for contender in row.contenders),
        key=lambda contender: (not contender.ours, contender.us is None, contender.us or 0.0),
    )
    others = [contender for contender in contenders if not contender.ours and contender.us is not None]
    return Race(
        width=row.width,
        layers=row.layers,
        batch=row.batch,
        steps=row.steps,
        lr=row.lr,
        seed=row.seed,
        command=row.command,
        when=_utc(row.created_at),
        environment=row.environment,
        contenders=tuple(contenders),
        strongest=others[0].name if others else None,
        story=STORY if any(contender.name == STORY for contender in others) else None,
        earlier=0,
    )


def _time(row: ContenderRow) -> float | None:
    """Its time per step; a contender that failed has none, whatever it had managed before."""
    return None if row.error or not row.us_per_step else row.us_per_step


def _contender(row: ContenderRow, ours_us: float | None) -> Contender:
    us = _time(row)
    return Contender(
        name=row.name,
        description=_DESCRIPTIONS.get(row.name, ""),
        us=us,
        spread=row.spread if us else None,
        start_s=row.start_s,
        peak_bytes=row.peak_bytes,
        accuracy=row.accuracy,
        speedup=us / ours_us if us and ours_us else None,
        error=row.error,
        losses=tuple(sorted((int(step), float(loss)) for step, loss in row.losses)),
    )


def _versions(rows: Iterable[tuple[Environment, datetime]]) -> list[Versions]:
    """The distinct environments with their number of rows and first and last date, newest first."""
    dates: dict[Environment, list[datetime]] = {}
    for environment, created in rows:
        dates.setdefault(environment, []).append(_utc(created))
    found = [Versions(environment, len(when), min(when), max(when)) for environment, when in dates.items()]
    return sorted(found, key=lambda versions: versions.last, reverse=True)


def _utc(when: datetime) -> datetime:
    """SQLite hands back naive datetimes; the store keeps UTC."""
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
