"""The model's laws: more of anything scarce is never slower. Occupancy as NVIDIA's calculator has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.backends.model import Prediction, blocks_per_sm, predict
from tuner.devices import KNOWN, find
from tuner.kernel import Finish, Loop, Work
from tuner.types import Binary, CacheState, Device, Failure, Launch, Status

ALONE = Finish()
T4, H200 = find("t4"), find("h200")


def binary(registers: int = 64, *, shared: int = 0, spill: int = 0) -> Binary:
    return Binary(Path("x.cubin"), "x", "sm_75", registers, shared, spill)


def launch(blocks: int = 80, threads: int = 128, shared: int = 16 << 10, *, cooperative: bool = False) -> Launch:
    return Launch((blocks, 1, 1), (threads, 1, 1), shared, cooperative)


WORK = Work(flops=2.0 * 32 * 1024 * 1024, floor_bytes=2.2e6, moved_bytes=4e6, serial_steps=8)


def us(device: Device = T4, start: Launch | None = None, built: Binary | None = None, work: Work = WORK) -> float:
    seen = predict(device, start or launch(), built or binary(), work, CacheState.COLD)
    assert isinstance(seen, Prediction)
    return seen.us


@pytest.mark.parametrize(
    ("device", "threads", "registers", "shared", "blocks"),
    [
        (T4, 256, 32, 0, 4),  # threads: 1024 / 256
        (T4, 32, 32, 0, 16),  # the SM's limit on blocks
        (T4, 128, 128, 0, 4),  # registers: 65536 / (128 * 128)
        (T4, 128, 32, 32 << 10, 2),  # shared memory: 64 KB / 32 KB
        (T4, 1024, 64, 0, 1),
        (T4, 100, 32, 0, 8),  # 100 threads are 4 warps: 1024 / 128
        (H200, 128, 32, 113 << 10, 2),  # 228 KB / (113 + 1) KB: the system keeps 1 KB a block
        (H200, 128, 32, 114 << 10, 1),
        (H200, 256, 255, 0, 1),  # 65536 / (256 * 256)
    ],
)
def test_blocks_per_sm(device: Device, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert blocks_per_sm(device, launch(threads=threads, shared=shared), binary(registers)) == blocks


def test_terms_by_hand() -> None:
    """One full wave, hot: 40 MB at the share of the T4's 20 bytes x 40 SMs x 1.59 GHz that each bound allows."""
    work = Work(flops=1e6, floor_bytes=1e6, moved_bytes=40e6, serial_steps=4)
    seen = predict(T4, launch(blocks=160, threads=256, shared=0), binary(32), work, CacheState.HOT)
    assert isinstance(seen, Prediction)
    assert (seen.blocks_per_sm, seen.waves, seen.occupancy) == (4, 1, 1.0)
    whole_us = 40e6 / (20 * 40 * 1.59e9) * 1e6
    assert seen.l2_us == pytest.approx(whole_us)
    assert seen.blocks_us == pytest.approx(0.25 + whole_us / 0.67)
    assert seen.memory_us == 0.0
    assert seen.launch_us == pytest.approx(1.4)
    assert seen.us == pytest.approx(1.4 + (seen.blocks_us**4 + seen.l2_us**4 + seen.tensor_us**4) ** 0.25)
    assert seen.terms()["waves"] == 1


def blocks_us(device: Device, loop: Loop, finish: Finish = ALONE, *, blocks: int = 1, threads: int = 32) -> float:
    work = Work(flops=1.0, floor_bytes=1.0, moved_bytes=1.0, serial_steps=10, loop=loop, finish=finish)
    seen = predict(device, launch(blocks, threads, 0), binary(32), work, CacheState.HOT)
    assert isinstance(seen, Prediction)
    return seen.blocks_us


CYCLE_US = 1e6 / H200.clock_hz


@pytest.mark.parametrize(
    ("loop", "pass_us"),
    [
        (Loop(), 0.25),  # waits for its own inputs: a round trip to L2
        (Loop(ahead=1), 0.25),  # nothing else to do meanwhile
        (Loop(ahead=5), 0.05),  # Little's law: five round trips are under way
        (Loop(ahead=5, barriers=2), 360 * CYCLE_US),
        (Loop(ahead=0, barriers=2), 0.25 + 360 * CYCLE_US),
        (Loop(ahead=5, barriers=2, tensor_steps=3, instructions=40), (360 + 150 + 120) * CYCLE_US),
        (Loop(ahead=5, shared_bytes=80_000), 1000 * CYCLE_US),
    ],
)
def test_a_pass_by_hand(loop: Loop, pass_us: float) -> None:
    assert blocks_us(H200, loop) == pytest.approx(0.25 + 10 * pass_us)


