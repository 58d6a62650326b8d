"""Is a candidate's output right? Fresh inputs, a float64 reference, and not one element left to chance.

Nothing that has not passed here is ever timed. Two limits hold for each output: `Kernel.tolerance` for the relative
Frobenius error, and `Kernel.worst_element` times it for each element by itself, because among a million right elements
the Frobenius error hardly sees one that is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tuner.backends import Runner
from tuner.flags import any_of
from tuner.kernel import Argument, Array, Kernel, Role, Scalar
from tuner.types import Binary, Config, Failure, Problem, Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found.

    `error` is the relative Frobenius error of the output that came closest to its `tolerance` (or beyond), `worst` the
    error of that output's worst element (`Comparison`), whose limit is `Kernel.worst_element` times the tolerance. All
    are None where the kernel did not run, the errors also where the output is not a number.
    """

    status: Status
    verified_by: str
    message: str = ""
    error: float | None = None
    tolerance: float | None = None
    worst: float | None = None

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
    """Run `config` on fresh random inputs, compare every output with the reference in float64, and run it once more.

    Passes where each output keeps both limits (`compare`), every element is finite (outputs and workspace are NaN
    before the launch, so an element that was not written is caught), inputs are as they were, and counters are zero
    again. The second launch, with other contents in outputs and workspace and (by emulation) its threads in another
    order, must give the same bits.
    """
    kernel = kernel.form(config)
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
        error, worst, complaint = compare(name, found[name], reference, limits[name], kernel.worst_element)
        if complaint is not None or error is None:
            return Verdict(Status.WRONG, runner.name, complaint or "", error, limits[name], worst)
        if closest.error is None or _use(error, limits[name]) > _use(closest.error, closest.tolerance or 0.0):
            closest = Verdict(Status.OK, runner.name, error=error, tolerance=limits[name], worst=worst)
    again = runner.execute(kernel, problem, config, binary, _littered(arguments), order=1)
    if isinstance(again, Failure):
        return replace(closest, status=again.status, message=f"in a second launch: {again.message}")
    repeated = kernel.outputs(problem, config, again)
    complaint = _trespass(arguments, again) or _difference(expected, found, repeated)
    return closest if complaint is None else replace(closest, status=Status.WRONG, message=complaint)


def rehearse(kernel: Kernel, problem: Problem, config: Config, arguments: Sequence[Argument]) -> None:
    """Do once all that `verify` does with arrays, so that no candidate is charged for its first use (CuPy compiles)."""
    values = {argument.name: _value(argument) for argument in arguments}
    references = kernel.reference(problem, values)
    for name, reference in references.items():
        compare(name, reference, reference, 0.0, kernel.worst_element)
    _trespass(arguments, values)
    outputs = kernel.outputs(problem, config, {item.name: _value(item) for item in _littered(arguments)})
    _difference(references, outputs, outputs)


def _use(error: float, tolerance: float) -> float:
    """The share of a tolerance that an error within it uses up."""
    return error / tolerance if tolerance > 0 else 0.0


class Comparison(NamedTuple):
    """How far an output is from its reference r.

    `error` is the relative Frobenius error, `worst` the largest of |error of an element| / (|r| + root mean square of
    all r); both are absolute where r is zero throughout, and None where the output is not finite. `complaint` is None
    where both limits are kept.
    """

    error: float | None
    worst: float | None
    complaint: str | None


