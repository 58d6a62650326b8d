"""The values that pass between the stages: problem, configuration, device, binary, measurement.

All are frozen. Failures are values too: a `Measurement` with a `Status` and a message, or a `Failure` from a stage
that has nothing to measure yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

Value = int | str
"""A tunable's value. Flags are the integers 0 and 1."""


def canonical_json(value: Any) -> str:
    """The one text form of `value`: sorted keys, no spaces. Keys and hashes are made from it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Status(StrEnum):
    """What became of a candidate."""

    OK = "ok"
    CONSTRAINT = "constraint"
    """Breaks a rule of its search space; never compiled."""
    COMPILE = "compile"
    """The compiler rejected it."""
    RESOURCES = "resources"
    """Compiled, but needs more registers, threads or shared memory than the device has."""
    LAUNCH = "launch"
    RUNTIME = "runtime"
    """Failed while running: an illegal address, a trap, a fault that emulation reported."""
    TIMEOUT = "timeout"
    WRONG = "wrong"
    """Ran, but its output is not the reference's."""
    UNSTABLE = "unstable"
    """Right, but its timing cannot be believed."""


class Kind(StrEnum):
    """Where a time comes from. A prediction never beats a measurement."""

    MEASURED = "measured"
    PREDICTED = "predicted"


class CacheState(StrEnum):
    """Where a kernel finds its inputs while it is timed."""

    HOT = "hot"
    """In L2, as in a training step of a network that fits there."""
    COLD = "cold"
    """In device memory: inputs rotate over at least twice the L2."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to tune for: a kernel, the sizes it works on, and the options that change what it computes.

    `dims` keep the order in which the kernel declares them; `options` are sorted by name.
    """

    kernel: str
    dims: tuple[tuple[str, int], ...]
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, kernel: str, dims: Mapping[str, int], options: Mapping[str, str] | None = None) -> Problem:
        return cls(kernel, tuple(dims.items()), tuple(sorted((options or {}).items())))

    def __getitem__(self, dim: str) -> int:
        return dict(self.dims)[dim]

    def option(self, name: str) -> str:
        return dict(self.options)[name]

    @property
    def shape(self) -> str:
        """The sizes alone, `32x784x128`."""
        return "x".join(str(size) for _, size in self.dims)

    @property
    def label(self) -> str:
        """For people: `linear_forward 32x784x128 activation=relu`."""
        return " ".join([self.kernel, self.shape, *(f"{name}={value}" for name, value in self.options)])

    @property
    def key(self) -> str:
        """Canonical text of sizes and options (without the kernel): what the store is keyed by."""
        return canonical_json({"dims": dict(self.dims), "options": dict(self.options)})


