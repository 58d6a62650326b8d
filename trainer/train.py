"""`mnist-tune train` as one call: look up, train, race, store; on a GPU, or by emulation where there is none."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kernels.problems import STEPS_PER_GRAPH
from trainer.agreement import Verdict, curves_agree, yardstick
from trainer.checks import Checker
from trainer.contenders import chosen
from trainer.contenders.base import Contender, Task
from trainer.contenders.model import Reference
from trainer.data import Dataset, load, permutations, scaled
from trainer.documents import command_line, describe, describe_race
from trainer.engines.choose import Form, choose, emulated_engine_of, engine_of
from trainer.mlp import Network, accuracy, fresh_weights
from trainer.plan_table import render_plan
from trainer.race import race, thinned
from trainer.race_table import render_race
from trainer.schedule import Schedule
from tuner.devices import device_index, environment, find, resolve
from tuner.errors import UserError
from tuner.store import ContenderRow, RaceRow, Store
from tuner.store.rows import OURS
from tuner.types import Device

EMULATED_WIDTH = 32
EMULATED_STEPS = 300
WIDEST_EMULATED = 512
"""A step of this width takes about half a second by emulation."""
MOST_IMAGES = 1 << 29
"""That a run may look at: their order is made beforehand, 4 bytes each."""
GPU_WIDTH = 128
GPU_EPOCHS = 10
EMULATED_FOR = "Tesla T4"
"""Whose predicted configurations are looked up where there is no GPU; what `search` predicts for unless told."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What the user chooses. None: the GPU's default or the emulation's, whichever runs."""

    width: int | None = None
    layers: int = 3
    batch: int = 32
    epochs: int | None = None
    steps: int | None = None
    lr: float = 0.003
    seed: int = 0
    data: Path | None = None
    device: str | None = None
    race: bool = True
    contenders: Sequence[str] | None = None
    form: Form = Form.AUTO
    schedule: Schedule = field(default_factory=lambda: Schedule(longest_sample_s=2.0))

    def check(self) -> None:
        """Raises `UserError` for settings that make no sense."""
        if self.epochs is not None and self.steps is not None:
            raise UserError("Give --epochs or --steps, not both.")
        for name, count in (("epochs", self.epochs), ("steps", self.steps), ("repeats", self.schedule.repeats)):
            if count is not None and count < 1:
                raise UserError(f"--{name} {count} trains nothing; give a whole number from 1.")
        if not 0 < self.lr < 1000:
            raise UserError(f"--lr {self.lr:g} is not a learning rate; give a number above 0 and below 1000.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed} is out of range; give a whole number from 0 to {2**32 - 1}.")
        if self.race:
            chosen(self.contenders)

    def network(self, default_width: int) -> Network:
        return Network(self.width if self.width is not None else default_width, self.layers, self.batch)


@dataclass(frozen=True, slots=True)
class Training:
    """What our own run came to. `us_per_step` is None by emulation, whose time says nothing about a GPU."""

    steps: int
    losses: NDArray[np.float32]
    accuracy: float
    us_per_step: float | None
    start_s: float
    """From the look-up to the first step: compiling, uploading, capturing."""

    def summary(self) -> dict[str, Any]:
        """Plain JSON; the losses as means over equal stretches of steps, null where they are not finite."""
        return {
            "steps": self.steps,
            "us_per_step": self.us_per_step,
            "start_s": self.start_s,
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
            start_s=self.start_s,
            losses=thinned(self.losses),
            accuracy=self.accuracy,
        )


