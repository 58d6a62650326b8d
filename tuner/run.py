"""`mnist-tune search` as one call: find the device, tune, print the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.cache import cache_dir
from tuner.compile import check_arch
from tuner.devices import environment as environment_here
from tuner.devices import find
from tuner.emulation.compiler import compiler
from tuner.errors import UserError
from tuner.judge import CudaWorkplace, Describe, EmulationWorkplace
from tuner.kernel import Kernel
from tuner.progress import Live, Plain, Progress, Silent
from tuner.samplers import SAMPLERS
from tuner.serving import Workplace
from tuner.spent import sentence
from tuner.store import Store
from tuner.tune import ProblemResult, Settings, tune
from tuner.types import Device, Environment, Failure, Kind, Problem
from tuner.worker import Worker, WorkerLostError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

NOT_ALL_FOUND = 1
"""Exit code where a problem has no right configuration, or none of the problems fits the device."""


def run_search(
    problems: Sequence[Problem],
    *,
    kernels: Mapping[str, Kernel],
    store: Store,
    device: str | None = None,
    settings: Settings | None = None,
    as_json: bool = False,
    console: Console | None = None,
) -> int:
    """Tune `problems` and print what was found; the exit code (0, `NOT_ALL_FOUND`, `INTERRUPTED`).

    `device` is `cuda`, `cuda:N`, `cpu`, or None: the first GPU where there is one. Without a GPU the candidates are
    compiled, ranked by the model for `settings.predict_for`, and verified by emulation.

    Raises:
        UserError: a setting that makes no sense, a read-only store, no such device, or something missing that the
            user can mend.
    """
    settings = settings or Settings()
    console = console or Console()
    check(settings, problems)
    store.check_writable()
    progress: Progress = Silent() if as_json else Live(console) if console.is_terminal else Plain(console)
    results: list[ProblemResult] = []
    interrupted = False
    target: Device | None = None
    kind = Kind.PREDICTED
    try:
        found, environment, worker = workplace(device, settings.limit_s)
        with worker:
            target = found or find(settings.predict_for)
            kind = Kind.MEASURED if found else Kind.PREDICTED
            _check_arch(settings, found)
            check_arch(settings.arch or target.arch)
            cache_dir("cubin")
            if kind is Kind.PREDICTED:
                compiler()
            if not as_json:
                _say(console, _announcement(target, kind, settings))
            search = tune(
                problems,
                kernels=kernels,
                store=store,
                device=target,
                environment=environment,
                settings=settings,
                progress=progress,
                worker=worker,
                kind=kind,
            )
            with progress:
                results.extend(search)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print(json.dumps(summary(results, target, kind, interrupted=interrupted), indent=2))
    else:
        show(console, results, kind, interrupted=interrupted)
    if interrupted:
        return INTERRUPTED
    sought = [result for result in results if result.ended not in SKIPPED]
    return 0 if sought and all(result.best for result in sought) else NOT_ALL_FOUND


def check(settings: Settings, problems: Sequence[Problem]) -> None:
    """Raises `UserError` for settings that make no sense."""
    if not problems:
        raise UserError("There is nothing to tune; name shapes with --shapes.")
    if settings.trials < 1:
        raise UserError(f"--trials {settings.trials} tries nothing; give a number from 1.")
    if settings.timeout_s is not None and not settings.timeout_s > 0:
        raise UserError(f"--timeout {settings.timeout_s:g} leaves no time; give a number of seconds above 0.")
    if not 0 <= settings.seed < 2**32:
        raise UserError(f"--seed {settings.seed} is out of range; give a number from 0 to {2**32 - 1}.")
    if settings.sampler not in SAMPLERS:
        raise UserError(f"There is no sampler {settings.sampler!r}; choose one of: {', '.join(SAMPLERS)}.")
    if settings.arch is not None and not re.fullmatch(r"sm_\d{2,3}[af]?", settings.arch):
        raise UserError(f"--arch {settings.arch} is not an architecture; write it as sm_75.")


def _check_arch(settings: Settings, device: Device | None) -> None:
    if device is not None and settings.arch not in {None, device.arch}:
        raise UserError(
            f"{device.name} runs {device.arch}, not {settings.arch}; leave --arch out, or add --device cpu to predict."
        )


def workplace(
    spec: str | None, limit_s: float, emulate: Callable[[], Workplace] = EmulationWorkplace
) -> tuple[Device | None, Environment, Worker]:
    """The device (None: no GPU is used), the environment, and a worker for it. The parent makes no CUDA context.

    `spec` is as `--device` has it; without a GPU the worker's child works in what `emulate` makes.
    """
    if spec not in {"cpu", "none"}:
        worker = Worker(partial(CudaWorkplace, spec), limit_s=limit_s)
        try:
            answer = worker.call(Describe())
        except BaseException:
            worker.close()
            raise
        if isinstance(answer, Failure):
            worker.close()
            raise WorkerLostError(f"The GPU could not be asked what it is: {answer.message}.")
        device, environment = answer
        if device is not None:
            return device, environment, worker
        worker.close()
    return None, environment_here(), Worker(emulate, limit_s=limit_s)


def _announcement(device: Device, kind: Kind, settings: Settings) -> str:
    if kind is Kind.MEASURED:
        return f"Tuning on {device.name} ({device.arch}, {device.sm_count} SMs)."
    arch = settings.arch or device.arch
    return (
        f"No GPU is used: candidates are compiled for {arch}, ranked by a model of {device.name}, and the "
        "best are verified by emulation. The times are predictions."
    )


def summary(
    results: Sequence[ProblemResult], device: Device | None, kind: Kind, *, interrupted: bool
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "device": {"name": device.name, "arch": device.arch, "sm_count": device.sm_count} if device else None,
        "kind": kind.value,
        "interrupted": interrupted,
        "problems": [result.summary() for result in results],
    }


def show(console: Console, results: Sequence[ProblemResult], kind: Kind, *, interrupted: bool) -> None:
    """The final table, and a sentence on how it ended."""
    measured = kind is Kind.MEASURED
    if results:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("problem")
        table.add_column("us" if measured else "predicted us", justify="right")
        if measured:
            table.add_column("vs cuBLAS", justify="right")
        table.add_column("trials", justify="right")
        table.add_column("new", justify="right")
        table.add_column("failures")
        for result in results:
            table.add_row(*_cells(result, measured))
        console.print(table)
        console.print()
        for result in results:
            if result.best is not None:
                tied = result.best.extra.get("tied_with")
                note = f" (the simplest of {tied + 1} that cannot be told apart)" if tied else ""
                _say(console, f"{result.problem.label}: {result.best.config.label}{note}")
    new, seconds = sum(result.new for result in results), sum(result.seconds for result in results)
    if measured and new:
        _say(console, sentence([result.spent for result in results if result.spent], new, seconds))
    if interrupted:
        _say(console, "Stopped. Everything recorded so far is stored; the same command goes on from there.")
        return
    for ended, why in SKIPPED.items():
        skipped = [result.problem.label for result in results if result.ended == ended]
        if skipped:
            _say(console, f"Skipped, as {why}: {', '.join(skipped)}.")
    missing = [result.problem.label for result in results if result.best is None and result.ended not in SKIPPED]
    if missing:
        _say(console, f"No right configuration was found for: {', '.join(missing)}.")
    for reason, ending in _ENDINGS.items():
        count = sum(result.ended == reason for result in results)
        if count:
            _say(console, ending.format(count=count))


SKIPPED = {
    "unfit": "no configuration fits this device",
    "unemulated": "it takes a GPU to verify what is this large",
}
"""Why a problem was not searched at all, by `ProblemResult.ended`."""

_ENDINGS = {
    "exhausted": "Spaces that ended before the trials did, every valid configuration having been tried: {count}.",
    "settled": "Searches that ended before the trials did, as more would not gain more than the noise: {count}; "
    "--no-early-stop goes on with them.",
    "time": "Searches that ended because their time was over: {count}; the same command goes on with them.",
}


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _cells(result: ProblemResult, measured: bool) -> list[str]:
    best = result.best
    failures = " ".join(f"{status}:{count}" for status, count in sorted(result.failures.items()))
    cells = [result.problem.label, f"{best.median_us:.2f}" if best and best.median_us is not None else "-"]
    if measured:
        cells.append(f"{result.ratio:.2f}x" if result.ratio is not None else "-")
    return [*cells, str(result.trials), str(result.new), failures or "-"]
