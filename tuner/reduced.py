"""A smaller problem on which a configuration can be emulated, where its own is too large for that."""

from __future__ import annotations

import itertools

from tuner.kernel import Kernel
from tuner.types import Config, Device, Problem

EMULATED_FLOPS = 3e8
"""Most that is emulated: some tenths of a second, and its float64 reference about the same."""

TILE = 256
"""A size that tiles, slices and vectors divide, as powers of two up to this: sizes that differ by a multiple of it have
the same tails."""


def reduced(kernel: Kernel, problem: Problem, config: Config, device: Device) -> Problem | None:
    """`problem` itself where it can be emulated; else the largest smaller one with the same options and the same
    remainder modulo `TILE` in every size, for which `config` is valid too. None where there is no such problem.
    """
    if kernel.work(problem, config).flops <= EMULATED_FLOPS:
        return problem
    choices = [_smaller(size) for _, size in problem.dims]
    names = [name for name, _ in problem.dims]
    options = dict(problem.options)
    found = [
        Problem.of(problem.kernel, dict(zip(names, sizes, strict=True)), options)
        for sizes in itertools.product(*choices)
    ]
    valid = [small for small in found if config in kernel.space(small, device)]
    affordable = [(kernel.work(small, config).flops, small) for small in valid]
    fitting = [(flops, small) for flops, small in affordable if flops <= EMULATED_FLOPS]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _smaller(size: int) -> list[int]:
    """`size`, and smaller sizes with the same remainder, none below one full tile."""
    rest = size % TILE
    return sorted({size, *(rest + TILE * count for count in (1, 2, 4, 8, 16) if rest + TILE * count < size)})
