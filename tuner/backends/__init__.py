"""Ways to judge a configuration: run it on the GPU (`cuda`), on the CPU (`emulate`), or predict its time (`model`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tuner.kernel import Argument, Kernel
from tuner.types import Binary, Config, Failure, Problem


class Runner(Protocol):
    """A place where a kernel can be run once for its outputs: what verification needs."""

    name: str
    """`cuda` or `emulation`; stored beside what it verified."""

    def rng(self, seed: int) -> Any:
        """The generator that makes `Kernel.arguments` put its arrays where this runner wants them."""
        ...

    def execute(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Config,
        binary: Binary | None,
        arguments: Sequence[Argument],
        *,
        order: int = 0,
    ) -> Mapping[str, Any] | Failure:
        """Run one launch on a copy of `arguments`; every array's value afterwards, by name.

        OUT and SCRATCH arrays are filled with NaN (0xFF bytes) first. `binary` is None where the runner compiles for
        itself (emulation). Another `order` runs the threads in another order, where the runner has a choice; a GPU
        takes its own each time.
        """
        ...
