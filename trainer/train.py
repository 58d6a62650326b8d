"""`mnist-tune train` as one call: look up, train, race, store; on a GPU, or by emulation where there is none."""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console

from kernels.problems import STEPS_PER_GRAPH
from trainer.agreement import curves_agree, yardstick
from trainer.checks import Checker
from trainer.contenders import chosen
from trainer.contenders.base import Contender, Task
from trainer.data import Dataset, load
from trainer.documents import command_line, describe, describe_race, head, starts_note
from trainer.engines.choose import choose, emulated_engine_of, engine_of
from trainer.mlp import Network, accuracy
from trainer.plan import Check, Plan, WholeStepPlan
from trainer.plan_table import render_plan
from trainer.race import race, thinned
from trainer.race_table import render_race
from trainer.results import Document, Results
from trainer.settings import TrainSettings
from trainer.startup import Started, Startup
from trainer.training import Pixels, Training, say, step_by_step, steps_of, task_of, train_on
from trainer.widths_table import render_widths
from tuner.compile import compile_kernel
from tuner.devices import device_index, environment, find, resolve
from tuner.errors import UserError
from tuner.store import ContenderRow, RaceRow, Store
from tuner.store.rows import OURS
from tuner.types import Device, Environment

EMULATED_STEPS = 300
GPU_EPOCHS = 10
EMULATED_FOR = "Tesla T4"
"""Whose predicted configurations are looked up where there is no GPU; what `search` predicts for unless told."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What all widths of a command share."""

    settings: TrainSettings
    store: Store
    results: Results
    device: Device
    """By emulation: the one whose configurations are used."""
    emulated: bool
    environment: Environment
    dataset: Dataset
    pixels: Pixels
    console: Console

    def head(self, network: Network) -> Document:
        return head(network, self.dataset, self.device, self.environment, self.settings)


def run_train(
    store_url: str | None, settings: TrainSettings, *, as_json: bool, console: Console, startup: Startup | None = None
) -> int:
    """Train, race, print and store; 0, or 1 where a width failed or its losses do not agree with PyTorch's.

    `startup` counts from when the user's command began; None: from here.

    Raises:
        UserError: what the user can mend.
    """
    startup = startup or Startup.from_here("the call")
    settings.check()
    device = _device(settings, startup)
    networks = settings.networks(emulated=device is None)
    results = Results(settings.out)
    quiet = Console(quiet=True) if as_json else console
    with ExitStack() as stack:
        with startup.part("lookup"):
            store = stack.enter_context(Store.open(store_url))
            store.check_writable()
        with startup.part("data"):
            dataset = load(settings.data)
            pixels = Pixels.of(dataset)
        if dataset.notice:
            quiet.print(dataset.notice, highlight=False, soft_wrap=True)
        meant = device or find(EMULATED_FOR)
        run = _Run(settings, store, results, meant, device is None, environment(), dataset, pixels, quiet)
        if settings.widths is None:
            document, code = _one(run, networks[0], startup)
        else:
            documents, code = _several(run, networks, startup)
    if as_json:
        print(json.dumps(document if settings.widths is None else documents, indent=2))
    return code


def _device(settings: TrainSettings, startup: Startup) -> Device | None:
    # Its import is to be counted with the others; where it is missing, that is explained where it is needed.
    with startup.part("imports"), suppress(ImportError):
        import cupy  # noqa: F401
    with startup.part("context"):
        return resolve(settings.device)