def compare(name: str, found: Any, reference: Any, tolerance: float, worst_element: float) -> Comparison:
    """Hold `found` against `reference`: its relative Frobenius error against `tolerance`, its worst element against
    `worst_element * tolerance`.

    NumPy functions only, so that arrays on a GPU are compared there.
    """
    if tuple(found.shape) != tuple(reference.shape):
        raise ValueError(f"{name}: the kernel's output is {found.shape}, its reference {reference.shape}")
    found = found.astype(np.float64)
    reference = reference.astype(np.float64)
    unfinished = ~np.isfinite(found)
    with np.errstate(invalid="ignore"):  # infinity less infinity: not finite, as is said next
        difference = np.abs(found - reference)
    # Each number that is looked at by itself costs a GPU a round trip.
    sums = (any_of(unfinished).astype(np.float64), (reference * reference).sum(), (difference * difference).sum())
    bad, scale, error = np.stack(sums).tolist()
    if bad:
        count, where = int(unfinished.sum()), _index(int(unfinished.argmax()), found.shape)
        complaint = f"{name}: {count} of {found.size} elements are not finite or were never written, first {where}"
        return Comparison(None, None, complaint)
    scale, error = scale**0.5, error**0.5
    if scale > 0:
        error /= scale
        difference /= np.abs(reference) + scale / reference.size**0.5
    worst = float(difference.max())
    limit = worst_element * tolerance
    # Not `error > tolerance`: a NaN in the reference must not pass either.
    if error <= tolerance and worst <= limit:
        return Comparison(error, worst, None)
    flat = int(difference.argmax())
    got, want = float(found.reshape(-1)[flat]), float(reference.reshape(-1)[flat])
    place = f"worst {_index(flat, found.shape)}: {got:.6g}, not {want:.6g}"
    if not error <= tolerance:
        return Comparison(error, worst, f"{name}: relative error {error:.3g} > {tolerance:.3g}; {place}")
    return Comparison(error, worst, f"{name}: an element's error {worst:.3g} > {limit:.3g}; {place}")


def _littered(arguments: Sequence[Argument]) -> list[Argument]:
    """`arguments`, with large finite numbers of both signs in what the launch must overwrite.

    NaN alone does not show every read of it: a maximum or a minimum with NaN is the other operand.
    """

    def litter(argument: Argument) -> Argument:
        if isinstance(argument, Scalar) or argument.data is None or argument.role not in {Role.OUT, Role.SCRATCH}:
            return argument
        data = np.empty_like(argument.data, order="C")
        content = data.reshape(-1).view(np.uint8).reshape(-1, data.dtype.itemsize)
        content[0::2], content[1::2] = _LARGE
        return Array(argument.name, data, Role.INOUT)

    return [litter(argument) for argument in arguments]


_LARGE = (0x7B, 0xFB)
"""Bytes whose repetition is a large positive and a large negative number in fp16, bf16, fp32, fp64 and the integers."""


def _difference(names: Iterable[str], first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Where the outputs of two launches on the same inputs differ in their bits."""
    for name in names:
        one, other = (outputs[name].ravel() for outputs in (first, second))
        changed = one.view(np.uint8) != other.view(np.uint8)
        if bool(any_of(changed)):
            flat = int(changed.argmax()) // one.dtype.itemsize
            where = _index(flat, first[name].shape)
            values = f"{float(one[flat]):.9g}, then {float(other[flat]):.9g}"
            return f"{name}: not reproducible, a second launch on the same inputs differs {where}: {values}"
    return None


def _trespass(arguments: Sequence[Argument], after: Mapping[str, Any]) -> str | None:
    """What the kernel changed that was not its own: an input, or a counter left counting."""
    changed: dict[str, Any] = {}
    for argument in arguments:
        if not isinstance(argument, Array) or argument.data is None:
            continue
        if argument.role is Role.IN:
            # Not `!=`: a NaN in an input is not accepted either.
            changed[f"{argument.name}: an input was changed"] = any_of(~(after[argument.name] == argument.data))
        if argument.role is Role.COUNTER:
            complaint = f"{argument.name}: a counter is not zero after the launch, so the next launch would fail"
            changed[complaint] = any_of(after[argument.name] != 0)
    found = np.stack(list(changed.values())).tolist() if changed else []
    return next((complaint for complaint, bad in zip(changed, found, strict=True) if bad), None)


def _value(argument: Argument) -> Any:
    return argument.data if isinstance(argument, Array) else argument.value


def _index(flat: int, shape: tuple[int, ...]) -> str:
    position = np.unravel_index(flat, shape)
    return "at (" + ", ".join(str(int(part)) for part in position) + ")"
