"""A kernel that needs no compiler and no GPU, and stand-ins for whoever compiles and runs it."""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tuner.judge import CheckJob, FinalsJob, Job, LibraryJob, WarmUp, measurement, timed
from tuner.kernel import Argument, Array, Gemm, Kernel, Role, Scalar, Work
from tuner.measure import Timing
from tuner.space import Constraint, Param, Space
from tuner.types import (
    Binary,
    CacheState,
    Config,
    Device,
    Environment,
    Failure,
    Kind,
    Launch,
    Measurement,
    Problem,
    Status,
)
from tuner.verify import Verdict
from tuner.worker import Answer, Waitable

ENVIRONMENT = Environment(host="toy", system="toy", python="3")


class Toy(Kernel):
    """y = 2 x + offset, tuned by three numbers of which two may not both be large."""

    name = "toy"
    source = Path(__file__)
    dims = ("n",)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(
            (
                Param("TILE", (16, 32, 64, 128, 256, 512), 64),
                Param("STAGES", (1, 2, 3, 4, 5, 6, 7, 8), 2),
                Param("MODE", ("plain", "vector"), "plain"),
            ),
            (
                Constraint(
                    "TILE * STAGES at most 512: shared memory", lambda c: c.integer("TILE") * c.integer("STAGES") <= 512
                ),
            ),
            self.also(),
        )

    def defines(self, problem: Problem, config: Config) -> dict[str, Any]:
        return dict(config)

    def launch(self, problem: Problem, config: Config) -> Launch:
        return Launch((-(-problem["n"] // config.integer("TILE")), 1, 1), (64, 1, 1), 4 * config.integer("TILE"))

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        x = rng.standard_normal(problem["n"], dtype=np.float32)
        return (
            Array("x", x, Role.IN),
            Array("y", np.empty_like(x), Role.OUT),
            Array("arrived", np.zeros(1, np.uint32), Role.COUNTER),
            Scalar("offset", np.float32(1)),
        )

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": 2.0 * inputs["x"].astype(np.float64) + float(inputs["offset"])}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"y": 1e-6}

    def work(self, problem: Problem, config: Config) -> Work:
        moved = 8.0 * problem["n"] * (1 + 16 / config.integer("TILE"))
        return Work(2.0 * problem["n"], 8.0 * problem["n"], moved, config.integer("STAGES"))

    def library(self, problem: Problem) -> tuple[Gemm, ...]:
        return (Gemm(problem["n"], 1, 1),)


TOY = Toy()


class ToyRunner:
    """Computes the toy with NumPy; `spoil` may then change the arrays by name."""

    name = "emulation"

    def __init__(self, spoil: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
        self._spoil = spoil

    def rng(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

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
        after = {item.name: item.data.copy() for item in arguments if isinstance(item, Array)}
        after["y"] = 2 * after["x"] + np.float32(1)
        self._spoil(after)
        return after


LIBRARY_US = 9.0


def true_us(config: Config) -> float:
    """The toy's time: best at TILE=128, STAGES=4, vector; by the library `LIBRARY_US`."""
    if config.by_library:
        return LIBRARY_US
    tile, stages = np.log2(config.integer("TILE")), config.integer("STAGES")
    return float(2 + abs(tile - 7) + 0.5 * abs(stages - 4) + (config.choice("MODE") == "plain"))


class InstantCompiler:
    """A `tuner.candidates.Compiler` that is done at once. Counts, and fails what `broken` says."""

    workers = 2

    def __init__(
        self,
        broken: Callable[[Config], bool] = lambda _: False,
        code: Callable[[Config], str] = lambda config: config.key,
    ) -> None:
        """`code` is the text in the place of the machine code."""
        self.compiled: list[Config] = []
        self._broken = broken
        self._code = code
        self._folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def submit(self, kernel: Kernel, problem: Problem, config: Config, arch: str) -> Future[Binary | Failure]:
        self.compiled.append(config)
        done: Future[Binary | Failure] = Future()
        if self._broken(config):
            done.set_result(Failure(Status.COMPILE, "error: no such thing"))
        else:
            path = self._folder / f"{len(self.compiled)}.cubin"
            path.write_text(self._code(config))
            done.set_result(Binary(path, kernel.name, arch, 32, 0, 0, 0.1))
        return done

    def __enter__(self) -> InstantCompiler:
        return self

    def __exit__(self, *_: object) -> None: ...


class Posting(ABC):
    """`post` and `wait` by `call`: what is posted is called for when somebody waits for it."""

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()

    def post(self, request: Any, *, limit_s: float | None = None) -> None:
        self._queue.append(request)

    def wait(self, *, also: Sequence[Waitable] = (), timeout_s: float | None = None) -> Answer:
        started = time.monotonic()
        return Answer(self.call(self._queue.popleft()), started, time.monotonic())

    @abstractmethod
    def call(self, request: Any, *, limit_s: float | None = None) -> Any: ...


class Replayed(Posting):
    """A `tuner.task.Caller` that answers from `true_us`; after `patience` measurements it is interrupted (Ctrl-C).

    Against each other, configurations take `final_us`.
    """

    def __init__(
        self,
        *,
        patience: int | None = None,
        wrong: Callable[[Config], bool] = lambda _: False,
        final_us: Callable[[Config], float] = true_us,
    ) -> None:
        super().__init__()
        self.measured: list[Config] = []
        self.finals: list[list[Config]] = []
        self.checked: list[tuple[Problem, Config]] = []
        self.caches: set[CacheState] = set()
        self.library = 0
        self._patience = patience
        self._wrong = wrong
        self._final_us = final_us

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        if isinstance(request, WarmUp):
            return None
        if isinstance(request, LibraryJob):
            self.library += 1
            return Timing((6.0, 6.0, 6.0), request.cache, 20)
        if isinstance(request, CheckJob):
            self.checked.append((request.problem, request.config))
            return self._verdict(request.config)
        if isinstance(request, FinalsJob):
            self.finals.append([config for config, _ in request.contestants])
            return tuple(Timing((self._final_us(config),) * 3, request.cache, 20) for config, _ in request.contestants)
        return self._measure(request)

    def _verdict(self, config: Config) -> Verdict:
        if self._wrong(config):
            return Verdict(Status.WRONG, "emulation", "y: relative error 1", 1.0, 1e-6)
        return Verdict(Status.OK, "emulation", error=1e-8, tolerance=1e-6)

    def _measure(self, job: Job) -> Measurement:
        if self._patience is not None and len(self.measured) >= self._patience:
            raise KeyboardInterrupt
        self.measured.append(job.config)
        self.caches.add(job.cache)
        verdict = self._verdict(job.config)
        row = measurement(job.problem, job.config, Kind.MEASURED, verdict, job.binary, seed=job.seed)
        us = true_us(job.config)
        return timed(row, Timing((us, us, us), CacheState.HOT, 20), None) if verdict.ok else row


class ToyLibrary(Toy):
    """The toy as a library would do it."""

    def space(self, problem: Problem, device: Device) -> Space:
        return Space((), also=(self.only_config,))

    def defines(self, problem: Problem, config: Config) -> dict[str, Any]:
        return {}

    def work(self, problem: Problem, config: Config) -> Work:
        return Work(2.0 * problem["n"], 8.0 * problem["n"], 16.0 * problem["n"])

    def launch(self, problem: Problem, config: Config) -> Launch:
        return Launch((1, 1, 1), (64, 1, 1))


WITH_LIBRARY = Toy(ToyLibrary())
