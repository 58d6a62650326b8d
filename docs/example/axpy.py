"""A kernel of one's own, tuned by the same engine: `python docs/example/axpy.py`. See axpy.cu."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.kernel import Argument, Array, Kernel, Role, Scalar, Work
from tuner.run import run_search
from tuner.space import Constraint, Param, Space
from tuner.store import Store
from tuner.task import Settings
from tuner.types import Config, Device, Launch, Problem, Value


class Axpy(Kernel):
    """y (n) = a x (n) + y (n), fp32."""

    name = "axpy"
    source = Path(__file__).with_name("axpy.cu")
    dims = ("n",)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(
            (
                Param("THREADS", (64, 128, 256, 512), 128, "threads per block"),
                Param("PER_THREAD", (1, 2, 4, 8), 1, "vectors per thread: fewer blocks against fewer in flight"),
                Param("VECTOR", (1, 4), 4, "numbers per load"),
            ),
            (Constraint("the grid should fill the GPU", lambda c: _blocks(problem, c) >= device.sm_count),),
        )

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return dict(config)

    def launch(self, problem: Problem, config: Config) -> Launch:
        return Launch((_blocks(problem, config), 1, 1), (config.integer("THREADS"), 1, 1))

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        x, y = (rng.standard_normal(problem["n"], dtype=np.float32) for _ in "xy")
        return (
            Array("x", x, Role.IN),
            Array("y", y, Role.INOUT),
            Scalar("a", np.float32(0.5)),
            Scalar("n", np.int32(problem["n"])),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": float(inputs["a"]) * inputs["x"].astype(np.float64) + inputs["y"]}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"y": 2 * 2.0**-24}  # a product and a sum, each rounded to fp32 once

    def work(self, problem: Problem, config: Config) -> Work:
        moved = 12.0 * problem["n"]  # x and y read, y written
        return Work(2.0 * problem["n"], moved, moved, serial_steps=config.integer("PER_THREAD"))


def _blocks(problem: Problem, config: Config) -> int:
    return -(-problem["n"] // (config.integer("THREADS") * config.integer("PER_THREAD") * config.integer("VECTOR")))


AXPY = Axpy()
PROBLEM = AXPY.problem(1_000_003)

# The tuner compiles and runs candidates in spawned processes, which import this file again: hence the guard.
if __name__ == "__main__":
    with Store.open("axpy.db") as store:
        code = run_search([PROBLEM], kernels={AXPY.name: AXPY}, store=store, settings=Settings(trials=20))
        for device in store.devices():
            match = store.lookup(AXPY, PROBLEM, device)
            print(f"{device.name}: {match.config.label} ({match.rung}, {match.expected_us:.2f} us)")
    sys.exit(code)