def run_train(store_url: str | None, settings: TrainSettings, *, as_json: bool, console: Console) -> int:
    """Train, race, print and store; 0, or 1 where the losses do not agree with PyTorch's.

    Raises:
        UserError: what the user can mend.
    """
    settings.check()
    device = resolve(settings.device)
    network = settings.network(GPU_WIDTH if device else EMULATED_WIDTH)
    if device is None and network.width > WIDEST_EMULATED:
        raise UserError(
            f"Without a GPU the training is emulated, which takes too long at width {network.width}; "
            f"give --width up to {WIDEST_EMULATED}."
        )
    quiet = Console(quiet=True) if as_json else console
    with Store.open(store_url) as store:
        store.check_writable()
        dataset = load(settings.data)
        if dataset.notice:
            quiet.print(dataset.notice, highlight=False, soft_wrap=True)
        run = _on_gpu if device else _emulated
        document, code = run(store, settings, network, device or find(EMULATED_FOR), dataset, quiet)
    if as_json:
        print(json.dumps(document, indent=2))
    return code


def _on_gpu(
    store: Store, settings: TrainSettings, network: Network, device: Device, dataset: Dataset, console: Console
) -> tuple[dict[str, Any], int]:
    import cupy

    here, index = environment(), device_index(settings.device) or 0
    task = _task(settings, network, dataset, _steps(settings, network, dataset, GPU_EPOCHS * len(dataset.train_labels)))
    started = time.perf_counter()
    with Checker(device, here, f"cuda:{index}", seed=settings.seed) as check:
        plan, why = choose(store, network, device, here, check=check, form=settings.form)
    console.print(render_plan(plan))
    console.print(f"Engine: {why}.", highlight=False)
    engine = engine_of(plan, index)()
    engine.prepare(task)
    start_s = time.perf_counter() - started
    seconds = _train(engine, task, console, per_update=STEPS_PER_GRAPH * 20)
    weights = tuple((cupy.asarray(W), cupy.asarray(b)) for W, b in engine.weights())
    right = accuracy(weights, cupy.asarray(scaled(dataset.test_images)), cupy.asarray(dataset.test_labels))
    ours = Training(task.steps, engine.losses(0, task.steps), right, seconds / task.steps * 1e6, start_s)
    del weights
    engine.close()
    _say(console, ours, f"{seconds:.2f} s of training, {ours.us_per_step:.2f} us per step")
    document = {
        **describe(network, dataset, device, plan, lr=settings.lr, seed=settings.seed),
        "training": ours.summary(),
    }
    row = _row(settings, network, device, task, (ours.contender(),))
    store.record_race(row)
    if not settings.race:
        console.print("No race was run (--no-race).")
        return document, 0
    schedule = settings.schedule.rounded(STEPS_PER_GRAPH)
    raced = race(
        engine_of(plan, index),
        {contender.name: contender for contender in chosen(settings.contenders)},
        replace(_task(settings, network, dataset, schedule.total), steps_per_call=STEPS_PER_GRAPH),
        schedule=schedule,
        console=console,
    )
    result = raced.row(device=device, environment=here, seed=settings.seed, command=command_line())
    store.record_race(result)
    console.print(render_race(result, raced.details))
    agreed = result.ours is not None and result.ours.error is None
    return {**document, **describe_race(result, raced.details)}, 0 if agreed else 1


def _emulated(
    store: Store, settings: TrainSettings, network: Network, device: Device, dataset: Dataset, console: Console
) -> tuple[dict[str, Any], int]:
    here = environment()
    console.print(
        f"No GPU is used: {network.label} is trained by emulation on the CPU, with the configurations for a "
        f"{device.name}, and compared with PyTorch on the CPU.",
        highlight=False,
        soft_wrap=True,
    )
    task = replace(
        _task(settings, network, dataset, _steps(settings, network, dataset, EMULATED_STEPS * network.batch)),
        device="cpu",
        steps_per_call=1,
    )
    started = time.perf_counter()
    with Checker(device, here, None, seed=settings.seed) as check:
        plan, why = choose(store, network, device, here, check=check, form=settings.form)
    console.print(render_plan(plan))
    console.print(f"Engine: {why}.", highlight=False)
    engine = emulated_engine_of(plan)
    engine.prepare(task)
    start_s = time.perf_counter() - started
    seconds = _train(engine, task, console, per_update=10)
    right = accuracy(engine.weights(), scaled(dataset.test_images), dataset.test_labels)
    ours = Training(task.steps, engine.losses(0, task.steps), right, None, start_s)
    engine.close()
    _say(console, ours, f"{seconds:.1f} s of emulation, which says nothing about a GPU")
    reference, twin = yardstick(task, task.steps)
    verdict = curves_agree(ours.losses, reference, twin)
    console.print(_step_by_step(ours.losses, reference, verdict), highlight=False, soft_wrap=True)
    console.print("No race was run: there is no GPU.")
    theirs = ContenderRow(Reference.name, None, losses=thinned(reference))
    emulated = replace(device, name=f"emulated {device.name}")
    store.record_race(_row(settings, network, emulated, task, (ours.contender(), theirs)))
    document = {
        **describe(network, dataset, device, plan, lr=settings.lr, seed=settings.seed),
        "training": ours.summary(),
        "agreement": {"agrees": bool(verdict.agrees), "verdict": str(verdict)},
    }
    return document, 0 if verdict.agrees else 1


