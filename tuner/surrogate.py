"""A Gaussian process over the configurations of one space: from what was seen of some, which to try next.

The logarithm of a configuration's time is a + b * (that of the model's prediction) + a Gaussian process, whose
covariance exp(-d / length) falls with the sum d of the distances along the tunables, each from 0 to 1. a and b are
fitted by least squares, the length by its likelihood. Tried next is what has the least mean minus `BOLDNESS` standard
deviations; several at a time, each with the variance that is left by those before it and by what is under way.

On a whole measured space (benchmarks/exhaustive-h200.json.gz) this needs a fraction of the trials that TPE needs:
tests/test_exhaustive_replay.py.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tuner.space import Space
from tuner.types import Config

Expected = Callable[[Config], float | None]
"""A prediction of a configuration's time in us; None where it cannot run."""

BATCH = 4
"""Configurations from one fit, which takes some ten milliseconds."""
BOLDNESS = 2.0
"""Chosen on that space: with 100 trials of ten seeds the winner was 2.0% from the best at 1.5, 0.2% at 2, 0.0% at 3."""
POOL = 800
"""Configurations drawn from a space that are looked at in every fit, beside the neighbours of the best."""
TOP = 5
"""Best configurations whose neighbours are looked at: all that differ in one tunable, and `PAIRS` that may in two."""
PAIRS = 30

_LENGTHS = (0.7, 1.5, 3.0, 6.0)
_NOISE = 0.01
"""Variance of a measurement, in units of what a + b * model leaves."""
_UNSEEN = 0.3
"""Standard deviation of the logarithm around the model before anything was measured."""
_SLOW, _FAST = 2.0, 4.0
"""A residual counts as this many standard deviations at most: how slow a bad one is teaches nothing about good ones."""
_TRUST = 0.05
"""Weight of the belief that b is 1, in units of one measurement."""
_SWITCH = 0.7
"""Distance of the two values of a tunable that has two."""

_Vector = NDArray[np.float64]


class _Point(NamedTuple):
    place: tuple[float, ...]
    expected: float | None
    """Logarithm of the prediction."""


