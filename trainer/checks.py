"""Does a looked-up configuration work here? Compiled and verified in a child process before the trainer uses it.

What has passed is remembered in the user's cache, by everything that could change the answer (source, problem,
configuration, where it ran), so that the next start need not ask again.
"""

from __future__ import annotations

import hashlib
from functools import partial
from types import TracebackType
from typing import Self

from trainer.plan import Choice
from tuner.cache import cache_dir
from tuner.compile import compile_kernel
from tuner.judge import CheckJob, CudaWorkplace, EmulationWorkplace
from tuner.types import Binary, Device, Environment, Failure, canonical_json
from tuner.worker import Worker

EMULATION_LIMIT_S = 180.0
"""For g++ and one launch on a slow machine."""


class Checker:
    """Checks choices for `device`, on the GPU or (where `gpu` is None) by emulation. A context manager.

    The child is spawned at the first choice that the cache does not know, and ended with the checker.
    """

    def __init__(self, device: Device, environment: Environment, gpu: str | None, *, seed: int = 0) -> None:
        """`gpu` names the GPU as `--device` does (`cuda:0`)."""
        self._device = device
        self._gpu = gpu
        self._seed = seed
        self._place = (
            [device.key, environment.driver, environment.nvrtc] if gpu else ["emulation", environment.compiler]
        )
        self._worker = Worker(partial(CudaWorkplace, gpu)) if gpu else Worker(EmulationWorkplace)
        self.checked = 0
        """Choices that were run, and not known from the cache."""

    def __call__(self, choice: Choice) -> Failure | None:
        """What is wrong with `choice`; None where nothing is.

        Raises:
            UserError: a compiler is missing, or the GPU is gone.
        """
        kernel, problem, config = choice.kernel, choice.problem, choice.config
        parts = [kernel.name, kernel.form(config).source_hash, problem.key, config.key, *self._place]
        passed = cache_dir("verified") / hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:32]
        if passed.exists():
            return None
        binary: Binary | None = None
        if self._gpu:
            compiled = compile_kernel(kernel, problem, config, self._device.arch)
            if isinstance(compiled, Failure):
                return compiled
            binary = compiled
        limit = None if self._gpu else EMULATION_LIMIT_S
        answer = self._worker.call(CheckJob(kernel, problem, config, self._seed, binary), limit_s=limit)
        self.checked += 1
        if isinstance(answer, Failure):
            return answer
        if not answer.ok:
            return Failure(answer.status, answer.message)
        passed.touch()
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()