@dataclass(frozen=True, slots=True)
class Config(Mapping[str, Value]):
    """One point of a search space: a value for each tunable, sorted by name."""

    values_: tuple[tuple[str, Value], ...]
    _by_name: Mapping[str, Value] = field(init=False, repr=False, compare=False)
    """The same for looking up, which rules and models do a hundred times for each configuration."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", dict(self.values_))
        object.__setattr__(self, "_hash", hash(self.values_))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Config], tuple[tuple[tuple[str, Value], ...]]]:
        """By its values alone: another process hashes texts differently."""
        return Config, (self.values_,)

    @classmethod
    def of(cls, values: Mapping[str, Value] | None = None, **more: Value) -> Config:
        return cls(tuple(sorted({**(values or {}), **more}.items())))

    def __getitem__(self, name: str) -> Value:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.values_)

    def integer(self, name: str) -> int:
        """The value of an integer tunable."""
        value = self[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, not an integer")
        return value

    def choice(self, name: str) -> str:
        """The value of a named-choice tunable."""
        value = self[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not a string")
        return value

    @property
    def by_library(self) -> bool:
        """Whether it stands for a library's way, and is no combination of tunables."""
        return "LIBRARY" in self

    @property
    def key(self) -> str:
        """Canonical text, what the store is keyed by."""
        return canonical_json(dict(self.values_))

    @property
    def label(self) -> str:
        """For people: `BLOCK_K=64 BLOCK_N=32 ...`."""
        return " ".join(f"{name}={value}" for name, value in self.values_)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its limits, and the peaks that the model and the report reckon with.

    Bytes are bytes, `memory_bandwidth` and `l2_bandwidth` are bytes/s, `tensor_flops` is dense fp16 FLOP/s with fp32
    accumulation, `launch_us` the gap between dependent kernels of one CUDA graph.
    """

    name: str
    arch: str
    """`sm_75`."""
    sm_count: int
    shared_per_block: int
    """Largest dynamic shared memory of one block, after opting in."""
    shared_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    l2_bytes: int
    memory_bytes: int
    memory_bandwidth: float
    l2_bandwidth: float
    tensor_flops: float
    clock_hz: float
    launch_us: float = 1.0

    @property
    def key(self) -> str:
        """Identity in the store. A slice of a GPU (MIG) has fewer SMs, so it is another device."""
        return f"{self.name}/{self.arch}/{self.sm_count}"

    @property
    def capability(self) -> int:
        """75 for `sm_75`."""
        return int(self.arch.removeprefix("sm_"))


@dataclass(frozen=True, slots=True)
class Environment:
    """The software that a row was made with. Empty where a part is not there (no driver without a GPU)."""

    host: str
    system: str
    python: str
    driver: str = ""
    nvrtc: str = ""
    cupy: str = ""
    torch: str = ""
    compiler: str = ""
    """The C++ compiler of the emulation."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is started: grid and block as (x, y, z), dynamic shared memory in bytes.

    cooperative: all blocks must be on the GPU at once. overlap: may start while the kernel before it in the stream is
    still finishing (programmatic dependent launch); the kernel itself waits where it must. cluster: blocks of a cluster
    that must be admitted before the launch (its size is compiled in).
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cooperative: bool = False
    overlap: bool = False
    cluster: int = 1

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled kernel: where its cubin lies (in the user's cache, never in the store) and what it needs."""

    path: Path
    entry: str
    arch: str
    registers: int
    """Per thread."""
    static_shared_bytes: int
    spill_bytes: int
    """Stack frame and spills per thread, in local memory."""
    seconds: float = 0.0
    """Compile time; 0 where the cache had it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stage has nothing to hand on."""

    status: Status
    message: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was seen of one configuration; the row that the store keeps.

    `samples_us` are microseconds per launch; a prediction has one sample. `error` is the relative Frobenius error
    against the float64 reference and `tolerance` the limit that it was held to.
    """

    problem: Problem
    config: Config
    status: Status
    kind: Kind
    message: str = ""
    samples_us: tuple[float, ...] = ()
    median_us: float | None = None
    spread: float | None = None
    """Interquartile range of the samples over their median."""
    error: float | None = None
    tolerance: float | None = None
    cache: CacheState | None = None
    seed: int = 0
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    compile_s: float | None = None
    verified_by: str = ""
    """`cuda` or `emulation`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What only one backend knows (the model's terms, for example); plain JSON."""

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    @property
    def by_library(self) -> bool:
        """Whether it is the library's way of doing the problem (`Kernel.library_form`)."""
        return self.config.by_library

    @property
    def finalist(self) -> bool:
        """Whether it was timed against the other finalists of its problem (`tuner.finals`)."""
        return bool(self.extra.get("finalist"))

    @property
    def standing(self) -> tuple[float, int, str]:
        """Among the rows of a problem, the least is served: the fastest, and of a tie the simplest."""
        tied_us, place = tie(self.extra)
        us = tied_us if tied_us is not None else self.median_us
        return (us if us is not None else math.inf, place, self.config.key)


def tie(extra: Mapping[str, Any]) -> tuple[float | None, int]:
    """The time (us) that a row counts as in a tie, None where there is none, and its place in it: 0 is the simplest."""
    return extra.get("tied_us"), int(extra.get("tie_rank", 0))
