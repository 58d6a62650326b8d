"""Calibration, cache state, and which timings are believed. The timing itself needs a GPU: see test_cuda_gpu.py."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.devices import find
from tuner.kernel import Work
from tuner.measure import MAX_SETS, Timing, cache_state, unbelievable
from tuner.timed_graph import LAUNCHES, LONG_SAMPLE_US, SAMPLE_US, SLOW_SAMPLE_US, launches_for
from tuner.types import CacheState

T4 = find("t4")
LAYER = Work(flops=2.0 * 32 * 1024 * 1024, floor_bytes=2.2e6, moved_bytes=2.2e6)


def timing(*samples: float, cache: CacheState = CacheState.HOT) -> Timing:
    return Timing(samples, cache, 20)


@pytest.mark.parametrize(
    ("one_us", "sets", "launches"),
    [
        (2.0, 1, 100),  # 200 us
        (1.0, 1, 200),
        (50.0, 1, 20),  # 1 ms, but not fewer than 20
        (400.0, 1, 5),  # 2 ms are long enough for any number
        (5_000.0, 1, 1),
        (5_000.0, 2, 2),
        (5_000.0, 9, 4),  # a turn of all sets would take 45 ms
        (1e6, 1, 1),
        (2.0, 30, 120),  # whole turns of the argument sets
        (2.0, 256, 256),
        (0.0, 1, 20),
        (-1.0, 3, 60),
        (math.nan, 1, 20),
    ],
)
def test_launches_of_a_sample(one_us: float, sets: int, launches: int) -> None:
    assert launches_for(one_us, sets) == launches


@given(st.floats(0.1, 1e6), st.integers(1, MAX_SETS))
def test_a_sample_is_long_enough_or_the_kernel_slow(one_us: float, sets: int) -> None:
    launches = launches_for(one_us, sets)
    assert launches % sets == 0 or one_us * sets > SLOW_SAMPLE_US
    assert launches * one_us <= max(SLOW_SAMPLE_US, one_us) * 2, "nor so long that a slow kernel uses up its time limit"
    assert launches >= LAUNCHES or launches * one_us >= LONG_SAMPLE_US * (1 - 1e-9)
    assert launches * one_us >= SAMPLE_US * (1 - 1e-9)


def test_median_and_spread() -> None:
    seen = timing(10.0, 11.0, 12.0, 13.0, 14.0)
    assert seen.median_us == 12.0
    assert seen.spread == pytest.approx(3.0 / 12.0)
    assert timing(5.0).spread == 0.0


def test_a_good_timing_is_believed() -> None:
    # 2.2 MB in 10 us is 220 GB/s, 67 MFLOP in 10 us 6.7 TFLOP/s
    assert unbelievable(timing(10.0, 10.1), LAYER, T4) is None


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf])
def test_no_time_is_not_believed(sample: float) -> None:
    assert unbelievable(timing(10.0, sample), LAYER, T4) is not None


def test_an_empty_timing_is_not_believed() -> None:
    assert unbelievable(timing(), LAYER, T4) is not None


def test_faster_than_the_memory_is_not_believed_when_cold_but_may_be_when_hot() -> None:
    quick = timing(3.0, cache=CacheState.COLD)  # 733 GB/s; a T4 has 320
    assert "GB/s is beyond" in str(unbelievable(quick, LAYER, T4))
    assert unbelievable(timing(3.0), LAYER, T4) is None
    assert "GB/s is beyond" in str(unbelievable(timing(0.3), LAYER, T4))


def test_faster_than_the_tensor_cores_is_not_believed() -> None:
    compute = Work(flops=1e9, floor_bytes=1e3, moved_bytes=1e3)
    assert "TFLOP/s is beyond" in str(unbelievable(timing(5.0), compute, T4))
    assert unbelievable(timing(20.0), compute, T4) is None


@pytest.mark.parametrize(
    ("floor_bytes", "device", "cache"),
    [
        (2 * 128 * 128, "t4", CacheState.HOT),
        (2 * 1024 * 1024, "t4", CacheState.COLD),  # the network has four times 2 MB, L2 4 MB
        (2 * 1024 * 1024, "h200", CacheState.HOT),
        (2 * 4096 * 4096, "h200", CacheState.COLD),
        (2 * 8192 * 8192, "h200", CacheState.COLD),
    ],
)
def test_cache_state_of_a_network_that_nobody_knows(floor_bytes: float, device: str, cache: CacheState) -> None:
    assert cache_state(Work(0, floor_bytes, floor_bytes), find(device)) is cache


def test_cache_state_of_a_known_network() -> None:
    layer, logits = Work(0, 2e6, 2e6), Work(0, 2e3, 2e3)
    assert cache_state(layer, T4, 4e6) is CacheState.HOT
    assert cache_state(layer, T4, 4.3e6) is CacheState.COLD
    assert cache_state(logits, T4, 1e9) is CacheState.HOT  # written by the kernel before it, whatever the network
