"""Milliseconds of training to 97.5% test accuracy, ours against PyTorch's with the same settings.

    python -m benchmarks.to_accuracy --widths 128 --batches 32,64 --lrs 0.1,0.3 --data DIR --out FILE

For every width, batch and rate, our step and each contender train from the same weights on the same batches, for
several seeds, each in a process of its own as in a race. Every `--every` steps the test accuracy is taken, outside of
the time; the first time that it is reached ends the run. Only the steps are timed, on the device. The steps of the
start, which the first launch slows down, count at the rate of the others. A setting's time is the median over its
seeds, and there is none where a seed does not get there within `--epochs`.

Ends with 1 where ours gets there with no setting, with 3 where entries are left (`--slice`). Needs a GPU, and the full
MNIST for a figure that means something.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common import script
from benchmarks.entries import LEFT, Entries, Slice
from benchmarks.place import Place, add_options, rates, whole_numbers
from kernels.problems import STEPS_PER_GRAPH
from trainer.contenders import chosen
from trainer.contenders.base import Task
from trainer.lanes import Factory, Lane, LaneError
from trainer.mlp import Network
from trainer.process_lane import ProcessLane
from trainer.runners import Runner, start_all
from tuner.errors import UserError
from tuner.store.rows import OURS

TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Goal:
    """When a run has arrived, how often that is looked for (steps), and after how many steps it is given up."""

    accuracy: float
    every: int
    most: int


def run_to(lane: Lane, goal: Goal, done: int) -> dict[str, Any]:
    """Train on `lane`, which made `done` steps to start, until the goal: steps, ms of training, accuracy there."""
    timed, seconds = 0, 0.0
    while True:
        reached = lane.finish().accuracy
        if timed and reached is not None and reached >= goal.accuracy:
            break
        if done + timed + goal.every > goal.most:
            return {"steps": None, "ms": None, "accuracy": reached}
        seconds += lane.run(goal.every)
        timed += goal.every
    return {"steps": done + timed, "ms": 1e3 * seconds / timed * (done + timed), "accuracy": reached}


def measure(factory: Factory, tasks: Sequence[Task], goal: Goal, starts: int) -> dict[str, Any]:
    """All seeds of one setting, started at most `starts` at once and trained one at a time."""
    with tempfile.TemporaryDirectory(prefix="mnist-tune-accuracy-") as name:
        runners = []
        for seed, task in enumerate(tasks):
            folder = Path(name) / str(seed)
            folder.mkdir()
            task.save(folder)
            runners.append(Runner(str(seed), ProcessLane(factory, folder, TIMEOUT_S, beside=starts)))
        try:
            start_all(runners, starts, lambda _: None)
            seeds = []
            for runner, task in zip(runners, tasks, strict=True):
                seeds.append(_seed(runner, goal, task.steps_per_call))
                runner.close()
        finally:
            for runner in runners:
                runner.close()
    times = [seed["ms"] for seed in seeds]
    arrived = [ms for ms in times if ms is not None]
    error = next((seed["error"] for seed in seeds if seed["error"]), None)
    return {"ms": statistics.median(arrived) if len(arrived) == len(times) else None, "error": error, "seeds": seeds}


def _seed(runner: Runner, goal: Goal, done: int) -> dict[str, Any]:
    nothing = {"steps": None, "ms": None, "accuracy": None}
    if runner.error is not None:
        return {**nothing, "error": runner.error}
    try:
        return {**run_to(runner.lane, goal, done), "error": None}
    except LaneError as error:
        return {**nothing, "error": str(error)}


def best(entries: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The entry of the contender `name` that gets there soonest; None where none does."""
    there = [entry for entry in entries if entry["key"]["contender"] == name and entry["ms"] is not None]
    return min(there, key=lambda entry: entry["ms"], default=None)


