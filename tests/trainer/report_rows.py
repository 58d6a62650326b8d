"""Rows for the report's tests: a kernel with round numbers, a GPU that was measured and one that was predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trainer.report.model import DeviceReport, Report
from tuner.kernel import Argument, Kernel, Work
from tuner.space import Param, Space
from tuner.store import ContenderRow, RaceRow, Store
from tuner.types import (
    CacheState,
    Config,
    Device,
    Environment,
    Kind,
    Launch,
    Measurement,
    Problem,
    Status,
    Value,
)

H200 = Device(
    name="NVIDIA H200",
    arch="sm_90",
    sm_count=132,
    shared_per_block=232448,
    shared_per_sm=233472,
    registers_per_sm=65536,
    threads_per_sm=2048,
    blocks_per_sm=32,
    l2_bytes=50 << 20,
    memory_bytes=141 << 30,
    memory_bandwidth=4e12,
    l2_bandwidth=8e12,
    tensor_flops=989e12,
    clock_hz=1.98e9,
)
T4 = Device(
    name="Tesla T4",
    arch="sm_75",
    sm_count=40,
    shared_per_block=65536,
    shared_per_sm=65536,
    registers_per_sm=65536,
    threads_per_sm=1024,
    blocks_per_sm=16,
    l2_bytes=4 << 20,
    memory_bytes=16 << 30,
    memory_bandwidth=320e9,
    l2_bandwidth=1.28e12,
    tensor_flops=65e12,
    clock_hz=1.59e9,
)
GPU_HOST = Environment("gpu-host", "Linux 6.1", "3.12.1", driver="580.1", nvrtc="13.0", cupy="14.1", torch="2.11")
LAPTOP = Environment("laptop", "Linux 6.2", "3.11.7", nvrtc="13.5", cupy="14.2", compiler="g++ 12.2")


class Toy(Kernel):
    """Its problems move 8 bytes per element at least, so 1000x1000 takes 1 us from the L2 of `H200`, 2 from memory."""

    name = "toy"
    source = Path(__file__)
    dims = ("rows", "columns")
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"mode": ("plain", "fancy")}

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((Param("TILE", (8, 16, 32, 64), 16),))

    def work(self, problem: Problem, config: Config) -> Work:
        size = 8.0 * math.prod(size for _, size in problem.dims)
        return Work(flops=0.0, floor_bytes=size, moved_bytes=size)

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return dict(config)

    def launch(self, problem: Problem, config: Config) -> Launch:
        return Launch((1, 1, 1), (32, 1, 1))

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        return ()

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {}


TOY = Toy()
KERNELS: dict[str, Kernel] = {"toy": TOY}
SQUARE = TOY.problem(1000, 1000)


def measured(tile: int, us: float | None, **fields: Any) -> Measurement:
    """A row of `SQUARE` that was measured hot; one that failed where `us` is None."""
    made: dict[str, Any] = {
        "problem": SQUARE,
        "config": Config.of(TILE=tile),
        "status": Status.OK if us else Status.COMPILE,
        "kind": Kind.MEASURED,
        "samples_us": (us,) * 5 if us else (),
        "median_us": us,
        "spread": 0.02 if us else None,
        "error": 2e-4,
        "tolerance": 1e-3,
        "cache": CacheState.HOT,
        "verified_by": "cuda",
    }
    return Measurement(**(made | fields))


def predicted(tile: int, us: float | None, **fields: Any) -> Measurement:
    """A row of `SQUARE` that was predicted; one that failed where `us` is None."""
    fields = {
        "samples_us": (us,) if us else (),
        "spread": None,
        "verified_by": "emulation",
        "kind": Kind.PREDICTED,
    } | fields
    return measured(tile, us, **fields)


def losses(steps: int, wobble: float = 0.0) -> tuple[tuple[int, float], ...]:
    return tuple((step, 2.3 * math.exp(-step / 100) + wobble) for step in range(steps))


def race(width: int, **fields: Any) -> RaceRow:
    """Ours takes 5 us, the strongest 40, the story's form 1000; one contender failed."""
    made: dict[str, Any] = {
        "device": H200,
        "environment": GPU_HOST,
        "width": width,
        "layers": 3,
        "batch": 32,
        "steps": 400,
        "lr": 0.003,
        "seed": 0,
        "command": f"mnist-tune train --width {width}",
        "strongest": "written_out",
        "contenders": (
            ContenderRow("max_autotune", 1000.0, (1000.0,), 0.03, 40.0, 1 << 20, losses(400, 0.01), 0.974),
            ContenderRow("tuned", 5.0, (5.0,), 0.01, 1.5, None, losses(400), 0.976),
            ContenderRow("written_out", 40.0, (40.0,), 0.02, 20.0, 2 << 20, losses(400, 0.002), 0.975),
            ContenderRow("broken", None, error="out of <memory> | at last"),
        ),
    }
    return RaceRow(**(made | fields))


def fill(store: Store) -> None:
    """Two devices: one measured and raced at three widths, one predicted."""
    for row in (measured(8, 4.0), measured(16, 2.0), measured(32, None), measured(64, None, status=Status.WRONG)):
        store.record(row, kernel=TOY, device=H200, environment=GPU_HOST)
    store.record_baseline(SQUARE, H200, GPU_HOST, "cuBLAS", [5.0], CacheState.HOT)
    store.record_baseline(SQUARE, H200, GPU_HOST, "cuBLAS", [9.0], CacheState.COLD)
    for width in (1024, 128, 4096):
        store.record_race(race(width))
    store.record(predicted(32, 12.5), kernel=TOY, device=T4, environment=LAPTOP)


def of(report: Report, device: Device) -> DeviceReport:
    """The part of `report` about `device`."""
    return next(each for each in report.devices if each.device == device)
