"""A kernel whose source a test may write: y = 2 x, if the source is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.kernel import Argument, Array, Kernel, Role, Work
from tuner.space import Param, Space
from tuner.types import Config, Device, Launch, Problem, Value

SOURCE = """\
extern "C" __global__ void doubling(const float* x, float* y) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < N) y[i] = 2 * x[i];
}
"""


class Doubling(Kernel):
    name = "doubling"
    dims = ("n",)

    def __init__(self, source: Path) -> None:
        self.source = source  # type: ignore[misc]

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((Param("THREADS", (32, 64), 32),))

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {"N": problem["n"], **config}

    def launch(self, problem: Problem, config: Config) -> Launch:
        threads = config.integer("THREADS")
        return Launch((-(-problem["n"] // threads), 1, 1), (threads, 1, 1))

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        x = rng.standard_normal(problem["n"], dtype=np.float32)
        return Array("x", x, Role.IN), Array("y", np.empty_like(x), Role.OUT)

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": 2.0 * inputs["x"].astype(np.float64)}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"y": 1e-6}

    def work(self, problem: Problem, config: Config) -> Work:
        return Work(problem["n"], 8.0 * problem["n"], 8.0 * problem["n"])
