"""Predicts how long a launch takes on a GPU that is not there. A prediction ranks candidates; it is not a time.

    us = launch gap + |waves x (latency + passes x pass + finish), L2, memory, tensor cores|

occupancy    blocks an SM can hold: the least of its limits on blocks, threads, registers and shared memory
waves        blocks that fill all SMs run together, as many on each as fit; those that are left over run after them,
             spread evenly, and share each SM with fewer
pass         the slowest of what all blocks of an SM share (instructions, shared memory, the SM's way to L2) and of what
             one block must wait for (barriers, dependent tensor-core steps, and its inputs: a whole round trip where
             none are fetched ahead, else the round trip over the passes that are under way: Little's law)
finish       what passes through shared memory at the end, and the meeting of blocks that share a result
L2, memory   bytes moved over L2's bandwidth; where the inputs are cold, the bytes that even a perfect L2 would not
             spare over the memory's
|...|        fourth root of the sum of fourth powers: the largest, and a little more where others are about as large
tensor       FLOPs over the tensor-core rate of the busy SMs; below four warps an SM some tensor cores have no work

What a pass costs comes from the declaration (`tuner.kernel.Loop`, `Finish`). The constants are round figures. Latencies
are those of published microbenchmarks (Volta to Hopper). The others were measured on an H200: fitted to 1800 times of
the two GEMM kernels and rounded, in clock cycles or in shares of the device's peaks, so that they scale to others.
Fitted to half of the problems, they rank the other half as well. A T4 has no asynchronous copies, so that nothing is
fetched ahead there. What it cannot see: how addresses fall on the memory's channels, and what the compiler makes of the
source beyond registers and spills.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tuner.backends.cuda import oversize
from tuner.kernel import Finish, Work
from tuner.types import Binary, CacheState, Device, Failure, Launch, Status

_START_US = 0.4
"""From a kernel's start to its blocks' first load, and from their last store to its end. Measured on an H200."""
_OVERLAP_US = 0.55
"""What a dependent launch saves of the gap and the start. Measured on an H200."""
_L2_LATENCY_US = 0.25
_MEMORY_LATENCY_US = 0.6
_L2_SHARE = 0.67
"""Of what a plain stream draws: what blocks that wait at barriers between loads draw, on an H200."""
_MEMORY_SHARE = 0.9
_SM_SHARE = 1.75
"""One SM alone draws up to this many times its even share of L2's bandwidth. Measured on an H200."""
_OVERLAP_POWER = 4
_ISSUE_CYCLES = 3
"""Between instructions of one warp, dependences included; also what an instruction costs a scheduler, since the counts
of `Loop.instructions` are rough. Measured on an H200."""
_SCHEDULERS = 4
"""Per SM, each with a tensor core."""
_BARRIER_CYCLES = 180
"""With the last warp's latencies before it. Measured on an H200."""
_TENSOR_STEP_CYCLES = 50
"""Loads of a fragment from shared memory (about 30), then its product (about 20, hidden in part)."""
_SHARED_BYTES_PER_CYCLE = 80
"""Per SM; the peak is 128. Measured on an H200."""
_LOAD_CYCLES = 50
"""Of one of many independent loads from L2 by the same thread. Measured on an H200."""
_CLUSTER_US = 0.6
"""Two cluster barriers (0.2 us each, measured on an H200) and the loads between them."""
_WORKSPACE_US = 1.0
"""A fence, an atomic and a load, one after the other in L2. Measured on an H200."""

_REGISTER_GRAIN = 256
"""Registers are handed out per warp in this many."""
_SHARED_GRAIN = 128
_SHARED_RESERVED = 1024
"""Bytes of shared memory per block that the system keeps, from sm_80."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """The model's terms, in microseconds unless the name says otherwise."""

    us: float
    launch_us: float
    blocks_us: float
    """All waves, bound by what their blocks wait for or share."""
    l2_us: float
    memory_us: float
    tensor_us: float
    occupancy: float
    """Threads an SM holds over the most it could."""
    blocks_per_sm: int
    waves: int

    def terms(self) -> dict[str, Any]:
        """Plain JSON, for `Measurement.extra`."""
        return dataclasses.asdict(self)


