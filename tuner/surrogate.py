"""A Gaussian process over the configurations of one space: from what was seen of some, which to try next.

The logarithm of a configuration's time is a + b * (that of the model's prediction) + a Gaussian process, whose
covariance exp(-d / length) falls with the sum d of the distances along the tunables, each from 0 to 1. a and b are
fitted by least squares, the length by its likelihood. Tried next is what has the least mean minus `BOLDNESS` standard
deviations; several at a time, each with the variance that is left by those before it and by what is under way.

An ask must cost less than the GPU needs for a candidate, so what is known of a configuration (its place, its
prediction, its neighbours) is kept, and distances are matrix products: the places are written in unary, one column for
each step of a tunable, so that the sum of the steps between two of them is a difference of squares.

On a whole measured space (benchmarks/exhaustive-h200.json.gz) this needs a fraction of the trials that TPE needs:
tests/test_exhaustive_replay.py.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.guesses import Expected
from tuner.space import Param, Space
from tuner.types import Config

BATCH = 4
"""Configurations from one fit."""
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

_Vector = NDArray[np.floating[Any]]
_Rows = NDArray[np.intp]


class Surrogate:
    """Of one search. `expected` may say None of every configuration; then nothing is expected of any."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._params = [param for param in space.params if len(param.values) > 1]
        self._space = space
        self._random = random.Random(seed)
        self._known = _Known(self._params, expected)
        self._valid: dict[Config, bool] = {}
        self._beside: dict[Config, list[Config]] = {}

    def next(
        self,
        observed: Sequence[tuple[Config, float | None]],
        under_way: Iterable[Config],
        pool: Sequence[Config],
        fits: Callable[[Config], bool],
    ) -> list[Config]:
        """Up to `BATCH` configurations that are new, the most promising first.

        `observed` are configurations with their times in us, None for those that failed; `pool` are some of the space,
        to which valid neighbours of the best are added; `fits` says whether one may be tried.
        """
        known = self._known
        choices = [config for config in dict.fromkeys([*pool, *self._neighbours(observed)]) if fits(config)]
        rows = known.rows(choices)
        possible = np.isfinite(known.expected[rows])
        if possible.any():
            rows = rows[possible]
        if not len(rows):
            return []
        times = [us for _, us in observed if us is not None]
        slowest = max(times, default=1.0)
        seen, pending = known.rows([config for config, _ in observed]), known.rows(under_way)
        y = np.log([us if us is not None else slowest for _, us in observed])
        model, target = (np.nan_to_num(known.expected[each]) for each in (seen, rows))
        mean, residual, scale = _trend(model, y, target)
        together = np.concatenate([seen, pending])
        between = known.distances(together, together)
        best: tuple[float, float, _Vector] | None = None
        for length in _LENGTHS if len(seen) > 1 else _LENGTHS[1:2]:
            # The corner of a factor is the factor of the corner, so one serves what was seen, and that with the rest.
            factor: _Vector = np.linalg.cholesky(np.exp(-between / length) + _NOISE * np.eye(len(together)))
            likelihood = _likelihood(factor[: len(seen), : len(seen)], residual)
            if best is None or likelihood > best[0]:
                best = likelihood, length, factor
        assert best is not None
        _, length, chosen = best
        explained: _Vector = np.linalg.solve(chosen, np.exp(-known.distances(together, rows) / length))
        if len(seen):
            # K(Z, X) K(X, X)^-1 r is the product of what the factor makes of both.
            whitened = np.linalg.solve(chosen[: len(seen), : len(seen)], residual)
            mean = mean + scale * (whitened @ explained[: len(seen)])
        return [known.configs[rows[index]] for index in _spread(mean / scale, known, rows, explained, length)]

    def _neighbours(self, observed: Sequence[tuple[Config, float | None]]) -> list[Config]:
        """Valid configurations around the best of `observed`."""
        right = heapq.nsmallest(TOP, ((us, config.key, config) for config, us in observed if us is not None))
        found: list[Config] = []
        for _, _, config in right:
            if config not in self._beside:
                steps = [Config.of(config, **{param.name: value}) for param in self._params for value in param.values]
                self._beside[config] = [step for step in steps if self._is_valid(step)]
            found += self._beside[config]
            for _ in range(PAIRS if len(self._params) > 1 else 0):
                pair = self._random.sample(self._params, 2)
                moved = Config.of(config, **{param.name: self._random.choice(param.values) for param in pair})
                if self._is_valid(moved):
                    found.append(moved)
        return found

    def _is_valid(self, config: Config) -> bool:
        valid = self._valid.get(config)
        if valid is None:
            valid = self._valid[config] = config in self._space
        return valid


