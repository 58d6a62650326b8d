"""What a kernel declares about itself, so that the engine can tune it without knowing it.

A kernel is a pair of files: NAME.cu, and a NAME.py that subclasses `Kernel`. Its instances hold no state, so they
travel to worker processes by pickle.
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from tuner.space import Space
from tuner.types import Config, Device, Launch, Problem, Value


class Role(StrEnum):
    """What a kernel does with an array."""

    IN = "in"
    OUT = "out"
    """Written in full; its content before the launch must not matter (verification fills it with NaN)."""
    INOUT = "inout"
    SCRATCH = "scratch"
    """Workspace: its content before the launch must not matter."""
    COUNTER = "counter"
    """Zeroed once; every launch leaves it zero again."""


@dataclass(frozen=True, slots=True)
class Array:
    """An array argument. `data` is a NumPy array, or a CuPy array where `rng` was CuPy's."""

    name: str
    data: Any
    role: Role


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar argument, as a NumPy scalar of the kernel's own type (`numpy.float32(0.1)`)."""

    name: str
    value: Any


Argument = Array | Scalar


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product that a library would run in the kernel's place: C (m, n) = op(A) op(B), fp16 with fp32 sums."""

    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True, slots=True)
class Product:
    """A product that a library makes before a kernel's own launch: C = op(A) op(B) of its arguments, by position.

    C may be a wider array, of which the product's fp16 numbers take the beginning.
    """

    gemm: Gemm
    a: int
    b: int
    c: int


