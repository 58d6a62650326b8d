"""Our own training of one network: the task, the steps with their progress, and what came of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kernels.problems import STEPS_PER_GRAPH
from trainer.agreement import Verdict
from trainer.contenders.base import Contender, Task
from trainer.data import Dataset, permutations, scaled
from trainer.mlp import Network, fresh_weights
from trainer.race import thinned
from trainer.settings import TrainSettings
from trainer.startup import Started
from tuner.errors import UserError
from tuner.store import ContenderRow
from tuner.store.rows import OURS

MOST_IMAGES = 1 << 29
"""That a run may look at: their order is made beforehand, 4 bytes each."""


@dataclass(frozen=True, slots=True)
class Training:
    """What our own run came to. `us_per_step` is None by emulation, whose time says nothing about a GPU."""

    steps: int
    losses: NDArray[np.float32]
    accuracy: float
    us_per_step: float | None
    started: Started
    """How long it took to the first step."""

    def summary(self) -> dict[str, Any]:
        """Plain JSON; the losses as means over equal stretches of steps, null where they are not finite."""
        return {
            "steps": self.steps,
            "us_per_step": self.us_per_step,
            "test_accuracy": self.accuracy,
            "losses": [
                {"step": step, "loss": loss if math.isfinite(loss) else None} for step, loss in thinned(self.losses)
            ],
        }

    def contender(self) -> ContenderRow:
        """The run as the store keeps it."""
        samples = () if self.us_per_step is None else (self.us_per_step,)
        return ContenderRow(
            OURS,
            self.us_per_step,
            samples,
            start_s=self.started.total_s,
            losses=thinned(self.losses),
            accuracy=self.accuracy,
        )


@dataclass(frozen=True, slots=True)
class Pixels:
    """A data set as every contender gets it; made once, since that takes a while."""

    images: NDArray[np.float16]
    labels: NDArray[np.uint8]
    test_images: NDArray[np.float16]
    test_labels: NDArray[np.uint8]

    @classmethod
    def of(cls, dataset: Dataset) -> Pixels:
        return cls(scaled(dataset.train_images), dataset.train_labels, scaled(dataset.test_images), dataset.test_labels)


def steps_of(settings: TrainSettings, network: Network, pixels: Pixels, default_images: int) -> int:
    """Steps to make: as asked, or as many as it takes to see `default_images` images."""
    per_epoch = len(pixels.labels) // network.batch
    if per_epoch == 0:
        raise UserError(
            f"A batch of {network.batch} is more than the {len(pixels.labels)} training images; give a smaller --batch."
        )
    steps = max(1, default_images // network.batch)
    if settings.steps is not None:
        steps = settings.steps
    elif settings.epochs is not None:
        steps = settings.epochs * per_epoch
    most = MOST_IMAGES // network.batch
    if steps > most:
        raise UserError(
            f"{steps} steps are more than one run can make at batch {network.batch}; give --steps up to {most}, or "
            f"--epochs up to {most // per_epoch}."
        )
    return steps


def task_of(settings: TrainSettings, network: Network, pixels: Pixels, steps: int) -> Task:
    """`steps` steps from fresh weights; on a GPU, in calls of as many as a graph has."""
    return Task(
        weights=fresh_weights(network, settings.seed),
        images=pixels.images,
        labels=pixels.labels,
        order=permutations(len(pixels.labels), network.batch, steps, settings.seed),
        lr=settings.lr,
        steps_per_call=STEPS_PER_GRAPH,
        test_images=pixels.test_images,
        test_labels=pixels.test_labels,
    )


def train_on(engine: Contender, task: Task, console: Console, *, first: int, per_update: int) -> float:
    """The steps of `task` from `first` on, with a progress bar that shows the loss; the seconds that they took."""
    seconds = 0.0
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as progress:
        bar = progress.add_task("training", total=task.steps, completed=first, loss="-")
        for step in range(first, task.steps, per_update):
            count = min(per_update, task.steps - step)
            seconds += engine.timed(step, count)
            loss = float(engine.losses(step, count).mean(dtype=np.float64))
            progress.update(bar, advance=count, loss=f"{loss:.4f}")
    return seconds


def say(console: Console, ours: Training, took: str) -> None:
    last = max(1, ours.steps // 10)
    console.print(
        f"{_counted(ours.steps)}: {took}; loss {ours.losses[0]:.4f} at first, "
        f"{ours.losses[-last:].mean():.4f} at last (mean of {_counted(last)}), test accuracy {ours.accuracy:.2%}.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(str(ours.started), highlight=False, soft_wrap=True)


def _counted(steps: int) -> str:
    return f"{steps} step{'s' if steps != 1 else ''}"


def step_by_step(ours: NDArray[np.float32], reference: NDArray[np.float32], verdict: Verdict) -> str:
    if not np.isfinite(ours).all():
        return f"The training diverged: the loss is not finite at step {int(np.isfinite(ours).argmin())}; lower --lr."
    largest = int(np.abs(ours - reference).argmax())
    agree = "agree" if verdict.agrees else "DO NOT agree"
    return (
        f"Losses {agree} with PyTorch in fp32: {verdict} (largest difference of a single loss "
        f"{abs(float(ours[largest] - reference[largest])):.1e}, at step {largest})."
    )