class Surrogate:
    """Of one search. `expected` may say None of every configuration; then nothing is expected of any."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._params = [param for param in space.params if len(param.values) > 1]
        self._space = space
        self._expected = expected
        self._random = random.Random(seed)
        self._points: dict[Config, _Point] = {}
        self._valid: dict[Config, bool] = {}

    def next(
        self,
        observed: Sequence[tuple[Config, float | None]],
        under_way: Iterable[Config],
        pool: Sequence[Config],
        fits: Callable[[Config], bool],
    ) -> list[Config]:
        """Up to `BATCH` configurations that are new, the most promising first.

        `observed` are configurations with their times in us, None for those that failed; `pool` are some of the space,
        to which neighbours of the best are added; `fits` says whether one may be tried.
        """
        choices = [config for config in dict.fromkeys([*pool, *self._neighbours(observed)]) if fits(config)]
        points = [self._point(config) for config in choices]
        if any(point.expected is not None for point in points):
            choices, points = map(
                list,
                zip(*((c, p) for c, p in zip(choices, points, strict=True) if p.expected is not None), strict=True),
            )
        if not choices:
            return []
        times = [us for _, us in observed if us is not None]
        slowest = max(times, default=1.0)
        seen = [self._point(config) for config, _ in observed]
        y = np.log([us if us is not None else slowest for _, us in observed])
        mean, residual, scale = self._trend(seen, y, points)
        X, Z = _places(seen, len(self._params)), _places(points, len(self._params))
        length = max(_LENGTHS, key=lambda each: _likelihood(X, residual, each)) if len(seen) > 1 else _LENGTHS[1]
        if seen:
            weights = np.linalg.solve(_covariance(X, X, length) + _NOISE * np.eye(len(X)), residual)
            mean = mean + scale * (_covariance(Z, X, length) @ weights)
        pending = _places([self._point(config) for config in under_way], len(self._params))
        return [choices[index] for index in _spread(mean / scale, Z, np.concatenate([X, pending]), length)]

    def _trend(self, seen: Sequence[_Point], y: _Vector, points: Sequence[_Point]) -> tuple[_Vector, _Vector, float]:
        """a + b * model at `points`; what it leaves of `y`, in units of its standard deviation; and that."""
        model = np.array([point.expected or 0.0 for point in seen])
        target = np.array([point.expected or 0.0 for point in points])
        if not len(seen):
            return target, y, _UNSEEN
        design = np.stack([np.ones_like(model), model], axis=1)
        normal = design.T @ design + np.diag([1e-6, _TRUST])
        a, b = np.linalg.solve(normal, design.T @ y + np.array([0.0, _TRUST]))
        residual = y - a - b * model
        scale = max(float(residual.std()), 1e-3) if len(seen) > 1 else _UNSEEN
        return a + b * target, np.clip(residual / scale, -_FAST, _SLOW), scale

    def _neighbours(self, observed: Sequence[tuple[Config, float | None]]) -> list[Config]:
        """Valid configurations around the best of `observed`."""
        right = sorted((us, config.key, config) for config, us in observed if us is not None)[:TOP]
        found: list[Config] = []
        for _, _, config in right:
            for param in self._params:
                for value in param.values:
                    found.append(Config.of(config, **{param.name: value}))
            for _ in range(PAIRS if len(self._params) > 1 else 0):
                pair = self._random.sample(self._params, 2)
                found.append(Config.of(config, **{param.name: self._random.choice(param.values) for param in pair}))
        return [config for config in found if self._is_valid(config)]

    def _is_valid(self, config: Config) -> bool:
        valid = self._valid.get(config)
        if valid is None:
            valid = self._valid[config] = config in self._space
        return valid

    def _point(self, config: Config) -> _Point:
        point = self._points.get(config)
        if point is None:
            us = self._expected(config)
            place = tuple(
                param.values.index(config[param.name])
                * (_SWITCH if len(param.values) == 2 else 1 / (len(param.values) - 1))
                for param in self._params
            )
            point = self._points[config] = _Point(place, math.log(us) if us is not None and us > 0 else None)
        return point


def _places(points: Sequence[_Point], dimensions: int) -> _Vector:
    return np.array([point.place for point in points], dtype=np.float64).reshape(len(points), dimensions)


def _covariance(A: _Vector, B: _Vector, length: float) -> _Vector:
    distance = np.zeros((len(A), len(B)))
    for a, b in zip(A.T, B.T, strict=True):
        distance += np.abs(a[:, None] - b[None, :])
    found: _Vector = np.exp(-distance / length)
    return found


def _likelihood(X: _Vector, residual: _Vector, length: float) -> float:
    """Logarithm of the likelihood of `residual`, but for a constant."""
    factor = np.linalg.cholesky(_covariance(X, X, length) + _NOISE * np.eye(len(X)))
    whitened = np.linalg.solve(factor, residual)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(factor)).sum())


def _spread(mean: _Vector, Z: _Vector, known: _Vector, length: float) -> list[int]:
    """Indices into `Z` of a batch; `mean` in units of the prior's standard deviation, `known` what has no variance."""
    factor = np.linalg.cholesky(_covariance(known, known, length) + _NOISE * np.eye(len(known)))
    explained = np.linalg.solve(factor, _covariance(known, Z, length))
    variance = np.maximum(1.0 - (explained * explained).sum(axis=0), 1e-6)
    promise = mean - BOLDNESS * np.sqrt(variance)
    chosen: list[int] = []
    rows: list[_Vector] = []
    while len(chosen) < min(BATCH, len(Z)):
        best = int(promise.argmin())
        chosen.append(best)
        covariance = _covariance(Z[[best]], Z, length)[0] - explained[:, best] @ explained
        for row in rows:
            covariance = covariance - row[best] * row
        rows.append(covariance / math.sqrt(variance[best] + _NOISE))
        variance = np.maximum(variance - rows[-1] ** 2, 1e-6)
        promise = mean - BOLDNESS * np.sqrt(variance)
        promise[chosen] = np.inf
    return chosen