@dataclass(frozen=True, slots=True)
class Loop:
    """What one pass of a block through its main loop costs besides arithmetic; for the model only. Zeros are unknown.

    fetched_bytes: bytes that the block fetches from L2 or memory (0: its even share of `Work.moved_bytes`).
    ahead: passes whose inputs are under way while one is worked on; 0 where a pass waits for its own.
    instructions: instructions that a warp issues, those that only count or address included.
    tensor_steps: tensor-core steps of a warp that follow one another, each with its loads from shared memory.
    barriers: times that all warps of the block wait for each other.
    shared_bytes: bytes that the block moves through shared memory, once more for each bank conflict.
    """

    fetched_bytes: float = 0.0
    ahead: int = 0
    instructions: float = 0.0
    tensor_steps: float = 0.0
    barriers: int = 0
    shared_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """What a block does once, after its main loop; for the model only.

    shared_bytes: bytes that it moves through shared memory.
    blocks: blocks that add up their parts of one result; 1 where none meet.
    clustered: whether they meet in a cluster (sm_90) instead of global memory.
    loads: loads of a thread from L2, of other blocks' parts.
    """

    shared_bytes: float = 0.0
    blocks: int = 1
    clustered: bool = False
    loads: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch must do at least, and what this configuration does.

    flops: floating-point operations of the products.
    floor_bytes: fewest bytes that any kernel must move here: each input read once, each output written once.
    moved_bytes: bytes that this configuration moves to and from L2 or memory, re-reads and workspace included.
    serial_steps: dependent passes of one block through its main loop (latency that bandwidth does not hide).
    memory_bytes: bytes that this configuration moves to and from memory even with a perfect L2 (0: `floor_bytes`).
    loop, finish: what a pass costs, and what comes after the passes.
    """

    flops: float
    floor_bytes: float
    moved_bytes: float
    serial_steps: int = 1
    memory_bytes: float = 0.0
    loop: Loop = Loop()
    finish: Finish = Finish()


class Kernel(ABC):
    """A kernel's declaration. Sizes are elements, memory is bytes.

    It may have a `library_form`: the same problem by a BLAS and one element-wise kernel, declared as a kernel of its
    own with the same name, arguments and reference, and a single configuration (`only_config`). Whoever has a kernel
    and a configuration works with `kernel.form(config)`.
    """

    name: ClassVar[str]
    """Also the name of the `__global__` function."""
    source: ClassVar[Path]
    dims: ClassVar[tuple[str, ...]]
    """Names of the sizes, in the order in which shapes are written."""
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Options and their choices; the first is the default."""
    worst_element: ClassVar[float] = 8.0
    """How many tolerances a single element may be off, in units of its own size plus its output's root mean square.

    The tolerance bounds the root mean square of the errors. Where these are independent roundings, one beyond eight
    times that is out of the question for any output that fits a GPU (a normal deviate beyond 8 sigma: one in 10^15); a
    thousand random configurations of this project's products, emulated, used a sixth of it. The unit: a rounding is
    relative to the element, while the terms of a sum that cancel leave an error of the size of the others. Raise it
    for a kernel whose few large errors are right, because a rounding decides between two outcomes.
    """

    tunables: ClassVar[Mapping[str, Value]] = {}
    """Of a library form: values that callers read from its configuration as they do from the others."""

    library_form: Kernel | None = None

    def __init__(self, library_form: Kernel | None = None) -> None:
        self.library_form = library_form

    @abstractmethod
    def space(self, problem: Problem, device: Device) -> Space:
        """The configurations that are worth trying for `problem` on `device`."""

    @abstractmethod
    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        """Macros that render the source for `problem` and `config`."""

    @abstractmethod
    def launch(self, problem: Problem, config: Config) -> Launch:
        """Grid, block and shared memory."""

    @abstractmethod
    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        """Fresh random inputs and empty outputs, in the order of the kernel's parameters.

        `rng` is a NumPy or a CuPy `Generator`; the arrays live where it does.
        """

    @abstractmethod
    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs (OUT and INOUT) in float64, from the arguments' values before the launch.

        Written with NumPy functions, which dispatch to CuPy when the inputs live there.
        """

    @abstractmethod
    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        """Largest relative Frobenius error of each output, from its accumulator, summed length and stored precision."""

    @abstractmethod
    def work(self, problem: Problem, config: Config) -> Work:
        """What the launch costs; feeds the model and the report's memory floor."""

    def outputs(self, problem: Problem, config: Config, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What `reference` is compared with, from the arguments' values after the launch.

        Override it where an output is stored in parts (a weight kept as the sum of two fp16 numbers).
        """
        return values

    def emulates(self, config: Config) -> bool:
        """Whether the emulation runs what `config` runs on a GPU.

        False where only a GPU has the means (clusters): the emulation would pass a form that nobody will run.
        """
        return True

    def library(self, problem: Problem) -> tuple[Gemm, ...]:
        """The products that a BLAS would run instead; empty where there is none."""
        return ()

    def products(self, problem: Problem) -> tuple[Product, ...]:
        """The products that a BLAS makes before this kernel is launched; only a library form has any."""
        return ()

    @property
    def only_config(self) -> Config:
        """The configuration of a library form. It names the source: a row of another one is not taken for it."""
        return Config.of(self.tunables, LIBRARY="cublas", SOURCE=self.source_hash[:8])

    def form(self, config: Config) -> Kernel:
        """The declaration that `config` is for: this one, or the library form."""
        other = self.library_form
        return other if other is not None and config.by_library else self

    def also(self) -> tuple[Config, ...]:
        """What belongs to the kernel's spaces beside the combinations of tunables: the library form."""
        return () if self.library_form is None else (self.library_form.only_config,)

    def problem(self, *sizes: int, **options: str) -> Problem:
        """A problem of this kernel from its sizes in order; options default to their first choice."""
        if len(sizes) != len(self.dims):
            raise ValueError(f"{self.name} takes {len(self.dims)} sizes ({' x '.join(self.dims)}), not {len(sizes)}")
        chosen = {name: options.get(name, choices[0]) for name, choices in self.options.items()}
        for name, value in options.items():
            if name not in self.options or value not in self.options[name]:
                raise ValueError(f"{self.name} has no option {name}={value}")
        return Problem.of(self.name, dict(zip(self.dims, sizes, strict=True)), chosen)

    @property
    def source_hash(self) -> str:
        """Hash of the .cu file and of every local header that it includes: the store's guard against stale rows."""
        digest = hashlib.sha256()
        for path in source_files(self.source):
            digest.update(path.name.encode())
            digest.update(content(path))
        return digest.hexdigest()[:16]


_SETTLED_NS = 2_000_000_000
"""A file that was written longer ago than this shows by its time that it was written again."""


def content(path: Path) -> bytes:
    """The bytes of a source file; kept while it is as it was, since each row that is recorded asks for them."""
    seen = path.stat()
    if time.time_ns() - seen.st_mtime_ns < _SETTLED_NS:
        return path.read_bytes()
    return _kept(path, (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino))


@functools.lru_cache(maxsize=64)
def _kept(path: Path, as_it_was: tuple[int, ...]) -> bytes:  # noqa: ARG001 - a part of the key
    return path.read_bytes()


@functools.lru_cache(maxsize=64)
def _included(text: bytes) -> tuple[str, ...]:
    """What a source includes in quotes."""
    return tuple(re.findall(r'^\s*#\s*include\s+"([^"]+)"', text.decode(), re.MULTILINE))


def source_files(source: Path) -> list[Path]:
    """`source` and, recursively, the files that it includes in quotes, each once, in order of inclusion."""
    found: list[Path] = []

    def visit(path: Path) -> None:
        if path in found or not path.is_file():
            return
        found.append(path)
        for name in _included(content(path)):
            visit(path.parent / name)

    visit(source)
    return found
