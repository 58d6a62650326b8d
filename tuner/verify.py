"""Is a candidate's output right? Fresh inputs, a float64 reference, and not one element left to chance.

Nothing that has not passed here is ever timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.backends import Runner
from tuner.kernel import Argument, Array, Kernel, Role
from tuner.types import Binary, Config, Failure, Problem, Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found.

    `error` is the relative Frobenius error of the output that came closest to its `tolerance` (or beyond); both are
    None where the kernel did not run, the error also where the output is not a number.
    """

    status: Status
    verified_by: str
    message: str = ""
    error: float | None = None
    tolerance: float | None = None

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


def input_seed(seed: int, problem: Problem, config: Config) -> int:
    """The seed of a check's inputs: another one for each candidate, the same whenever the search is repeated."""
    digest = hashlib.sha256(f"{seed}|{problem.kernel}|{problem.key}|{config.key}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def verify(
    runner: Runner, kernel: Kernel, problem: Problem, config: Config, binary: Binary | None, *, seed: int
) -> Verdict:
    """Run `config` once on fresh random inputs and compare every output with the reference in float64.

    Passes where each output's relative Frobenius error is at most its `Kernel.tolerance`, every element is finite
    (outputs are NaN before the launch, so an element that was not written is caught), inputs are as they were, and
    counters are zero again.
    """
    arguments = kernel.arguments(problem, config, runner.rng(input_seed(seed, problem, config)))
    inputs = {argument.name: _value(argument) for argument in arguments}
    after = runner.execute(kernel, problem, config, binary, arguments)
    if isinstance(after, Failure):
        return Verdict(after.status, runner.name, after.message)
    complaint = _trespass(arguments, after)
    if complaint is not None:
        return Verdict(Status.WRONG, runner.name, complaint)
    expected = kernel.reference(problem, inputs)
    found = kernel.outputs(problem, config, after)
    limits = kernel.tolerance(problem, config)
    closest = Verdict(Status.OK, runner.name)
    for name, reference in expected.items():
        error, complaint = compare(name, found[name], reference, limits[name])
        if complaint is not None or error is None:
            return Verdict(Status.WRONG, runner.name, complaint or "", error, limits[name])
        if closest.error is None or _use(error, limits[name]) > _use(closest.error, closest.tolerance or 0.0):
            closest = Verdict(Status.OK, runner.name, error=error, tolerance=limits[name])
    return closest


def _use(error: float, tolerance: float) -> float:
    """The share of a tolerance that an error within it uses up."""
    return error / tolerance if tolerance > 0 else 0.0


def compare(name: str, found: Any, reference: Any, tolerance: float) -> tuple[float | None, str | None]:
    """Relative Frobenius error of `found` against `reference`, and what is wrong with it (None where nothing is).

    NumPy functions only, so that arrays on a GPU are compared there.
    """
    if tuple(found.shape) != tuple(reference.shape):
        raise ValueError(f"{name}: the kernel's output is {found.shape}, its reference {reference.shape}")
    found = found.astype(np.float64)
    reference = reference.astype(np.float64)
    unfinished = ~np.isfinite(found)
    count = int(unfinished.sum())
    if count:
        where = _index(int(unfinished.argmax()), found.shape)
        return None, f"{name}: {count} of {found.size} elements are not finite or were never written, first {where}"
    difference = np.abs(found - reference)
    scale = float(np.sqrt((reference * reference).sum()))
    error = float(np.sqrt((difference * difference).sum()))
    error = error / scale if scale > 0 else error
    # Not `error > tolerance`: a NaN in the reference must not pass either.
    if not error <= tolerance:
        flat = int(difference.argmax())
        got, want = float(found.reshape(-1)[flat]), float(reference.reshape(-1)[flat])
        where = _index(flat, found.shape)
        return error, f"{name}: relative error {error:.3g} > {tolerance:.3g}; worst {where}: {got:.6g}, not {want:.6g}"
    return error, None


def _trespass(arguments: Sequence[Argument], after: Mapping[str, Any]) -> str | None:
    """What the kernel changed that was not its own: an input, or a counter left counting."""
    for argument in arguments:
        if not isinstance(argument, Array) or argument.data is None:
            continue
        if argument.role is Role.IN and not bool((after[argument.name] == argument.data).all()):
            return f"{argument.name}: an input was changed"
        if argument.role is Role.COUNTER and bool((after[argument.name] != 0).any()):
            return f"{argument.name}: a counter is not zero after the launch, so the next launch would fail"
    return None


def _value(argument: Argument) -> Any:
    return argument.data if isinstance(argument, Array) else argument.value


def _index(flat: int, shape: tuple[int, ...]) -> str:
    position = np.unravel_index(flat, shape)
    return "at (" + ", ".join(str(int(part)) for part in position) + ")"
