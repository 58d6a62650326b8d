"""What the declarations of the two GEMM kernels share: arithmetic of tiles, and how exact fp16 results can be."""

from __future__ import annotations

import math

from tuner.space import Constraint, Param
from tuner.types import Device

FP16_ROUNDING = 2.0**-11
"""Largest relative error of one rounding to fp16 (11 significant bits)."""

FP32_ROUNDING = 2.0**-24

WARP = 32
WMMA_K = 16
"""Depth of one WMMA step; the same for all three shapes."""


OVERLAP = Param("OVERLAP", (0, 1), 0, "start while the kernel before finishes (sm_90's dependent launch)")


def overlap_needs_sm_90(device: Device) -> Constraint:
    return Constraint(
        "OVERLAP=1 needs sm_90: older architectures have no dependent launch",
        lambda c: c.integer("OVERLAP") == 0 or device.capability >= 90,
        ("OVERLAP",),
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def vector_width(pitch: int, most: int) -> int:
    """Widest power of two of elements, at most `most`, that divides `pitch`: mirrors common.cuh."""
    while pitch % most:
        most //= 2
    return most


COPY_INSTRUCTIONS = 8
"""Of a warp per vector copied into a tile, about: where from, where to, inside or not, and the copy itself."""


def bank_conflicts(pitch: int) -> float:
    """How often shared memory must be read for one row-wise read of a WMMA fragment.

    Eight rows of 16 bytes, `pitch` fp16 elements apart, are read at a time; shared memory gives 128 bytes at a time,
    each 16 of them from another group of banks.
    """
    groups = {row * pitch * 2 // 16 % 8 for row in range(8)}
    return 8 / len(groups)


def copies(elements: int, width: int, threads: int) -> int:
    """Vector copies of a thread that takes part in the copying of a tile of `elements`."""
    return ceil_div(elements, width * threads)


def up_to(values: tuple[int, ...], size: int) -> tuple[int, ...]:
    """`values` without those that are wider than the smallest one that covers `size`."""
    covering = next((value for value in values if value >= size), values[-1])
    return tuple(value for value in values if value <= covering)


def at_most(values: tuple[int, ...], wanted: int) -> int:
    """The largest of the ascending `values` that is not above `wanted`; the smallest where all are."""
    return max((value for value in values if value <= wanted), default=values[0])


def sum_tolerance(accumulator: str, summed: int) -> float:
    """Limit of the relative Frobenius error of an fp16 result that is a sum of `summed` products of fp16 numbers.

    With an fp32 accumulator only the final rounding to fp16 counts (its mean square is a third of FP16_ROUNDING^2). An
    fp16 accumulator rounds at least once per 4 products (the shortest step of tensor cores so far); roundings are
    independent, so their error grows with the root of their number while the sum itself does the same: the root is an
    upper bound with room for the split into slices.
    """
    rounding = 1.5 * FP16_ROUNDING
    return rounding if accumulator == "float" else rounding + FP16_ROUNDING * math.sqrt(summed / 4)