def _several(run: _Run, networks: list[Network], startup: Startup) -> tuple[list[Document], int]:
    """Each network in turn; one that fails costs only itself. Their documents, and 0 where all went well, or else 1."""
    documents, code = [], 0
    sentences = set()
    for number, network in enumerate(networks, 1):
        if number > 1:
            startup = Startup.from_here(f"the turn of width {network.width}")
        run.console.rule(f"Width {network.width} ({number} of {len(networks)})", align="left")
        try:
            document, its_code = _one(run, network, startup)
        except (UserError, RuntimeError, MemoryError) as error:
            # What compilers, drivers and devices refuse; mistakes of ours are of other kinds.
            document, its_code = {**run.head(network), "error": str(error) or type(error).__name__}, 1
            if isinstance(error, UserError):
                sentences.add(str(error))
            run.console.print(f"Width {network.width} failed: {document['error']}", style="red", markup=False)
            run.results.add(document)
        documents.append(document)
        code = max(code, its_code)
    if len(sentences) == 1 and all(document["error"] for document in documents):
        raise UserError(sentences.pop())
    run.console.rule("All widths", align="left")
    run.console.print(render_widths(documents))
    return documents, code


def _one(run: _Run, network: Network, startup: Startup) -> tuple[Document, int]:
    """One network, unless the results have it already; its document, and 0, or 1 where its losses are wrong."""
    if run.results.path is not None:
        planned, _ = _plan(run, network, lambda _: None)
        kept = run.results.kept({**run.head(network), **describe(planned)})
        if kept is not None:
            run.console.print(
                f"Width {network.width} is kept from {run.results.path}: the same command made it on {kept['date']}.",
                highlight=False,
                soft_wrap=True,
            )
            return kept, kept["exit_code"]
    document, code = (_emulated if run.emulated else _on_gpu)(run, network, startup)
    document = {**document, "exit_code": code}
    run.results.add(document)
    return document, code


def _plan(run: _Run, network: Network, check: Check) -> tuple[Plan | WholeStepPlan, str]:
    return choose(run.store, network, run.device, run.environment, check=check, form=run.settings.form)


def _looked_up(run: _Run, network: Network, gpu: str | None, startup: Startup) -> Plan | WholeStepPlan:
    """The plan of what works here, printed with the reason for its form."""
    with (
        startup.part("lookup"),
        Checker(run.device, run.environment, gpu, seed=run.settings.seed) as check,
    ):
        plan, why = _plan(run, network, startup.within("check", check))
    run.console.print(render_plan(plan))
    run.console.print(f"Engine: {why}.", highlight=False)
    return plan


def _started(engine: Contender, task: Task, startup: Startup, first: int) -> tuple[Started, float]:
    """Have `engine` get ready and make its `first` steps; the start, and the seconds that the steps took."""
    with startup.part("prepare"):
        engine.prepare(task)
    with startup.part("first_steps"):
        seconds = engine.timed(0, first)
    return startup.done(first), seconds


def _on_gpu(run: _Run, network: Network, startup: Startup) -> tuple[Document, int]:
    import cupy

    settings, index = run.settings, device_index(run.settings.device) or 0
    with startup.part("context"):
        cupy.cuda.Device(index).use()
        cupy.cuda.runtime.free(0)  # does nothing, but needs the context
        cupy.get_default_memory_pool().free_all_blocks()  # what a width that failed may have left
    with startup.part("data"):
        steps = steps_of(settings, network, run.pixels, GPU_EPOCHS * len(run.pixels.labels))
        task = task_of(settings, network, run.pixels, steps)
    plan = _looked_up(run, network, f"cuda:{index}", startup)
    with startup.part("compile"):
        # The engine then finds them in the cache, and its own start is upload and capture.
        for choice in dict.fromkeys(plan.choices):
            compile_kernel(choice.kernel, choice.problem, choice.config, run.device.arch)
    engine = engine_of(plan, index)()
    first = min(STEPS_PER_GRAPH, task.steps)
    started, seconds = _started(engine, task, startup, first)
    try:
        seconds += train_on(engine, task, run.console, first=first, per_update=STEPS_PER_GRAPH * 20)
        weights = tuple((cupy.asarray(W), cupy.asarray(b)) for W, b in engine.weights())
        right = accuracy(weights, cupy.asarray(run.pixels.test_images), cupy.asarray(run.pixels.test_labels))
        ours = Training(task.steps, engine.losses(0, task.steps), right, seconds / task.steps * 1e6, started)
        del weights
    finally:
        engine.close()
    say(run.console, ours, f"{seconds:.2f} s of training, {ours.us_per_step:.2f} us per step")
    document = {**run.head(network), **describe(plan), "startup": started.document(), "training": ours.summary()}
    run.store.record_race(_row(run, network, run.device, task, (ours.contender(),)))
    if not settings.race:
        run.console.print("No race was run (--no-race).")
        return document, 0
    schedule = settings.schedule.rounded(STEPS_PER_GRAPH)
    contenders = {contender.name: contender for contender in chosen(settings.contenders)}
    raced = race(
        engine_of(plan, index),
        contenders,
        task_of(settings, network, run.pixels, schedule.total),
        schedule=schedule,
        starts=settings.starts,
        cold_caches=settings.cold_starts,
        console=run.console,
    )
    row = raced.row(device=run.device, environment=run.environment, seed=settings.seed, command=command_line())
    run.store.record_race(row)
    run.console.print(render_race(row, raced.details, note=starts_note(raced), cold=raced.cold_starts))
    descriptions = {OURS: engine.description, **{name: each.description for name, each in contenders.items()}}
    agreed = row.ours is not None and row.ours.error is None
    return {**document, **describe_race(row, raced, descriptions)}, 0 if agreed else 1


