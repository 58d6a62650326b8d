"""Predicts how long a launch takes on a GPU that is not there. A prediction ranks candidates; it is not a time.

    us = launch gap + latency + max(L2, memory, tensor cores)

    occupancy   blocks an SM can hold: the least of its limits on blocks, threads, registers and shared memory
    waves       ceil(blocks / (occupancy x SMs)): how often all SMs fill up with blocks
    balance     mean share of the SMs that are busy over the waves: a last wave of few blocks wastes the rest
    latency     waves x serial steps x a round trip to where the inputs are, what loads one after another must wait
    L2          bytes that the configuration moves, spills included, over the L2 bandwidth that its blocks can keep busy
    memory      the problem's least bytes, where the inputs are cold, likewise over the memory bandwidth
    tensor      FLOPs over the tensor-core rate of the busy SMs; below four warps an SM some tensor cores have no work

Bandwidth that blocks can keep busy is Little's law: bytes in flight = bandwidth x latency. A block has in flight what
its threads have loaded into registers (`_BYTES_IN_FLIGHT` each), or half of its shared memory where that is more: one
half of a ring of buffers fills while the other is worked on. The constants are round figures from published
microbenchmarks (Volta to Hopper), none fitted to a kernel here, and the three rooflines are taken to overlap perfectly.
What it cannot see: bank conflicts, instruction mix, the cost of barriers and of split-K's second pass beyond its bytes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tuner.backends.cuda import oversize
from tuner.kernel import Work
from tuner.types import Binary, CacheState, Device, Failure, Launch, Status

_L2_LATENCY_US = 0.25
_MEMORY_LATENCY_US = 0.6
_BYTES_IN_FLIGHT = 32
"""Per thread: two 16-byte loads."""
_WARPS_FOR_TENSOR_PEAK = 4
"""Per SM: one for each of its four tensor cores' schedulers."""
_SM_SHARE = 2.0
"""One SM alone draws up to this many times its even share of the bandwidth."""

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
    latency_us: float
    l2_us: float
    memory_us: float
    tensor_us: float
    occupancy: float
    """Threads an SM holds over the most it could."""
    blocks_per_sm: int
    waves: int
    balance: float

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

    waves = math.ceil(launch.blocks / room)
    # Blocks spread over the SMs before they share one, so the SMs are evenly busy once there is a block for each.
    balance = min(1.0, launch.blocks / device.sm_count) if waves == 1 else launch.blocks / (waves * room)
    resident = min(per_sm, math.ceil(launch.blocks / device.sm_count))
    resident_warps = resident * math.ceil(launch.threads / 32)
    in_flight = resident * max(_BYTES_IN_FLIGHT * launch.threads, launch.shared_bytes // 2)
    cold = cache is CacheState.COLD
    spilled = 2.0 * binary.spill_bytes * launch.threads * launch.blocks

    def bandwidth(peak: float, latency_us: float) -> float:
        busy = device.sm_count * balance
        return min(peak, peak * balance * _SM_SHARE, busy * in_flight / (latency_us * 1e-6))

    l2_us = 1e6 * (work.moved_bytes + spilled) / bandwidth(device.l2_bandwidth, _L2_LATENCY_US)
    memory_us = 1e6 * work.floor_bytes / bandwidth(device.memory_bandwidth, _MEMORY_LATENCY_US) if cold else 0.0
    tensor_rate = device.tensor_flops * balance * min(1.0, resident_warps / _WARPS_FOR_TENSOR_PEAK)
    tensor_us = 1e6 * work.flops / tensor_rate
    latency_us = waves * work.serial_steps * (_MEMORY_LATENCY_US if cold else _L2_LATENCY_US)
    return Prediction(
        us=device.launch_us + latency_us + max(l2_us, memory_us, tensor_us),
        launch_us=device.launch_us,
        latency_us=latency_us,
        l2_us=l2_us,
        memory_us=memory_us,
        tensor_us=tensor_us,
        occupancy=per_sm * launch.threads / device.threads_per_sm,
        blocks_per_sm=per_sm,
        waves=waves,
        balance=balance,
    )


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
