"""Each kind of mistake, planted in a small kernel of faults/: it must be reported, and the kernel without it must pass.

A mistake that no report can catch (a skipped tail) must show as a wrong result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tuner import emulation
from tuner.emulation import Buffer, EmulationFault
from tuner.types import Launch

FAULTS = Path(__file__).parent / "faults"


@dataclass
class Case:
    """A kernel, its launch, and its result where nothing is wrong."""

    arguments: tuple[Any, ...]
    output: int
    expected: Any
    launch: Launch
    defines: dict[str, Any] = field(default_factory=dict)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(size=shape).astype(dtype)


def block(threads: int, blocks: int = 1, shared: int = 0, cooperative: bool = False) -> Launch:
    return Launch((blocks, 1, 1), (threads, 1, 1), shared, cooperative)


def filled(count: int, dtype: Any = np.float32) -> Buffer:
    """An output: nothing is in it yet."""
    return Buffer((count,), dtype, name="y")


def case(kernel: str) -> Case:
    numbers = normal(256)
    x = Buffer(numbers, name="x")
    match kernel:
        case "missing_barrier":
            return Case((x, filled(256)), 1, numbers.reshape(2, 128)[:, ::-1].ravel(), block(128, shared=512))
        case "missing_syncwarp":
            return Case((x, filled(64)), 1, numbers[np.arange(64) ^ 1], block(64))
        case "divergent_barrier":
            return Case((x, filled(64)), 1, numbers[:64], block(64))
        case "out_of_bounds":
            x = Buffer(numbers[:200], name="x")
            return Case((x, filled(201), np.int32(200)), 1, None, block(128, 2, 512))
        case "uninitialised":
            a, b = normal(16, 16, dtype=np.float16), normal(16, 16, dtype=np.float16).T.copy()
            expected = a.astype(np.float64) @ b.astype(np.float64)
            arguments = (
                Buffer(a, name="a"),
                Buffer(b, name="b"),
                filled(256),
                Buffer((8,), np.float32, name="scratch"),
            )
            return Case(arguments, 2, expected.ravel(), block(32, shared=16 * 24 * 2))
        case "skipped_tail":
            return Case(
                (Buffer(numbers[:250], name="x"), filled(1), np.int32(250)), 1, [numbers[:250].sum()], block(32)
            )
        case "misaligned":
            halves = normal(32 * 9, dtype=np.float16)
            return Case((Buffer(halves, name="x"), filled(256, np.float16), np.int32(9)), 1, halves[:256], block(32))
        case "endless":
            flag = Buffer(np.zeros(1, np.int32), name="flag")
            return Case((flag, filled(64)), 1, np.ones(64), block(64, 2, cooperative=True))
        case "partial_shuffle":
            integers = np.arange(64, dtype=np.int32)
            return Case((Buffer(integers, name="x"), filled(64, np.int32)), 1, integers ^ 1, block(64))
        case "trap":
            integers = np.arange(1, 33, dtype=np.int32)
            return Case((Buffer(integers, name="x"), filled(32, np.int32), None), 1, 100 // integers, block(32))
        case "missing_fence":
            counter = Buffer(np.zeros(1, np.uint32), name="arrived")
            total = Buffer(np.zeros(1, np.float32), name="sum")
            return Case((x, filled(4), counter, total), 3, [numbers.sum()], block(64, 4))
        case "missing_wait":
            rows = numbers.reshape(64, 4)
            return Case((x, filled(256)), 1, rows[np.arange(64) ^ 1].ravel(), block(64, shared=1024))
        case "cluster_message":
            expected = np.roll(numbers[:128], 64)
            return Case((x, filled(128)), 1, expected, Launch((2, 1, 1), (64, 1, 1), 264, cluster=2))
        case "grid_sync":
            expected = numbers + np.roll(numbers, -64)
            return Case((x, filled(256), filled(256)), 2, expected, block(64, 4, cooperative=True))
    raise ValueError(kernel)


def run(kernel: str, fault: int, *, checked: bool = False, **how: Any) -> list[str]:
    """The kinds that were reported; `wrong` where nothing was and the result is not the expected one."""
    what = case(kernel)
    module = emulation.build(FAULTS / f"{kernel}.cu", kernel, {"FAULT": fault}, checked=checked)
    launch = what.launch
    if fault == 8:  # 480 bytes do not end at a page
        launch = block(120, 2, 121 * 4 - 4)
    try:
        module.launch(launch, what.arguments, **how)
    except EmulationFault as found:
        for report in found.reports:
            assert f"[{kernel}" in report, "a report names its kernel"
        return sorted(set(found.kinds))
    result = what.arguments[what.output].array
    if what.expected is not None and not np.allclose(result, what.expected, rtol=1e-5, atol=1e-5):
        return ["wrong"]
    return []


KERNELS = sorted(path.stem for path in FAULTS.glob("*.cu"))


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_is_reported_where_nothing_is_wrong(kernel: str) -> None:
    for seed in (0, 1, 5):
        assert run(kernel, 0, seed=seed) == []
    assert run(kernel, 0, checked=True) == []


@pytest.mark.parametrize(
    ("kernel", "fault", "kind"),
    [
        ("divergent_barrier", 1, "divergent-barrier"),
        ("divergent_barrier", 2, "exit-before-barrier"),
        ("divergent_barrier", 3, "exit-before-barrier"),
        ("out_of_bounds", 1, "out-of-bounds"),
        ("out_of_bounds", 2, "out-of-bounds"),
        ("out_of_bounds", 4, "out-of-bounds"),
        ("out_of_bounds", 5, "out-of-bounds"),
        ("out_of_bounds", 7, "out-of-bounds"),
        ("out_of_bounds", 8, "out-of-bounds"),
        ("out_of_bounds", 6, "out-of-bounds"),
        ("uninitialised", 1, "poison"),
        ("uninitialised", 2, "poison"),
        ("uninitialised", 3, "poison"),
        ("skipped_tail", 1, "wrong"),
        ("misaligned", 1, "misaligned"),
        ("misaligned", 2, "misaligned"),
        ("misaligned", 3, "misaligned"),
        ("partial_shuffle", 1, "divergent-warp"),
        ("partial_shuffle", 2, "divergent-warp"),
        ("partial_shuffle", 3, "divergent-warp"),
        ("trap", 1, "trap"),
        ("trap", 2, "trap"),
        ("trap", 3, "trap"),
        ("trap", 4, "null-pointer"),
        ("trap", 5, "stack-overflow"),
        ("missing_wait", 1, "wrong"),
        ("missing_wait", 2, "wrong"),
        ("grid_sync", 2, "grid-sync"),
        ("grid_sync", 3, "deadlock"),
        ("cluster_message", 1, "memory-barrier"),
        ("cluster_message", 3, "memory-barrier"),
        ("cluster_message", 4, "memory-barrier"),
        ("cluster_message", 5, "cluster-barrier"),
        ("cluster_message", 7, "exit-before-barrier"),
        ("cluster_message", 10, "exited-block"),
        ("cluster_message", 11, "memory-barrier"),
        ("cluster_message", 12, "memory-barrier"),
        ("cluster_message", 13, "out-of-bounds"),
        ("cluster_message", 14, "out-of-bounds"),
        ("cluster_message", 15, "deadlock"),
        ("cluster_message", 16, "memory-barrier"),
        ("cluster_message", 17, "memory-barrier"),
        ("cluster_message", 18, "memory-barrier"),
        ("cluster_message", 20, "divergent-warp"),
        ("cluster_message", 21, "memory-barrier"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_the_plain_build_catches(kernel: str, fault: int, kind: str, seed: int) -> None:
    assert kind in run(kernel, fault, seed=seed)


@pytest.mark.parametrize(
    ("kernel", "fault", "kind"),
    [
        ("missing_barrier", 1, "uninitialised"),
        ("missing_barrier", 2, "race"),
        ("missing_syncwarp", 1, "uninitialised"),
        ("out_of_bounds", 1, "out-of-bounds"),
        ("out_of_bounds", 2, "out-of-bounds"),
        ("out_of_bounds", 4, "out-of-bounds"),
        ("out_of_bounds", 5, "out-of-bounds"),
        ("out_of_bounds", 9, "out-of-bounds"),
        ("uninitialised", 1, "uninitialised"),
        ("uninitialised", 3, "uninitialised"),
        ("uninitialised", 4, "uninitialised"),
        ("missing_fence", 1, "race"),
        ("missing_fence", 2, "race"),
        ("grid_sync", 1, "race"),
        ("cluster_message", 2, "race"),
        ("cluster_message", 19, "race"),
    ],
)
def test_the_checked_build_catches(kernel: str, fault: int, kind: str) -> None:
    # Seed 1 runs the reader first in some of them, seed 0 in others: one of the two orders shows a missing barrier as a
    # race, the other as a read of what nobody has written yet.
    found = run(kernel, fault, checked=True, seed=0) + run(kernel, fault, checked=True, seed=1)
    assert kind in found


@pytest.mark.parametrize("fault", [2, 6])
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_rounds_of_messages_that_run_into_each_other_are_found_out(fault: int, seed: int) -> None:
    assert run("cluster_message", fault, seed=seed, time_limit=1.0) != []


def test_a_message_that_nobody_waits_for_is_reported() -> None:
    assert run("cluster_message", 9) == ["exited-block"]


@pytest.mark.parametrize(("blocks", "cluster"), [(3, 2), (32, 32), (2, 0)])
def test_an_impossible_cluster_is_reported(blocks: int, cluster: int) -> None:
    what = case("cluster_message")
    module = emulation.build(FAULTS / "cluster_message.cu", "cluster_message", {"FAULT": 0})
    with pytest.raises(EmulationFault, match=r"^launch: clusters of"):
        module.launch(Launch((blocks, 1, 1), (64, 1, 1), 264, cluster=cluster), what.arguments)


@pytest.mark.parametrize("fault", [1, 2, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_launch_that_does_not_end_is_stopped(fault: int, threads: int) -> None:
    assert run("endless", fault, threads=threads, time_limit=0.2) == ["timeout"]
    assert run("endless", 0, threads=threads, time_limit=5.0) == [], "and the next launch is none the worse"


def reports(kernel: str, fault: int, **how: Any) -> list[str]:
    what = case(kernel)
    module = emulation.build(FAULTS / f"{kernel}.cu", kernel, {"FAULT": fault}, checked=how.pop("checked", False))
    with pytest.raises(EmulationFault) as raised:
        module.launch(what.launch, what.arguments, **how)
    return raised.value.reports


@pytest.mark.parametrize("checked", [False, True])
def test_an_access_out_of_bounds_is_described(checked: bool) -> None:
    (report,) = reports("out_of_bounds", 2, checked=checked)
    assert report.startswith("out-of-bounds: ")
    assert "element 32967 (byte 131868) of buffer y (201 elements)" in report or checked
    assert "out_of_bounds.cu:" in report or checked
    assert report.endswith("[out_of_bounds block (1,0,0) thread (71,0,0)]")


def test_a_write_beside_the_end_is_found_after_the_launch() -> None:
    what = case("out_of_bounds")
    short = Buffer((200,), np.float32, name="short")
    module = emulation.build(FAULTS / "out_of_bounds.cu", "out_of_bounds", {"FAULT": 3})
    with pytest.raises(
        EmulationFault, match=r"out-of-bounds: .*element 200 \(byte 800\) of buffer short \(200 elements\)"
    ):
        module.launch(what.launch, (what.arguments[0], short, np.int32(200)))


def test_reports_name_the_line() -> None:
    source = (FAULTS / "missing_barrier.cu").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(source) if "127 - i" in text)
    found = reports("missing_barrier", 1, checked=True)
    assert any(f"missing_barrier.cu:{line}" in report for report in found)


def test_a_grid_barrier_needs_a_cooperative_launch() -> None:
    what = case("grid_sync")
    module = emulation.build(FAULTS / "grid_sync.cu", "grid_sync", {"FAULT": 0})
    with pytest.raises(EmulationFault, match=r"^grid-sync: .* not cooperative"):
        module.launch(block(64, 4), what.arguments)


@pytest.mark.parametrize("launch", [block(1025), block(0), block(32, 0), block(32, shared=300_000)])
def test_an_impossible_launch_is_reported(launch: Launch) -> None:
    what = case("skipped_tail")
    module = emulation.build(FAULTS / "skipped_tail.cu", "skipped_tail", {"FAULT": 0})
    with pytest.raises(EmulationFault, match=r"^launch: "):
        module.launch(launch, what.arguments)
