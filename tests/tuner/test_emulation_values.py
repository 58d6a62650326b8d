"""What emulated kernels compute: WMMA, half arithmetic, shuffles, atomics, cooperative grids, asynchronous copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tuner import emulation
from tuner.emulation import Buffer
from tuner.types import Launch

KERNELS = Path(__file__).parent / "emulated"


def build(name: str, checked: bool = False, **defines: Any) -> emulation.Module:
    return emulation.build(KERNELS / f"{name}.cu", name, defines, checked=checked)


def toward_zero(exact: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float64 to the float32 that is not farther from zero."""
    nearest = exact.astype(np.float32)
    return np.where(np.abs(nearest.astype(np.float64)) > np.abs(exact), np.nextafter(nearest, np.float32(0)), nearest)


def operands(shape: tuple[int, int], sum_type: Any) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(7)
    m, n = shape
    a, b = rng.normal(size=(m, 16)).astype(np.float16), rng.normal(size=(16, n)).astype(np.float16)
    return a, b, rng.normal(scale=4, size=(m, n)).astype(sum_type)


def wmma(
    shape: tuple[int, int], layouts: str, sum_type: Any, checked: bool = False, **how: Any
) -> np.ndarray[Any, Any]:
    """2 (a b + c) of the operands, stored and loaded in `layouts` ("rc r": a by rows, b by columns, c by rows)."""
    a, b, c = operands(shape, sum_type)
    m, n = shape
    names = {"r": "row_major", "c": "col_major"}
    defines = {"TILE_M": m, "TILE_N": n, "SUM": "float" if sum_type is np.float32 else "half"}
    defines |= {"LAYOUT_A": names[layouts[0]], "LAYOUT_B": names[layouts[1]], "LAYOUT_C": f"mem_{names[layouts[2]]}"}

    def stored(matrix: np.ndarray[Any, Any], layout: str) -> tuple[Buffer, np.int32]:
        data = matrix if layout == "r" else matrix.T
        padded = np.full((data.shape[0], data.shape[1] + 8), np.nan, data.dtype)  # a leading dimension of its own
        padded[:, :-8] = data
        return Buffer(padded), np.int32(padded.shape[1])

    (buffer_a, leading_a), (buffer_b, leading_b) = stored(a, layouts[0]), stored(b, layouts[1])
    buffer_c, leading_c = stored(c, layouts[2])
    out = Buffer(buffer_c.array.shape, sum_type)
    module = build("wmma_product", checked, **defines)
    arguments = [buffer_a, buffer_b, buffer_c, out, leading_a, leading_b, leading_c]
    module.launch(Launch((1, 1, 1), (32, 1, 1)), arguments, **how)
    result = out.array[:, :-8]
    assert np.isnan(out.array[:, -8:]).all(), "what lies between the rows is not written"
    return result if layouts[2] == "r" else result.T


SHAPES = [(16, 16), (32, 8), (8, 32)]


@pytest.mark.parametrize("layouts", ["rrr", "rcc", "crc", "ccr"])
@pytest.mark.parametrize("shape", SHAPES)
def test_wmma_in_float(shape: tuple[int, int], layouts: str) -> None:
    a, b, c = operands(shape, np.float32)
    exact = 2 * (a.astype(np.float64) @ b.astype(np.float64) + c)
    assert_allclose(wmma(shape, layouts, np.float32), exact, rtol=0, atol=2**-18 * np.abs(exact).max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [1, 5])
def test_wmma_in_half_rounds_once_to_half(shape: tuple[int, int], seed: int) -> None:
    a, b, c = operands(shape, np.float16)
    once = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float16)
    assert_array_equal(wmma(shape, "rcr", np.float16, seed=seed), once * np.float16(2))


@pytest.mark.parametrize("sum_type", [np.float32, np.float16])
def test_precise_wmma_rounds_every_eight_products(sum_type: Any) -> None:
    a, b, c = (operand.astype(np.float64) for operand in operands((16, 16), sum_type))
    rounded = toward_zero if sum_type is np.float32 else (lambda exact: exact.astype(np.float16))
    half_way = rounded(c + a[:, :8] @ b[:8]).astype(np.float64)
    expected = rounded(half_way + a[:, 8:] @ b[8:]) * sum_type(2)
    assert_array_equal(wmma((16, 16), "rrr", sum_type, precise=True), expected)


def test_checked_wmma_gives_the_same() -> None:
    for sum_type in (np.float32, np.float16):
        assert_array_equal(wmma((32, 8), "ccc", sum_type, checked=True), wmma((32, 8), "ccc", sum_type))