def show(console: Console, entries: Sequence[dict[str, Any]]) -> bool:
    """A line per setting and contender, then our best against everybody's time with the same settings; is there one?"""
    console.print("width  batch      lr  contender             ms   steps of the seeds", highlight=False)
    for entry in entries:
        key, ms = entry["key"], entry["ms"]
        steps = ", ".join(str(seed["steps"] or "-") for seed in entry["seeds"])
        time = "-" if ms is None else f"{ms:.1f}"
        said = f"  {entry['error']}" if entry["error"] else ""
        console.print(
            f"{key['width']:5d}  {key['batch']:5d}  {key['lr']:6g}  {key['contender']:16s} {time:>7s}   {steps}{said}",
            highlight=False,
            soft_wrap=True,
            markup=False,
        )
    ours = best(entries, OURS)
    if ours is None:
        console.print("Ours got there with none of these settings.", highlight=False)
        return False
    key = ours["key"]
    same = [
        f"{entry['key']['contender']} {entry['ms']:.1f} ms, {entry['ms'] / ours['ms']:.2f}x"
        for entry in entries
        if entry["ms"] is not None
        and entry["key"]["contender"] != OURS
        and all(entry["key"][name] == key[name] for name in ("width", "batch", "lr"))
    ]
    console.print(
        f"Best: width {key['width']}, batch {key['batch']}, lr {key['lr']:g}: {ours['ms']:.1f} ms to "
        f"{key['accuracy']:.1%}; with the same settings {'; '.join(same) or 'nobody else'}.",
        highlight=False,
        soft_wrap=True,
    )
    return True


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.to_accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", type=whole_numbers, default=[128], help="(default: 128)")
    parser.add_argument("--batches", type=whole_numbers, default=[32], help="(default: 32)")
    parser.add_argument("--lrs", type=rates, default=[0.1], help="learning rates (default: 0.1)")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--contenders", default="library", help="PyTorch's forms, with commas (default: library)")
    parser.add_argument("--seeds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--accuracy", type=float, default=0.975, help="to get to, from 0 to 1 (default: 0.975)")
    parser.add_argument("--every", type=int, default=200, help="steps between two looks (default: 200)")
    parser.add_argument("--epochs", type=int, default=20, help="after which it is given up (default: 20)")
    parser.add_argument("--starts", type=int, default=5, help="processes that may start at once (default: 5)")
    add_options(parser)
    options = parser.parse_args()
    if not 0 < options.accuracy < 1:
        raise UserError(f"--accuracy {options.accuracy:g} is no share; give a number between 0 and 1.")
    for name in ("seeds", "every", "epochs", "starts"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)} measures nothing; give a whole number from 1.")
    if options.every % STEPS_PER_GRAPH:
        raise UserError(f"--every {options.every} is no multiple of {STEPS_PER_GRAPH}, the steps of a CUDA graph.")
    return options


def main() -> int:
    options = parsed()
    theirs = {contender.name: contender for contender in chosen(options.contenders.split(","))}
    place = Place.of(options, gpu_only=True)
    entries, piece, console = Entries(options.out, place.head("to_accuracy")), Slice(options.slice), Console()
    left, asked = 0, []
    for width, batch, lr in itertools.product(options.widths, options.batches, options.lrs):
        network = Network(width, options.layers, batch)
        planned = place.ours(network, checked=False)
        racing: dict[str, Factory] = {OURS: planned.factory, **theirs}
        per_epoch = len(place.pixels.labels) // batch
        goal = Goal(options.accuracy, options.every, options.epochs * per_epoch)
        for name, factory in racing.items():
            key = {
                "width": width,
                "layers": options.layers,
                "batch": batch,
                "lr": lr,
                "contender": name,
                "accuracy": goal.accuracy,
                "every": goal.every,
                "most_steps": goal.most,
                "seeds": options.seeds,
                "plan": planned.plan if name == OURS else None,
            }
            entry = entries.find(key)
            if entry is None and piece.over:
                left += 1
                continue
            if entry is None:
                # A start makes a call's steps whatever the goal is.
                steps = goal.most + STEPS_PER_GRAPH
                tasks = [place.task(network, steps, lr, seed) for seed in range(options.seeds)]
                running = factory
                if name == OURS:
                    ours = place.ours(network)
                    running, key["plan"] = ours.factory, ours.plan
                entry = entries.add(key, {"starts": options.starts, **measure(running, tasks, goal, options.starts)})
            asked.append(entry)
    arrived = show(console, asked)
    if left:
        console.print(f"{left} entries are left; run the same command again.", highlight=False)
        return LEFT
    return 0 if arrived else 1


if __name__ == "__main__":
    script("benchmarks.to_accuracy", main)
