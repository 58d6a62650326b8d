"""Contenders for tests of the race: at module level, so that another process can make them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from trainer.contenders import Eager, Task, Weights
from trainer.process_lane import CACHES


class Fake:
    """Takes `us` microseconds for a step by its own account and copies PyTorch's fp32 losses from `curve`."""

    name: ClassVar[str] = "fake"
    description: ClassVar[str] = "for tests"
    us: ClassVar[float] = 10.0

    def prepare(self, task: Task) -> None:
        self.task = task
        self.timed_samples = 0
        print("prepared")

    def run(self, first_step: int, steps: int) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def timed(self, first_step: int, steps: int) -> float:
        self.timed_samples += 1
        return self.us * steps * 1e-6 * (1 + 0.01 * self.timed_samples)

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        return np.ones(steps, np.float32)

    def weights(self) -> Weights:
        return self.task.weights

    @property
    def peak_bytes(self) -> int | None:
        return 3 << 20

    @property
    def notes(self) -> str:
        return "a fake"

    def close(self) -> None:
        pass


class Slow(Fake):
    us: ClassVar[float] = 40.0


class Refuses(Fake):
    def prepare(self, task: Task) -> None:
        raise RuntimeError("no kernel image is available\nand a long story about it")


class RefusesLater(Fake):
    def timed(self, first_step: int, steps: int) -> float:
        if first_step > 40:
            raise MemoryError
        return super().timed(first_step, steps)


class Dies(Fake):
    def prepare(self, task: Task) -> None:
        print("Segmentation fault, all is lost", file=sys.stderr, flush=True)
        os._exit(11)


class Hangs(Fake):
    def prepare(self, task: Task) -> None:
        time.sleep(60)


class TellsItsCaches(Fake):
    @property
    def notes(self) -> str:
        return " ".join(os.environ.get(name, "-") for name in CACHES)


def note(name: str, what: str, began: float) -> None:
    """A line in the log that the test has named: what was done from when to when."""
    with Path(os.environ["FAKES_LOG"]).open("a") as log:
        log.write(f"{name} {what} {began} {time.monotonic()}\n")


def meet(name: str, others: int) -> None:
    """Return when so many others have come here too: on a busy machine, sleeping for a while shows nothing."""
    log = Path(os.environ["FAKES_LOG"])
    log.with_suffix(f".{name}").touch()
    patience = time.monotonic() + 60
    while len(list(log.parent.glob(f"{log.stem}.*"))) < others + 1 and time.monotonic() < patience:
        time.sleep(0.01)


class Logged(Fake):
    """Takes `prepare_s` to start, and writes down when it did what."""

    prepare_s: ClassVar[float] = 0.6
    meets: ClassVar[bool] = False

    def prepare(self, task: Task) -> None:
        began = time.monotonic()
        if self.meets and "FAKES_MEET" in os.environ:
            meet(type(self).__name__, int(os.environ["FAKES_MEET"]))
        time.sleep(self.prepare_s)
        note(type(self).__name__, "prepare", began)
        super().prepare(task)

    def timed(self, first_step: int, steps: int) -> float:
        began = time.monotonic()
        time.sleep(0.02)
        note(type(self).__name__, str(steps), began)
        return super().timed(first_step, steps)


class Second(Logged):
    prepare_s: ClassVar[float] = 0.1
    meets = True


class Third(Logged):
    prepare_s: ClassVar[float] = 2.0
    meets = True


class Compiles(Fake):
    """Starts slowly where its cache has nothing of it."""

    def prepare(self, task: Task) -> None:
        cache = Path(os.environ["TRITON_CACHE_DIR"])
        self.found = (cache / "compiled").exists()
        if not self.found:
            time.sleep(0.5)
            cache.mkdir(parents=True)
            (cache / "compiled").touch()
        super().prepare(task)

    @property
    def notes(self) -> str:
        return f"found={self.found} threads={os.environ.get('TORCHINDUCTOR_COMPILE_THREADS', '-')}"


class WrongRate(Eager):
    """PyTorch's step, but with twice the learning rate."""

    name: ClassVar[str] = "wrong_rate"

    def _build(self) -> None:
        super()._build()
        for group in self.optimizer.param_groups:
            group["lr"] *= 2
