"""`faults`: a kernel whose configurations are what goes wrong with kernels, one each. See faults.cu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tuner.kernel import Argument, Array, Kernel, Role, Work
from tuner.space import Param, Space
from tuner.types import Config, Device, Launch, Problem, Status, Value

THREADS = 64
SHARED_LIMIT_BYTES = 300 << 10
"""More shared memory than a block of any GPU has."""
OPT_IN_BYTES = 60 << 10
"""More than a block has without asking for it, and no more than sm_75 has."""
COOPERATIVE_BLOCKS = 1 << 20
"""More than any GPU holds at a time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A value of FAULT, and what the tuner must say to it."""

    name: str
    does: str
    expected: tuple[Status, ...]
    """Where there are several, the hardware decides which."""
    needs_gpu: str = ""
    """Why emulation cannot show it; empty where it can."""


RIGHT = "none"
"""The FAULT that is none."""

FAULTS = (
    Fault(RIGHT, "nothing is wrong with it", (Status.OK,)),
    Fault("large_shared", "nothing either, with 60 KB of shared memory", (Status.OK,)),
    Fault("hang", "never ends", (Status.TIMEOUT,)),
    Fault("out_of_bounds", "writes past the end of its output", (Status.RUNTIME,)),
    Fault("illegal_address", "writes where there is no memory", (Status.RUNTIME,)),
    Fault("trap", "gives up with a trap", (Status.RUNTIME,)),
    Fault("nan", "makes one element NaN", (Status.WRONG,)),
    Fault("outlier", "makes one element of 20011 a little too large", (Status.WRONG,)),
    Fault("partial", "leaves out the tail of its output", (Status.WRONG,)),
    Fault("stale", "lets what was in its output before take part", (Status.WRONG,)),
    # The emulation stops the read where the array's last page ends, and spoils the result before that.
    Fault("read_outside", "reads past the end of its input", (Status.WRONG, Status.RUNTIME)),
    Fault("changed_input", "writes to its input", (Status.WRONG,)),
    Fault("counter", "leaves its counter counting", (Status.WRONG,)),
    Fault("race", "lacks a barrier", (Status.WRONG,)),
    Fault("order", "gives other bits when its warps run in another order", (Status.WRONG,)),
    Fault("shared_limit", "asks for 300 KB of shared memory", (Status.RESOURCES,)),
    Fault("threads_limit", "asks for 2048 threads in a block", (Status.RESOURCES,)),
    Fault("cooperative_limit", "asks for a million blocks at once", (Status.RESOURCES,)),
    Fault("compile_error", "does not compile", (Status.COMPILE,)),
    # Right, and its text goes nowhere; a slow host may not be through with it in time.
    Fault("printf_flood", "prints a thousand lines per launch", (Status.OK, Status.TIMEOUT)),
    Fault("slow", "takes milliseconds", (Status.OK,), needs_gpu="nothing is timed without a GPU"),
)


class Faults(Kernel):
    """y = 2 x + 1 for n numbers in fp32, or not."""

    name = "faults"
    source = Path(__file__).with_suffix(".cu")
    dims = ("n",)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((Param("FAULT", tuple(fault.name for fault in FAULTS), RIGHT),))

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return {"N": problem["n"], "FAULT": config.choice("FAULT")}

    def launch(self, problem: Problem, config: Config) -> Launch:
        fault = config.choice("FAULT")
        threads = 2048 if fault == "threads_limit" else THREADS
        cooperative = fault == "cooperative_limit"
        blocks = COOPERATIVE_BLOCKS if cooperative else -(-problem["n"] // threads)
        shared = {"shared_limit": SHARED_LIMIT_BYTES, "large_shared": OPT_IN_BYTES}.get(fault, 4 * threads)
        return Launch((blocks, 1, 1), (threads, 1, 1), shared, cooperative)

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
        return {"y": 1e-6}  # one rounding to fp32, with room for an fma's

    def work(self, problem: Problem, config: Config) -> Work:
        moved = 8.0 * problem["n"]
        return Work(2.0 * problem["n"], moved, moved)