def test_warps_share_the_schedulers_and_blocks_the_shared_memory() -> None:
    loop = Loop(ahead=5, instructions=1000)
    one = blocks_us(H200, loop, threads=128)
    assert one == pytest.approx(0.25 + 10 * 3000 * CYCLE_US)
    assert blocks_us(H200, loop, threads=256) == pytest.approx(0.25 + 10 * 6000 * CYCLE_US)
    assert blocks_us(H200, loop, threads=128, blocks=2 * 132) == pytest.approx(0.25 + 10 * 6000 * CYCLE_US)
    shared = Loop(ahead=5, shared_bytes=80_000)
    assert blocks_us(H200, shared, blocks=3 * 132) == pytest.approx(0.25 + 10 * 3000 * CYCLE_US)


def test_an_sm_alone_draws_more_than_its_even_share() -> None:
    loop = Loop(ahead=5, fetched_bytes=1e6)
    even_us = 1e6 / (0.67 * H200.l2_bandwidth / 132) * 1e6
    assert blocks_us(H200, loop, blocks=132) == pytest.approx(0.25 + 10 * even_us)
    assert blocks_us(H200, loop, blocks=100) == pytest.approx(0.25 + 10 * even_us * 100 / 132)
    assert blocks_us(H200, loop, blocks=1) == pytest.approx(0.25 + 10 * even_us / 1.75)


def test_nothing_is_fetched_ahead_without_asynchronous_copies() -> None:
    assert blocks_us(T4, Loop(ahead=5)) == blocks_us(T4, Loop())


def test_meetings_by_hand() -> None:
    alone = blocks_us(H200, Loop())
    assert blocks_us(H200, Loop(), Finish(blocks=4, clustered=True)) - alone == pytest.approx(0.6)
    assert blocks_us(H200, Loop(), Finish(blocks=4, loads=8)) - alone == pytest.approx(1.0 + 400 * CYCLE_US)
    assert blocks_us(H200, Loop(), Finish(shared_bytes=80_000)) - alone == pytest.approx(1000 * CYCLE_US)


def test_a_dependent_launch_saves_a_part_of_the_gap() -> None:
    start = launch()
    assert us(H200, start) - us(H200, replace(start, overlap=True)) == pytest.approx(0.55)


def test_memory_has_the_bytes_that_a_configuration_cannot_avoid() -> None:
    assert us(work=replace(WORK, memory_bytes=3 * WORK.floor_bytes)) > us(work=WORK)


@pytest.mark.parametrize(
    ("start", "built", "words"),
    [
        (launch(threads=2048), binary(), "threads in a block"),
        (launch(shared=100 << 10), binary(), "shared memory in a block"),
        (launch(shared=60 << 10), binary(shared=8 << 10), "shared memory in a block"),
        (launch(threads=1024), binary(128), "registers in a block"),
        (launch(blocks=161, threads=256, shared=0, cooperative=True), binary(32), "room for only 160"),
    ],
)
def test_what_does_not_fit_is_not_predicted(start: Launch, built: Binary, words: str) -> None:
    seen = predict(T4, start, built, WORK, CacheState.HOT)
    assert isinstance(seen, Failure)
    assert seen.status is Status.RESOURCES
    assert words in seen.message


def test_a_cooperative_grid_that_fits() -> None:
    start = launch(blocks=160, threads=256, shared=0, cooperative=True)
    assert isinstance(predict(T4, start, binary(32), WORK, CacheState.HOT), Prediction)


@pytest.mark.parametrize("field", ["memory_bandwidth", "l2_bandwidth", "tensor_flops"])
def test_a_better_device_is_not_slower(field: str) -> None:
    better = replace(T4, **{field: 2 * getattr(T4, field)})
    assert us(better) <= us(T4)


@given(
    st.sampled_from(sorted(KNOWN)),
    st.integers(1, 4000),
    st.sampled_from([32, 64, 128, 256]),
    st.floats(1e3, 1e9),
    st.floats(1, 8),
    st.integers(1, 200),
)
def test_more_work_is_not_faster(name: str, blocks: int, threads: int, moved: float, more: float, steps: int) -> None:
    device, start = KNOWN[name], launch(blocks, threads)
    base = Work(flops=16 * moved, floor_bytes=moved / 2, moved_bytes=moved, serial_steps=steps)
    least = us(device, start, work=base)
    assert least > device.launch_us
    for worse in (
        replace(base, flops=more * base.flops),
        replace(base, floor_bytes=more * base.floor_bytes),
        replace(base, moved_bytes=more * base.moved_bytes),
        replace(base, serial_steps=steps + 1),
    ):
        assert us(device, start, work=worse) >= least * (1 - 1e-12)
    assert us(device, start, binary(spill=64), base) >= least


def test_cold_inputs_are_not_faster_than_hot() -> None:
    hot = predict(T4, launch(), binary(), WORK, CacheState.HOT)
    assert isinstance(hot, Prediction)
    assert us() >= hot.us


def test_few_blocks_are_slower_than_one_for_each_sm() -> None:
    assert us(start=launch(blocks=4)) > us(start=launch(blocks=40))


def test_one_block_too_many_costs_a_wave() -> None:
    full = launch(blocks=4 * T4.sm_count, threads=256, shared=0)
    over = launch(blocks=4 * T4.sm_count + 1, threads=256, shared=0)
    assert us(start=over, built=binary(32)) > us(start=full, built=binary(32))
