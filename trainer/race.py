"""The race: our training step against PyTorch's, from the same weights, on the same batches, one at a time.

Every contender starts and makes its first steps: ours alone, then the others, as many at once as `starts` says. From
then on nothing is concurrent: each warms up, then all take turns, `repeats` times, in an order that is reversed every
time. A sample is timed on the device. Times are compared pair by pair, within a repeat, so that a clock that drifts
moves both. Nobody's time counts whose losses leave the envelope of `trainer.agreement`: not ours either.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trainer.agreement import COMPARED, Curve, curves_agree
from trainer.contenders import Eager, Reference
from trainer.contenders.base import Task
from trainer.lanes import Factory, Lane, LaneError, LocalLane
from trainer.process_lane import ProcessLane
from trainer.runners import Runner, Tell, start_all
from trainer.schedule import Schedule
from tuner.errors import UserError
from tuner.store import ContenderRow, RaceRow
from tuner.store.rows import OURS, median_and_spread
from tuner.types import Device, Environment

_MakeLane = Callable[[Factory], Lane]


@dataclass(frozen=True, slots=True)
class Race:
    """What came of it. Contenders are in the order of the start, ours first."""

    task: Task
    schedule: Schedule
    contenders: tuple[ContenderRow, ...]
    strongest: str
    """The fastest PyTorch contender; empty where none has a time."""
    details: Mapping[str, str]
    """What else is to be said of a contender, by name: the path that it took, how its losses compare."""
    starts: int = 1
    """PyTorch contenders that started at once."""
    cold_starts: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a start with empty compiler caches, by name; empty where none was asked for."""

    def row(self, *, device: Device, environment: Environment, seed: int, command: str) -> RaceRow:
        """The race as the store keeps it."""
        first_bias = self.task.weights[0][1]
        return RaceRow(
            device=device,
            environment=environment,
            width=len(first_bias),
            layers=len(self.task.weights) - 1,
            batch=self.task.batch,
            steps=self.schedule.total,
            lr=self.task.lr,
            seed=seed,
            command=command,
            strongest=self.strongest,
            contenders=self.contenders,
        )


def race(
    ours: Factory,
    contenders: Mapping[str, Factory],
    task: Task,
    *,
    schedule: Schedule | None = None,
    isolated: bool = True,
    starts: int = 1,
    cold_caches: bool = False,
    timeout_s: float = 900.0,
    console: Console | None = None,
) -> Race:
    """Race `ours` (named "tuned") against `contenders` by name.

    `isolated` gives each contender a process of its own (factories must be picklable then), which has `timeout_s` for
    every answer, compilation included. `starts` of PyTorch's may start at once. `cold_caches` gives each contender
    compiler caches of its own and starts it twice: with nothing in them, as a first run does (`Race.cold_starts`), then
    with what that left there. Otherwise the user's caches serve, and later contenders profit from earlier ones. A
    contender that fails keeps its error, and the race goes on. Progress is shown on `console`, where there is one.

    Raises:
        UserError: the task has fewer steps than the schedule needs.
        ValueError: fewer than one start at once; several, or cold ones, without processes of their own.
    """
    if starts < 1 or (not isolated and (starts > 1 or cold_caches)):
        raise ValueError("only processes of their own start at once, or with caches of their own")
    schedule = (schedule or Schedule()).rounded(task.steps_per_call)
    if task.steps < schedule.total:
        raise UserError(
            f"The race makes {schedule.total} steps and the task has batches for {task.steps}; give it that many."
        )
    with ExitStack() as stack:
        tell = stack.enter_context(_progress(console))
        make_lane = stack.enter_context(_lanes(task, isolated, timeout_s, cold_caches, starts))
        runners = [Runner(name, make_lane(factory)) for name, factory in {OURS: ours, **contenders}.items()]
        for runner in runners:
            stack.callback(runner.close)
        if cold_caches:
            start_all(runners, starts, tell)
            for runner in runners:
                runner.attempt("cold start", runner.call_it_cold)
        start_all(runners, starts, tell)
        for runner in runners:
            tell(f"{runner.name}: warm up")
            runner.attempt("start", partial(runner.warm_up, schedule, task.steps_per_call))
        for repeat in range(schedule.repeats):
            for runner in runners if repeat % 2 == 0 else reversed(runners):
                tell(f"{runner.name}: sample {repeat + 1} of {schedule.repeats}")
                runner.attempt("run", partial(runner.sample, schedule))
        for runner in runners:
            tell(f"{runner.name}: losses and accuracy")
            runner.attempt("finish", runner.end)
        tell("PyTorch in fp32: what everybody's losses are compared with")
        eager = next((runner for runner in runners if contenders.get(runner.name) is Eager), None)
        yardstick = _yardstick(make_lane, task, schedule, eager.finish.losses if eager and eager.finish else None)
    judged = {runner.name: _judge(runner, schedule, yardstick) for runner in runners}
    times = {name: row.us_per_step for name, (row, _) in judged.items() if name != OURS and row.us_per_step is not None}
    strongest = min(times, key=lambda name: times[name], default="")
    rows = tuple(row for row, _ in judged.values())
    return Race(
        task,
        schedule,
        rows,
        strongest,
        {name: detail for name, (_, detail) in judged.items()},
        starts=starts,
        cold_starts={runner.name: runner.cold_s for runner in runners if runner.cold_s is not None},
    )