def _emulated(run: _Run, network: Network, startup: Startup) -> tuple[Document, int]:
    settings, console = run.settings, run.console
    console.print(
        f"No GPU is used: {network.label} is trained by emulation on the CPU, with the configurations for a "
        f"{run.device.name}{', and compared with PyTorch on the CPU' if settings.race else ''}.",
        highlight=False,
        soft_wrap=True,
    )
    with startup.part("data"):
        steps = steps_of(settings, network, run.pixels, EMULATED_STEPS * network.batch)
        task = replace(task_of(settings, network, run.pixels, steps), device="cpu", steps_per_call=1)
    plan = _looked_up(run, network, None, startup)
    engine = emulated_engine_of(plan)
    started, seconds = _started(engine, task, startup, 1)
    try:
        seconds += train_on(engine, task, console, first=1, per_update=10)
        right = accuracy(engine.weights(), run.pixels.test_images, run.pixels.test_labels)
        ours = Training(task.steps, engine.losses(0, task.steps), right, None, started)
    finally:
        engine.close()
    say(console, ours, f"{seconds:.1f} s of emulation, which says nothing about a GPU")
    document = {**run.head(network), **describe(plan), "startup": started.document(), "training": ours.summary()}
    contenders, agrees = [ours.contender()], True
    if settings.race:
        reference, twin = yardstick(task, task.steps)
        verdict = curves_agree(ours.losses, reference, twin)
        agrees = bool(verdict.agrees)
        console.print(step_by_step(ours.losses, reference, verdict), highlight=False, soft_wrap=True)
        document["agreement"] = {"agrees": agrees, "verdict": str(verdict)}
        contenders.append(ContenderRow("reference", None, losses=thinned(reference)))
    else:
        agrees = bool(np.isfinite(ours.losses).all())
        console.print("The losses were not compared with PyTorch's (--no-race).")
    console.print("No race was run: there is no GPU.")
    emulated = replace(run.device, name=f"emulated {run.device.name}")
    run.store.record_race(_row(run, network, emulated, task, tuple(contenders)))
    return document, 0 if agrees else 1


def _row(run: _Run, network: Network, device: Device, task: Task, contenders: tuple[ContenderRow, ...]) -> RaceRow:
    """A run of ours alone, as the store keeps it: a race that nobody else took part in."""
    return RaceRow(
        device=device,
        environment=run.environment,
        width=network.width,
        layers=network.layers,
        batch=network.batch,
        steps=task.steps,
        lr=task.lr,
        seed=run.settings.seed,
        command=command_line(),
        strongest="",
        contenders=contenders,
    )
