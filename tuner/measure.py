"""How long a launch takes, as the trainer will see it: replayed from a CUDA graph, with the cache as it will be then.

A sample is one replay (`tuner.timed_graph`). All samples are kept. A candidate that is beyond doubt slower than a
known one gets no more of them than show that, and its row says which time it was given up against. Runs in the child
that owns the GPU.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.backends.cublas import CublasError
from tuner.backends.cuda import CudaRunner, Prepared
from tuner.backends.overlap import LaunchError
from tuner.kernel import Array, Gemm, Kernel, Work
from tuner.timed_graph import TimedGraph, calibrated
from tuner.types import Binary, CacheState, Config, Device, Failure, Problem, Status

SAMPLES = 21

RACED = 6
"""Fewest samples of one that is given up: their range is the 95% interval of its median."""
SLOWER = 1.5
"""A candidate is given up when its whole interval is beyond this many times the fastest one's time."""

TRAINING_FACTOR = 4
"""A training step touches about this many times what one layer does: three weight layers, activations, the batch."""

COLD_FACTOR = 2
"""Cold inputs rotate over this many times the L2."""
MAX_SETS = 256
"""Most argument sets that cold inputs rotate over."""

_BELIEVABLE = 1.25
"""How far above its stated peak a device may seem to be: boost clocks are not the stated ones, and hot inputs are
partly served from L1."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds per launch, one number per sample."""

    samples_us: tuple[float, ...]
    cache: CacheState
    launches: int
    """Per sample."""
    gave_up_us: float | None = None
    """The time than which it was beyond doubt slower, so that fewer than `SAMPLES` samples were taken."""

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        if len(self.samples_us) < 2 or self.median_us == 0:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_us, n=4)
        return (high - low) / self.median_us


def cache_state(work: Work, device: Device, step_bytes: float | None = None) -> CacheState:
    """Where a training step that touches `step_bytes` will find the inputs of a problem in it.

    HOT where the step fits in L2, and also where the problem is so small that `MAX_SETS` of it would: what is that
    small was just written by the kernel before it. Where nobody knows the network, `step_bytes` is `TRAINING_FACTOR`
    times the problem's least bytes.
    """
    if step_bytes is None:
        step_bytes = TRAINING_FACTOR * work.floor_bytes
    tiny = work.floor_bytes * MAX_SETS <= COLD_FACTOR * device.l2_bytes
    return CacheState.HOT if tiny or step_bytes <= device.l2_bytes else CacheState.COLD


def unbelievable(timing: Timing, work: Work, device: Device) -> str | None:
    """Why `timing` cannot be true; None where it can: positive, finite, and within the device's peaks."""
    bad = [sample for sample in timing.samples_us if not (math.isfinite(sample) and sample > 0)]
    if bad or not timing.samples_us:
        return f"{len(bad)} of {len(timing.samples_us)} samples are not a positive number of microseconds"
    seconds = timing.median_us * 1e-6
    hot = timing.cache is CacheState.HOT
    peak = max(device.l2_bandwidth, device.memory_bandwidth) if hot else device.memory_bandwidth
    if work.floor_bytes / seconds > _BELIEVABLE * peak:
        return f"{work.floor_bytes / seconds / 1e9:.0f} GB/s is beyond the device's {peak / 1e9:.0f} GB/s"
    if work.flops / seconds > _BELIEVABLE * device.tensor_flops:
        return f"{work.flops / seconds / 1e12:.0f} TFLOP/s is beyond the device's {device.tensor_flops / 1e12:.0f}"
    return None


def time_kernel(
    runner: CudaRunner,
    kernel: Kernel,
    problem: Problem,
    config: Config,
    binary: Binary,
    *,
    cache: CacheState,
    seed: int,
    rival_us: float | None = None,
) -> Timing | Failure:
    """Time a configuration that has been verified; where `rival_us` is given, no longer than it takes to see that it is
    slower than `SLOWER` times that.
    """
    timings = time_interleaved(runner, kernel, problem, [(config, binary)], cache=cache, seed=seed, rival_us=rival_us)
    return timings if isinstance(timings, Failure) else timings[0]


def time_interleaved(
    runner: CudaRunner,
    kernel: Kernel,
    problem: Problem,
    contestants: Sequence[tuple[Config, Binary]],
    *,
    cache: CacheState,
    seed: int,
    rival_us: float | None = None,
) -> tuple[Timing, ...] | Failure:
    """Time configurations that have been verified, each taking its samples in turns with the others.

    All are loaded and warmed up first. Then each gives one sample per round, in an order that is drawn anew for every
    round, so that a clock or a temperature that drifts does the same to all. `rival_us` is for one that is alone: see
    `time_kernel`.
    """
    import cupy

    prepared: list[Prepared] = []
    for config, binary in contestants:
        ready = runner.prepare(kernel, problem, config, binary)
        if isinstance(ready, Failure):
            return ready
        prepared.append(ready)
    try:
        stream = cupy.cuda.Stream(non_blocking=True)
        replays = []
        for (config, _), start in zip(contestants, prepared, strict=True):
            arguments = kernel.form(config).arguments(problem, config, runner.rng(seed))
            first = tuple(item.data if isinstance(item, Array) else item.value for item in arguments)
            sets = _rotation(first, cache, runner.device, contestants=len(contestants))
            replays.append(calibrated(_turns(start, sets), len(sets), stream))
        if len(replays) == 1 and rival_us is not None:
            return (_raced(replays[0], cache, rival_us),)
        return tuple(
            Timing(samples, cache, replay.launches)
            for samples, replay in zip(_in_turns(replays, random.Random(seed)), replays, strict=True)
        )
    except cupy.cuda.memory.OutOfMemoryError as error:
        return Failure(Status.RESOURCES, str(error))
    except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError, LaunchError, CublasError) as error:
        # It ran alone and fails in company: whatever it did, the context is not to be trusted.
        runner.lost = True
        return Failure(Status.RUNTIME, f"failed while it was timed: {error}")