def _yardstick(
    make_lane: _MakeLane, task: Task, schedule: Schedule, eager: Curve | None
) -> tuple[Curve, Curve] | LaneError:
    """The reference and the twin of `trainer.agreement`; the twin is `eager` where it ran in the race."""
    steps = max(min(COMPARED, schedule.total) // task.steps_per_call, 1) * task.steps_per_call

    def curve(factory: Factory) -> Curve:
        lane = make_lane(factory)
        try:
            lane.start()
            if steps > task.steps_per_call:
                lane.run(steps - task.steps_per_call)
            return lane.finish().losses
        finally:
            lane.close()

    try:
        return curve(Reference), curve(Eager) if eager is None else eager
    except LaneError as error:
        return error


def _judge(runner: Runner, schedule: Schedule, yardstick: tuple[Curve, Curve] | LaneError) -> tuple[ContenderRow, str]:
    """The runner's row, and what else there is to say."""
    row = ContenderRow(runner.name, None, tuple(runner.samples), start_s=runner.start_s, error=runner.error)
    if runner.finish is None:
        return row, ""
    finish = runner.finish
    row = replace(row, peak_bytes=finish.peak_bytes, losses=thinned(finish.losses))
    said = [finish.notes] if finish.notes else []
    if runner.steps == schedule.steps:
        row = replace(row, accuracy=finish.accuracy)
    else:
        said.append(f"{runner.steps} steps per sample instead of {schedule.steps}, because it is slow")
    if isinstance(yardstick, LaneError):
        said.append(f"losses not compared, since PyTorch's fp32 run failed ({yardstick})")
    else:
        verdict = curves_agree(finish.losses, *yardstick)
        said.append(str(verdict))
        if not verdict.agrees:
            return replace(row, error=f"wrong: {verdict}"), "; ".join(said)
    median, spread = median_and_spread(runner.samples)
    return replace(row, us_per_step=median, spread=spread), "; ".join(said)


def thinned(losses: Curve, points: int = 200) -> tuple[tuple[int, float], ...]:
    """The curve for the store: means over equal stretches of steps, at most `points`, each with its last step."""
    stretch = -(-len(losses) // points)
    ends = [*range(stretch, len(losses), stretch), len(losses)]
    return tuple(
        (end - 1, float(np.mean(losses[start:end], dtype=np.float64)))
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )


@contextmanager
def _progress(console: Console | None) -> Iterator[Tell]:
    if console is None:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("race")
        yield lambda message: progress.update(line, description=message)


@contextmanager
def _lanes(task: Task, isolated: bool, timeout_s: float, cold: bool, beside: int) -> Iterator[_MakeLane]:
    if not isolated:
        yield lambda factory: LocalLane(factory, task)
        return
    with tempfile.TemporaryDirectory(prefix="mnist-tune-race-") as folder:
        task.save(Path(folder))
        yield lambda factory: ProcessLane(factory, Path(folder), timeout_s, cold=cold, beside=beside)
