"""Why a rung of the ladder did not hold, field by field, in sentences for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.kernel import Kernel
from tuner.store.ladder import Climb, Rejected, Rung, comparable
from tuner.types import Device, Kind, Problem

SHOWN = 3
"""So many names or configurations are listed; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The store has at least one row of this kernel like this."""

    problem: Problem
    device_key: str
    device_name: str
    arch: str
    source_hash: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Check:
    """One field of a row that must fit: its name, what fits, and the sentence where nothing does."""

    field: str
    fits: Callable[[Fact], bool]
    otherwise: Callable[[Sequence[Fact]], str]


def reasons(
    kernel: Kernel, problem: Problem, device: Device, source_hash: str, facts: Sequence[Fact], result: Climb
) -> tuple[tuple[Rung, str], ...]:
    """For each rung above the one that held, each field that did not fit, as `field: what is there, what is wanted`."""
    found: list[tuple[Rung, str]] = []
    for rung, checks in _checks(kernel, problem, device, source_hash).items():
        if rung is result.rung:
            break
        rejected = result.rejected.get(rung, ())
        found += [(rung, line) for line in _misfits(facts, checks) or _turned_down(rejected)]
    return tuple(found)


def _checks(kernel: Kernel, problem: Problem, device: Device, source_hash: str) -> Mapping[Rung, Sequence[Check]]:
    this = f"{device.name} ({device.arch}, {device.sm_count} SMs)"
    any_row = Check("kernel", lambda _: True, lambda _: f"the store has no row of {kernel.name}")
    options = Check(
        "options",
        lambda fact: comparable(fact.problem, problem),
        lambda facts: (
            f"rows exist for {_some(_options(fact.problem) for fact in facts)}, wanted is {_options(problem)}"
        ),
    )
    same_problem = Check(
        "problem",
        lambda fact: dict(fact.problem.dims) == dict(problem.dims),
        lambda facts: f"rows exist for {_some(fact.problem.shape for fact in facts)}, wanted is {problem.shape}",
    )
    other_problem = Check(
        "problem",
        lambda fact: dict(fact.problem.dims) != dict(problem.dims),
        lambda _: f"rows exist for {problem.shape} only, there is no other to take the nearest of",
    )
    this_device = Check(
        "device",
        lambda fact: fact.device_key == device.key,
        lambda facts: f"rows exist for {_some(_device(fact) for fact in facts)}, this is {this}",
    )
    other_device = Check(
        "device",
        lambda fact: fact.device_key != device.key,
        lambda _: f"rows exist for this {device.name} only, not for another device",
    )
    architecture = Check(
        "architecture",
        lambda fact: fact.arch == device.arch,
        lambda facts: (
            f"rows exist for {_some(f'{fact.arch} ({fact.device_name})' for fact in facts)}, "
            f"this is {device.arch} ({device.name})"
        ),
    )
    source = Check(
        "source",
        lambda fact: fact.source_hash == source_hash,
        lambda facts: (
            f"stored {_some(fact.source_hash[:8] for fact in facts)}, current {source_hash[:8]}: "
            "the kernel was changed since"
        ),
    )
    measured = Check(
        "kind",
        lambda fact: fact.kind is Kind.MEASURED,
        lambda _: "rows are predicted, none is measured",
    )
    predicted = Check(
        "kind",
        lambda fact: fact.kind is Kind.PREDICTED,
        lambda _: "rows are measured, none is predicted",
    )
    return {
        Rung.EXACT: (any_row, options, same_problem, this_device, measured, source),
        Rung.NEAREST: (any_row, options, other_problem, this_device, measured, source),
        Rung.ARCHITECTURE: (any_row, options, other_device, architecture, measured, source),
        Rung.PREDICTED: (any_row, options, predicted, source),
    }


def _misfits(facts: Sequence[Fact], checks: Iterable[Check]) -> list[str]:
    """Go through the fields. Where rows fit, only those are looked at further; where none does, that is a reason."""
    lines = []
    for check in checks:
        fitting = [fact for fact in facts if check.fits(fact)]
        if fitting:
            facts = fitting
            continue
        lines.append(f"{check.field}: {check.otherwise(facts)}")
        if not facts:
            break
    return lines


def _turned_down(rejected: Sequence[Rejected]) -> list[str]:
    lines = []
    for item in rejected[:SHOWN]:
        time = f" at {item.head.median_us:.2f} us" if item.head.median_us is not None else ""
        lines.append(f"config: {item.head.config.label} ({item.head.problem.shape}{time}): {item.reason}")
    if len(rejected) > SHOWN:
        lines.append(f"config: and {len(rejected) - SHOWN} more that are not valid here or failed")
    return lines


def _some(names: Iterable[str]) -> str:
    distinct = sorted(set(names))
    more = f" and {len(distinct) - SHOWN} more" if len(distinct) > SHOWN else ""
    return ", ".join(distinct[:SHOWN]) + more


def _options(problem: Problem) -> str:
    return " ".join(f"{name}={value}" for name, value in problem.options) or "no options"


def _device(fact: Fact) -> str:
    _, arch, sm_count = fact.device_key.rsplit("/", 2)
    return f"{fact.device_name} ({arch}, {sm_count} SMs)"
