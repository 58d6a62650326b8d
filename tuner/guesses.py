"""The model's best guesses: configurations that a search tries before its sampler has learned anything."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

from tuner.backends.model import Prediction, predict
from tuner.kernel import Kernel
from tuner.types import Binary, CacheState, Config, Device, Problem

Expected = Callable[[Config], float | None]
"""A prediction of a configuration's time in us; None where it cannot run."""

SAMPLE = 400
"""Valid configurations that are looked at; predicting one takes some 50 us."""
GUESSES = 5
REGISTERS = 64
"""Of a thread, before anything is compiled; fewer where the block would not fit."""


def expectation(kernel: Kernel, problem: Problem, device: Device, cache: CacheState) -> Expected:
    """`expected_us` of this problem, each configuration once."""
    return functools.cache(functools.partial(expected_us, kernel, problem, device, cache))


def best_guesses(expected: Expected, configs: Iterable[Config]) -> list[Config]:
    """The `GUESSES` of `configs` that are expected to be the fastest, the fastest first. Compiles nothing."""
    times = [(expected(config), config.key, config) for config in configs]
    possible = sorted((us, key, config) for us, key, config in times if us is not None)
    return [config for *_, config in possible[:GUESSES]]


def expected_us(kernel: Kernel, problem: Problem, device: Device, cache: CacheState, config: Config) -> float | None:
    """The model's time of `config`, us, before it is compiled; None where it does not fit the device."""
    launch = kernel.launch(problem, config)
    registers = min(REGISTERS, device.registers_per_sm // launch.threads)
    binary = Binary(Path(), kernel.name, device.arch, registers, 0, 0)
    prediction = predict(device, launch, binary, kernel.work(problem, config), cache)
    return prediction.us if isinstance(prediction, Prediction) else None