def test_half_is_numpys() -> None:
    everything = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    rng = np.random.default_rng(0)
    widened = everything.astype(np.float32)
    # Halves, the middles between neighbours (ties) and their neighbours, and any bits at all.
    with np.errstate(over="ignore", invalid="ignore"):
        middles = (widened + np.nextafter(everything, np.float16(np.inf)).astype(np.float32)) / 2
        floats = np.concatenate(
            [widened, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(9))]
        )
        floats = np.concatenate([floats, rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)])
        n = floats.size
        halves = np.resize(everything, n)
        doubles = floats.astype(np.float64)
        doubles[: 1 << 17] *= 1 + np.resize([1e-12, -1e-12], 1 << 17)  # just off a tie: rounding twice would go wrong
    buffers = [Buffer(halves), Buffer((n,), np.float32), Buffer(floats), Buffer((n,), np.float16), Buffer(doubles)]
    buffers += [Buffer((n,), np.float16), Buffer((n, 4), np.float16)]
    build("half_conversions").launch(Launch((-(-n // 256), 1, 1), (256, 1, 1)), [*buffers, np.int32(n)])
    with np.errstate(all="ignore"):
        narrowed = floats.astype(np.float16)
        h, f = halves.astype(np.float64), narrowed.astype(np.float64)
        assert_array_equal(buffers[1].array, halves.astype(np.float32))
        assert_array_equal(buffers[3].array, narrowed)
        assert_array_equal(buffers[5].array, doubles.astype(np.float16))
        assert_array_equal(buffers[6].array[:, 0], (h + f).astype(np.float16))
        assert_array_equal(buffers[6].array[:, 1], (h * f).astype(np.float16))
        # Fused: the product is not rounded, the sum once.
        assert_array_equal(buffers[6].array[:, 2], (f * h + (f + h).astype(np.float16)).astype(np.float16))
        assert_array_equal(buffers[6].array[:, 3], (-f * h + (h - f).astype(np.float16)).astype(np.float16))


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_warps_exchange(seed: int) -> None:
    n = 64
    out = Buffer((12, n), np.int32)
    build("warp_exchange").launch(Launch((1, 1, 1), (n, 1, 1)), [out], seed=seed)
    i = np.arange(n)
    lane, warp = i % 32, i // 32 * 32
    ballots = [sum(1 << k for k in range(32) if (base + k) % 3 == 0) for base in (0, 32)]
    expected = [
        warp + 3,
        warp + lane // 8 * 8 + 3,
        warp + (lane ^ 5),
        np.where(lane % 16 < 12, i + 4, i),
        np.where(lane % 16 >= 4, i - 4, i),
        np.array(ballots, np.uint32).astype(np.int32)[i // 32],
        np.where(i < 32, 2, 1),
        np.full(n, 13),
        np.full(n, 1 + 0 + 4),
        i ^ 1,
        (i // 8 * 8) * 8 + 28,
        np.where(lane < 8, warp + 7, -1),
    ]
    for row, values in enumerate(expected):
        assert_array_equal(out.array[row], values, err_msg=f"row {row}")


@pytest.mark.parametrize(("threads", "seed", "checked"), [(1, 0, False), (2, 0, False), (2, 5, False), (1, 1, True)])
def test_atomics(threads: int, seed: int, checked: bool) -> None:
    integers, floats = Buffer(np.zeros(3, np.int32)), Buffer(np.zeros(2, np.float32))
    unsigned, wide = Buffer(np.zeros(4, np.uint32)), Buffer(np.zeros(1, np.uint64))
    arguments = [integers, unsigned, floats, wide]
    build("atomics", checked).launch(Launch((8, 1, 1), (64, 1, 1)), arguments, threads=threads, seed=seed)
    assert integers.array.tolist() == [512, 511, -511]
    assert unsigned.array.tolist() == [0xFFFFFFFF, 0, 512 % 10, 0]
    assert floats.array.tolist() == [256.0, 512.0]
    assert wide.array.tolist() == [512 << 32]


@pytest.mark.parametrize("spin", [0, 1, 2])
@pytest.mark.parametrize(("threads", "seed", "checked"), [(1, 0, False), (2, 0, False), (2, 5, False), (1, 0, True)])
def test_blocks_that_spin_for_each_other(spin: int, threads: int, seed: int, checked: bool) -> None:
    blocks, rounds = 5, 7
    numbers = np.zeros((2, blocks), np.int32)
    numbers[0] = np.arange(blocks)
    expected = numbers[0]
    for _ in range(rounds):
        expected = expected + np.roll(expected, -1)
    arrived, buffer = Buffer(np.zeros(1, np.uint32)), Buffer(numbers)
    launch = Launch((blocks, 1, 1), (64, 1, 1), cooperative=True)
    module = build("own_grid_barrier", checked, SPIN=spin)
    module.launch(launch, [arrived, buffer, np.int32(rounds)], threads=threads, seed=seed, time_limit=20)
    assert_array_equal(buffer.array[rounds % 2], expected)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("n", [64, 250, 640])
def test_staged_asynchronous_copies(n: int, checked: bool) -> None:
    x = np.random.default_rng(0).normal(size=n).astype(np.float32)
    padded = np.zeros(-(-n // 64) * 64, np.float32)
    padded[:n] = x
    y = Buffer(padded.shape, np.float32)
    build("staged_copy", checked).launch(Launch((1, 1, 1), (64, 1, 1), 3 * 256), [Buffer(x), y, np.int32(n)])
    assert_array_equal(y.array, 2 * padded[np.arange(padded.size) ^ 1])


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_alive_at_once_keep_their_own_static_shared_memory(threads: int) -> None:
    out = Buffer((5, 32), np.int32)
    build("static_shared").launch(Launch((5, 1, 1), (32, 1, 1), cooperative=True), [out], threads=threads)
    assert_array_equal(out.array, np.repeat(np.arange(5) * 20, 32).reshape(5, 32))


@pytest.mark.parametrize("cooperative", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("checked", [False, True])
def test_blocks_of_a_cluster_send_each_other_words(cooperative: bool, size: int, checked: bool) -> None:
    x = np.arange(8 * 48, dtype=np.float32).reshape(8, 48)
    expected = np.roll(x.reshape(8 // size, size, 48), 5, axis=1).reshape(8, 48)
    launch = Launch((8, 1, 1), (48, 1, 1), 49 * 8, cooperative, cluster=size)
    module = build("cluster_ring", checked)
    for seed in range(4):
        out = Buffer((8, 48, 2), np.float32)
        module.launch(launch, [Buffer(x), out, np.int32(5), np.int32(size)], seed=seed)
        assert_array_equal(out.array[..., 0], expected)
        assert_array_equal(out.array[..., 1], 5)
