"""Declares gpu_faults.cu, one configuration for each fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.kernel import Argument, Array, Kernel, Role, Work
from tuner.space import Param, Space
from tuner.types import Config, Device, Launch, Problem, Value

SHARED = {8: 300 << 10}
"""FAULT=8 asks for more shared memory than any GPU has."""
THREADS = {9: 2048}


class GpuFaults(Kernel):
    """y = 2 x + 1, or not."""

    name = "gpu_faults"
    source = Path(__file__).with_suffix(".cu")
    dims = ("n",)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((Param("FAULT", tuple(range(12)), 0),))

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {"N": problem["n"], "FAULT": config.integer("FAULT")}

    def launch(self, problem: Problem, config: Config) -> Launch:
        fault = config.integer("FAULT")
        threads = THREADS.get(fault, 64)
        # FAULT=10: a cooperative grid that no GPU holds at a time, which CuPy would shrink without a word.
        blocks = 1 << 20 if fault == 10 else -(-problem["n"] // threads)
        # FAULT=11: right, with more shared memory than is had without opting in.
        shared = SHARED.get(fault, 60 << 10 if fault == 11 else 4 * threads)
        return Launch((blocks, 1, 1), (threads, 1, 1), shared, fault == 10)

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        x = rng.standard_normal(problem["n"], dtype=np.float32)
        return (
            Array("x", x, Role.IN),
            Array("y", np.empty_like(x), Role.OUT),
            Array("arrived", np.zeros_like(x, shape=(1,), dtype=np.uint32), Role.COUNTER),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": 2.0 * inputs["x"].astype(np.float64) + 1.0}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"y": 1e-6}

    def work(self, problem: Problem, config: Config) -> Work:
        return Work(2.0 * problem["n"], 8.0 * problem["n"], 8.0 * problem["n"])