def predict(device: Device, launch: Launch, binary: Binary, work: Work, cache: CacheState) -> Prediction | Failure:
    """The time of one launch on `device`, or why it does not fit there."""
    excess = oversize(launch, binary, device)
    if excess is not None:
        return Failure(Status.RESOURCES, excess)
    per_sm = blocks_per_sm(device, launch, binary)
    if per_sm < 1:
        return Failure(Status.RESOURCES, "not even one block fits on an SM")
    room = per_sm * device.sm_count
    if launch.cooperative and launch.blocks > room:
        return Failure(Status.RESOURCES, f"a cooperative grid of {launch.blocks} blocks, but room for only {room}")

    cold = cache is CacheState.COLD
    full, rest = divmod(launch.blocks, room)
    blocks_us = full * _wave_us(device, launch, work, cold, per_sm, device.sm_count)
    if rest:
        # Blocks spread over the SMs before they share one.
        on_each = math.ceil(rest / device.sm_count)
        blocks_us += _wave_us(device, launch, work, cold, on_each, min(rest, device.sm_count))
    spilled = 2.0 * binary.spill_bytes * launch.threads * launch.blocks
    l2_us = 1e6 * (work.moved_bytes + spilled) / device.l2_bandwidth
    compulsory = (work.memory_bytes or work.floor_bytes) if cold else 0.0
    memory_us = 1e6 * compulsory / (_MEMORY_SHARE * device.memory_bandwidth)
    busy = min(1.0, launch.blocks / device.sm_count)
    warps = min(per_sm, math.ceil(launch.blocks / device.sm_count)) * launch.threads / 32
    tensor_us = 1e6 * work.flops / (device.tensor_flops * busy * min(1.0, warps / _SCHEDULERS))
    launch_us = device.launch_us + _START_US - (_OVERLAP_US if launch.overlap else 0.0)
    return Prediction(
        us=launch_us
        + sum(term**_OVERLAP_POWER for term in (blocks_us, l2_us, memory_us, tensor_us)) ** (1 / _OVERLAP_POWER),
        launch_us=launch_us,
        blocks_us=blocks_us,
        l2_us=l2_us,
        memory_us=memory_us,
        tensor_us=tensor_us,
        occupancy=per_sm * launch.threads / device.threads_per_sm,
        blocks_per_sm=per_sm,
        waves=full + bool(rest),
    )


def _wave_us(device: Device, launch: Launch, work: Work, cold: bool, on_each: int, sms: int) -> float:
    """`on_each` blocks on each of `sms` SMs, from their first load to their last store."""
    loop, cycle_us = work.loop, 1e6 / device.clock_hz
    latency_us = _MEMORY_LATENCY_US if cold else _L2_LATENCY_US
    warps_per_scheduler = launch.threads / 32 / _SCHEDULERS
    issue_us = loop.instructions * _ISSUE_CYCLES * cycle_us
    block_us = (loop.barriers * _BARRIER_CYCLES + loop.tensor_steps * _TENSOR_STEP_CYCLES) * cycle_us + issue_us * max(
        1.0, warps_per_scheduler
    )
    # Bytes per us that one SM draws from L2: more than its even share where others are idle.
    share = _L2_SHARE * device.l2_bandwidth * 1e-6
    bandwidth = min(share / sms, _SM_SHARE * share / device.sm_count)
    fetched = loop.fetched_bytes or work.moved_bytes / (launch.blocks * work.serial_steps)
    ahead = loop.ahead if device.capability >= 80 else 0
    pass_us = max(
        block_us if ahead else block_us + latency_us,
        latency_us / max(1, ahead),
        on_each * warps_per_scheduler * issue_us,
        on_each * loop.shared_bytes / _SHARED_BYTES_PER_CYCLE * cycle_us,
        on_each * fetched / bandwidth,
    )
    shared_us = on_each * work.finish.shared_bytes / _SHARED_BYTES_PER_CYCLE * cycle_us
    return latency_us + work.serial_steps * pass_us + shared_us + _meeting_us(work.finish, cycle_us)


def _meeting_us(finish: Finish, cycle_us: float) -> float:
    if finish.blocks == 1:
        return 0.0
    return _CLUSTER_US if finish.clustered else _WORKSPACE_US + finish.loads * _LOAD_CYCLES * cycle_us


def blocks_per_sm(device: Device, launch: Launch, binary: Binary) -> int:
    """Blocks of `launch` that an SM holds at a time, by the CUDA occupancy calculator's rules; 0 where none fits."""
    warps = math.ceil(launch.threads / 32)
    registers = _round_up(binary.registers * 32, _REGISTER_GRAIN) * warps
    shared = _round_up(launch.shared_bytes + binary.static_shared_bytes, _SHARED_GRAIN)
    shared += _SHARED_RESERVED if device.capability >= 80 else 0
    limits = [device.blocks_per_sm, device.threads_per_sm // (32 * warps)]
    if registers:
        limits.append(device.registers_per_sm // registers)
    if shared:
        limits.append(device.shared_per_sm // shared)
    return min(limits)


def _round_up(value: int, grain: int) -> int:
    return math.ceil(value / grain) * grain