def _steps(settings: TrainSettings, network: Network, dataset: Dataset, default_images: int) -> int:
    """Steps to make: as asked, or as many as it takes to see `default_images` images."""
    per_epoch = len(dataset.train_labels) // network.batch
    if per_epoch == 0:
        raise UserError(
            f"A batch of {network.batch} is more than the {len(dataset.train_labels)} training images; "
            "give a smaller --batch."
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


def _task(settings: TrainSettings, network: Network, dataset: Dataset, steps: int) -> Task:
    return Task(
        weights=fresh_weights(network, settings.seed),
        images=scaled(dataset.train_images),
        labels=dataset.train_labels,
        order=permutations(len(dataset.train_labels), network.batch, steps, settings.seed),
        lr=settings.lr,
        steps_per_call=STEPS_PER_GRAPH,
        test_images=scaled(dataset.test_images),
        test_labels=dataset.test_labels,
    )


def _train(engine: Contender, task: Task, console: Console, *, per_update: int) -> float:
    """All steps of `task`, with a progress bar that shows the loss; the seconds that the steps took."""
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
        bar = progress.add_task("training", total=task.steps, loss="-")
        for first in range(0, task.steps, per_update):
            count = min(per_update, task.steps - first)
            seconds += engine.timed(first, count)
            loss = float(engine.losses(first, count).mean(dtype=np.float64))
            progress.update(bar, advance=count, loss=f"{loss:.4f}")
    return seconds


def _say(console: Console, ours: Training, took: str) -> None:
    last = max(1, ours.steps // 10)
    console.print(
        f"{_counted(ours.steps)}: {took}; loss {ours.losses[0]:.4f} at first, "
        f"{ours.losses[-last:].mean():.4f} at last (mean of {_counted(last)}), test accuracy {ours.accuracy:.2%}; "
        f"ready after {ours.start_s:.2f} s.",
        highlight=False,
        soft_wrap=True,
    )


def _counted(steps: int) -> str:
    return f"{steps} step{'s' if steps != 1 else ''}"


def _step_by_step(ours: NDArray[np.float32], reference: NDArray[np.float32], verdict: Verdict) -> str:
    if not np.isfinite(ours).all():
        return f"The training diverged: the loss is not finite at step {int(np.isfinite(ours).argmin())}; lower --lr."
    largest = int(np.abs(ours - reference).argmax())
    agree = "agree" if verdict.agrees else "DO NOT agree"
    return (
        f"Losses {agree} with PyTorch in fp32: {verdict} (largest difference of a single loss "
        f"{abs(float(ours[largest] - reference[largest])):.1e}, at step {largest})."
    )


def _row(
    settings: TrainSettings, network: Network, device: Device, task: Task, contenders: tuple[ContenderRow, ...]
) -> RaceRow:
    """A run of ours alone, as the store keeps it: a race that nobody else took part in."""
    return RaceRow(
        device=device,
        environment=environment(),
        width=network.width,
        layers=network.layers,
        batch=network.batch,
        steps=task.steps,
        lr=settings.lr,
        seed=settings.seed,
        command=command_line(),
        strongest="",
        contenders=contenders,
    )
