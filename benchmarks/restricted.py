"""A kernel with some tunables held to given values, so that the space that is left can be measured in full."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.space import Space
from tuner.types import Device, Problem, Value

Restriction = Mapping[str, Sequence[Value]]
"""The values that are left to a tunable, by its name; tunables that are not named keep all of theirs."""

RESTRICTIONS: dict[str, Restriction] = {
    # Of the 25 fastest of 150 trials of 32x1024x1024 on an H200, all have the first three values, 22 the fourth, 21
    # each of the next two, 17 the last, and the fastest has them all. Left open are tiles, warps, stages, slices and
    # how the slices meet.
    "linear_forward": {
        "OVERLAP": (1,),
        "SKEW": (8,),
        "WMMA": ("16x16x16",),
        "WARP_M": (32,),
        "MIN_BLOCKS": (1,),
        "VECTOR": (8,),
        "ACCUMULATOR": ("half",),
    },
}
"""By kernel: the dull tunables, at the value that the good configurations have."""


def restricted(kernel: Kernel, restriction: Restriction) -> Kernel:
    """`kernel` with a narrower space; the same in all else, its name and source included."""
    narrow = copy.copy(kernel)
    # An attribute of the instance travels to other processes by pickle, which a class made here would not.
    narrow.space = partial(narrowed, kernel, restriction)  # type: ignore[method-assign]
    return narrow


def narrowed(kernel: Kernel, restriction: Restriction, problem: Problem, device: Device) -> Space:
    """`kernel`'s space with the values that `restriction` leaves.

    Raises:
        UserError: it names no tunable of the kernel, or a value that the tunable does not have.
    """
    space = kernel.space(problem, device)
    tunables = {param.name: param for param in space.params}
    for name, wanted in restriction.items():
        if name not in tunables:
            raise UserError(f"{kernel.name} has no tunable {name}; it has {', '.join(tunables)}.")
        for value in wanted:
            if value not in tunables[name].values:
                raise UserError(f"{name} has no value {value}; it has {', '.join(map(str, tunables[name].values))}.")
    params = []
    for param in space.params:
        left = tuple(value for value in param.values if value in restriction.get(param.name, param.values))
        params.append(replace(param, values=left, default=param.default if param.default in left else left[0]))
    return replace(space, params=tuple(params))


def parse_restriction(texts: Sequence[str]) -> Restriction:
    """A restriction out of `NAME=VALUE,VALUE` texts.

    Raises:
        UserError: one is not of that form.
    """
    found: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not name or not all(values.split(",")):
            raise UserError(f"--only {text} is not understood; write it as STAGES=2,4.")
        found[name] = tuple(int(value) if value.isdecimal() else value for value in values.split(","))
    return found