class _Known:
    """What is known of every configuration that was looked at: one row each."""

    def __init__(self, params: Sequence[Param], expected: Expected) -> None:
        self._params = params
        self._predict = expected
        self._row: dict[Config, int] = {}
        self.configs: list[Config] = []
        steps = [
            np.full(len(param.values) - 1, _SWITCH if len(param.values) == 2 else 1 / (len(param.values) - 1))
            for param in params
        ]
        self._sizes = np.sqrt(np.concatenate(steps)) if steps else np.zeros(0)
        """Roots of the lengths of all steps, tunable by tunable."""
        self._codes: _Vector = np.zeros((64, len(self._sizes)))
        """A configuration's place: each step's size where its tunable has gone that far, else 0."""
        self._expected: _Vector = np.zeros(64)

    @property
    def expected(self) -> _Vector:
        """Logarithms of the predictions, NaN where there is none."""
        return self._expected

    def rows(self, configs: Iterable[Config]) -> _Rows:
        return np.array([self._at(config) for config in configs], dtype=np.intp)

    def distances(self, some: _Rows, others: _Rows) -> _Vector:
        a, b = self._codes[some], self._codes[others]
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :]
        found: _Vector = np.maximum(squares - 2 * (a @ b.T), 0.0)
        return found

    def _at(self, config: Config) -> int:
        row = self._row.get(config)
        if row is not None:
            return row
        row = self._row[config] = len(self.configs)
        self.configs.append(config)
        if row == len(self._expected):
            self._codes = np.concatenate([self._codes, np.zeros_like(self._codes)])
            self._expected = np.concatenate([self._expected, np.zeros_like(self._expected)])
        reached = [(param, param.values.index(config[param.name])) for param in self._params]
        gone = [step < place for param, place in reached for step in range(len(param.values) - 1)]
        self._codes[row] = self._sizes * np.array(gone, dtype=np.float64)
        us = self._predict(config)
        self._expected[row] = math.log(us) if us is not None and us > 0 else math.nan
        return row


def _trend(model: _Vector, y: _Vector, target: _Vector) -> tuple[_Vector, _Vector, float]:
    """a + b * model at `target`; what it leaves of `y`, in units of its standard deviation; and that."""
    if not len(model):
        return target, y, _UNSEEN
    design = np.stack([np.ones_like(model), model], axis=1)
    normal = design.T @ design + np.diag([1e-6, _TRUST])
    a, b = np.linalg.solve(normal, design.T @ y + np.array([0.0, _TRUST]))
    residual = y - a - b * model
    scale = max(float(residual.std()), 1e-3) if len(model) > 1 else _UNSEEN
    return a + b * target, np.clip(residual / scale, -_FAST, _SLOW), scale


def _likelihood(factor: _Vector, residual: _Vector) -> float:
    """Logarithm of the likelihood of `residual`, but for a constant; `factor` is its covariance's."""
    whitened = np.linalg.solve(factor, residual)
    return float(-0.5 * whitened @ whitened - np.log(np.diag(factor)).sum())


def _spread(mean: _Vector, known: _Known, rows: _Rows, explained: _Vector, length: float) -> list[int]:
    """Indices into `rows` of a batch; `mean` in units of the prior's standard deviation, `explained` what the factor of
    those that have no variance makes of their covariance with `rows`.
    """
    variance = np.maximum(1.0 - (explained * explained).sum(axis=0), 1e-6)
    promise = mean - BOLDNESS * np.sqrt(variance)
    chosen: list[int] = []
    taken: list[_Vector] = []
    while len(chosen) < min(BATCH, len(rows)):
        best = int(promise.argmin())
        chosen.append(best)
        covariance = np.exp(-known.distances(rows[[best]], rows)[0] / length) - explained[:, best] @ explained
        for row in taken:
            covariance = covariance - row[best] * row
        taken.append(covariance / math.sqrt(variance[best] + _NOISE))
        variance = np.maximum(variance - taken[-1] ** 2, 1e-6)
        promise = mean - BOLDNESS * np.sqrt(variance)
        promise[chosen] = np.inf
    return chosen