def _turns(start: Prepared, sets: Sequence[tuple[Any, ...]]) -> Callable[[int], None]:
    return lambda turn: start(sets[turn % len(sets)])


def _raced(replay: TimedGraph, cache: CacheState, rival_us: float) -> Timing:
    """`SAMPLES`, or as many as show that it is slower."""
    samples: list[float] = []
    while len(samples) < SAMPLES:
        samples.append(replay())
        if len(samples) >= RACED and median_interval(samples)[0] > SLOWER * rival_us:
            break
    return Timing(tuple(samples), cache, replay.launches, rival_us if len(samples) < SAMPLES else None)


def _in_turns(replays: Sequence[TimedGraph], shuffled: random.Random) -> list[tuple[float, ...]]:
    """`SAMPLES` of each, round by round."""
    samples: list[list[float]] = [[] for _ in replays]
    order = list(range(len(replays)))
    for _ in range(SAMPLES):
        shuffled.shuffle(order)
        for index in order:
            if len(replays) > 1:
                replays[index]()  # puts the caches back to where a kernel finds them that runs again and again
            samples[index].append(replays[index]())
    return [tuple(each) for each in samples]


def time_library(runner: CudaRunner, gemms: Sequence[Gemm], *, cache: CacheState, seed: int) -> Timing | Failure:
    """Time cuBLAS on `gemms`, one after the other: fp16 in and out, sums in fp32."""
    import cupy

    try:
        cublas = runner.blas()
    except ImportError as error:
        return Failure(Status.LAUNCH, f"cuBLAS is not installed: {error}")
    except CublasError as error:
        return Failure(Status.RUNTIME, str(error))
    try:
        rng = runner.rng(seed)
        sizes = [size for gemm in gemms for size in (gemm.m * gemm.k, gemm.k * gemm.n, gemm.m * gemm.n)]
        first = tuple(rng.random(size, dtype=cupy.float32).astype(cupy.float16) for size in sizes)
        sets = _rotation(first, cache, runner.device)
        stream = cupy.cuda.Stream(non_blocking=True)

        def launch(turn: int) -> None:
            cublas.use_current_stream()
            arrays = sets[turn % len(sets)]
            for position, gemm in enumerate(gemms):
                cublas.multiply(gemm, *arrays[3 * position : 3 * position + 3])

        replay = calibrated(launch, len(sets), stream)
        [samples] = _in_turns([replay], random.Random(seed))
        return Timing(samples, cache, replay.launches)
    except (CublasError, cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
        runner.lost = True  # it may have failed in the middle of a capture
        return Failure(Status.RUNTIME, f"cuBLAS failed: {error}")


def _rotation(
    first: tuple[Any, ...], cache: CacheState, device: Device, *, contestants: int = 1
) -> list[tuple[Any, ...]]:
    """Argument sets to take turns with: one where inputs are hot, enough to push each other out of L2 where cold.

    All `contestants` together take half of the free memory at most.
    """
    import cupy

    if cache is CacheState.HOT:
        return [first]
    size = sum(value.nbytes for value in first if isinstance(value, cupy.ndarray)) or 1
    free, _ = cupy.cuda.runtime.memGetInfo()
    wanted = math.ceil(COLD_FACTOR * device.l2_bytes / size) + 1
    count = max(1, min(wanted, MAX_SETS, free // 2 // contestants // size))

    def copy() -> tuple[Any, ...]:
        return tuple(value.copy() if isinstance(value, cupy.ndarray) else value for value in first)

    return [first, *(copy() for _ in range(count - 1))]


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Where the median of what `samples` were drawn from lies, with at least this confidence.

    Between two order statistics, which needs no assumption on the distribution: the k-th smallest sample is above the
    median with the binomial probability P(B(n, 1/2) < k). Of 21 samples these are the 6th and the 16th. Too few samples
    for the confidence give their whole range.

    Raises:
        ValueError: no samples.
    """
    if not samples:
        raise ValueError("there is no median of no samples")
    ordered, count = sorted(samples), len(samples)
    below, rank = 0.5**count, 0  # P(B = 0)
    while rank + 1 < (count + 1) // 2 and below + math.comb(count, rank + 1) * 0.5**count <= (1 - confidence) / 2:
        rank += 1
        below += math.comb(count, rank) * 0.5**count
    return ordered[rank], ordered[count - 1 - rank]
