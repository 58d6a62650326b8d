"""`mnist-tune selftest` as one call: find the device, try each fault, print the table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.candidates import Compiler
from tuner.compile import CompilePool
from tuner.devices import find
from tuner.errors import UserError
from tuner.judge import EmulationWorkplace, WarmUp
from tuner.run import workplace
from tuner.selftest.faults import FAULTS, Fault
from tuner.selftest.trials import KERNEL, PROBLEM, Bench, Outcome
from tuner.task import Settings
from tuner.tune import WARM_UP_LIMIT_S
from tuner.types import Device

LIMIT_S = 10.0
"""For one candidate, unless the user says otherwise."""

LONGEST_LIMIT_S = 60.0
"""The endless loop ends by itself after some minutes."""

NOT_PASSED = 1
"""Exit code where something is not as it must be."""


def run_selftest(
    *,
    device: str | None = None,
    limit_s: float = LIMIT_S,
    as_json: bool = False,
    console: Console | None = None,
    faults: Sequence[Fault] = FAULTS,
    pool: AbstractContextManager[Compiler] | None = None,
) -> int:
    """Try each of `faults`, with a right candidate after it, and print what became of them; the exit code (0 or
    `NOT_PASSED`).

    `device` is `cuda`, `cuda:N`, `cpu`, or None: the first GPU where there is one. Without a GPU the candidates are
    verified by emulation, and those that it cannot show are named.

    Raises:
        UserError: no such device, a time limit that makes no sense, or something missing that the user can mend.
    """
    if not 0 < limit_s <= LONGEST_LIMIT_S:
        raise UserError(f"--limit {limit_s:g} is out of range; give a number of seconds up to {LONGEST_LIMIT_S:g}.")
    console = console or Console()
    found, _, worker = workplace(device, limit_s, partial(EmulationWorkplace, limit_s))
    with worker as judge, pool or CompilePool() as compiler:
        target = found or find(Settings().predict_for)
        if not as_json:
            _say(console, _announcement(found, limit_s))
        if found is not None:
            judge.call(WarmUp(KERNEL, PROBLEM, KERNEL.space(PROBLEM, found).default(), 0), limit_s=WARM_UP_LIMIT_S)
        skipped = [fault for fault in faults if fault.needs_gpu and found is None]
        tried = [fault for fault in faults if fault not in skipped]
        bench = Bench(target, found is not None, judge, compiler, limit_s)
        outcomes = list[Outcome]()
        quiet = as_json or not console.is_terminal
        with contextlib.nullcontext() if quiet else console.status("") as status:
            for outcome in bench.outcomes(tried):
                outcomes.append(outcome)
                if status is not None:
                    status.update(f"{len(outcomes)} of {len(tried)} faults")
    passed = all(outcome.complaint is None for outcome in outcomes)
    if as_json:
        print(json.dumps(summary(found, limit_s, outcomes, skipped), indent=2))
    else:
        show(console, outcomes, skipped, measured=found is not None)
    return 0 if passed else NOT_PASSED


def _announcement(device: Device | None, limit_s: float) -> str:
    place = (
        f"On {device.name} ({device.arch}, {device.sm_count} SMs)"
        if device is not None
        else "No GPU is used: by emulation"
    )
    return f"{place}, with a time limit of {limit_s:g} s. After each fault a right candidate has its turn."


def summary(
    device: Device | None, limit_s: float, outcomes: Sequence[Outcome], skipped: Sequence[Fault]
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "device": {"name": device.name, "arch": device.arch, "sm_count": device.sm_count} if device else None,
        "limit_s": limit_s,
        "passed": all(outcome.complaint is None for outcome in outcomes),
        "faults": [outcome.summary() for outcome in outcomes],
        "not_run": [{"fault": fault.name, "does": fault.does, "why": fault.needs_gpu} for fault in skipped],
    }


def show(console: Console, outcomes: Sequence[Outcome], skipped: Sequence[Fault], *, measured: bool) -> None:
    """The table, and a sentence on how it ended."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("fault", "expected", "got"):
        table.add_column(name, no_wrap=True)
    table.add_column("s", justify="right")
    table.add_column("next us" if measured else "next", justify="right")
    table.add_column("message", overflow="fold")
    for outcome in outcomes:
        table.add_row(*_cells(outcome), style="" if outcome.complaint is None else "red")
    console.print(table, highlight=False, markup=False)
    console.print()
    for fault in skipped:
        _say(console, f"Not run: {fault.name} ({fault.does}), because {fault.needs_gpu}.")
    complaints = [f"{outcome.fault.name} {outcome.complaint}" for outcome in outcomes if outcome.complaint is not None]
    for complaint in complaints:
        _say(console, f"Failed: {complaint}.")
    if not complaints:
        done = "measured" if measured else "verified"
        _say(console, f"Passed: {len(outcomes)} candidates got their status, and the right one after each was {done}.")


def _cells(outcome: Outcome) -> list[str]:
    after = "ok" if outcome.next_us is None else f"{outcome.next_us:.2f}"
    return [
        outcome.fault.name,
        " ".join(outcome.fault.expected),
        outcome.status,
        f"{outcome.seconds:.1f}",
        after if outcome.next_status == "ok" else outcome.next_status,
        outcome.message,
    ]


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
