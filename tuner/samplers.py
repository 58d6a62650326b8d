"""Optuna's samplers as this project uses them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna

SAMPLERS = ("gp", "tpe", "random", "grid", "cmaes")
"""`gp` is this project's own (`tuner.surrogate`); its choices are Optuna's trials like the others'."""

STARTUP_TRIALS = 10
"""Valid configurations drawn at random before a model-based sampler takes over."""

SAMPLES = 24
"""Of which TPE takes the best; Optuna's own number."""

BATCH = 4
"""Configurations from one fit of TPE's densities, the best first. Fitting takes several times as long as all else that
an ask does. A batch loses nothing that could be seen: on the landscapes of `candidates.WINDOW` the best of 100 trials
was 3.9% from the best known, with one configuration from each fit 3.5% (each within 1%)."""

Fits = Callable[[Mapping[str, int]], bool]
"""Whether a point (each tunable's index) may be suggested. Tunables with a single value may be missing in it."""


class ValidTpe(optuna.samplers.TPESampler):
    """TPE that looks for the best among those of its candidates that may be suggested.

    Optuna knows no constraints beforehand. Most of what it samples in a space of a dozen tunables breaks one, and
    asking again fits its densities anew, which takes longer than the GPU needs for a candidate. This overrides a
    private method, the same in Optuna 4.0 to 5.1; were it no longer called, `Search` would still ask again, slowly
    (test_search.py watches it).
    """

    def __init__(self, fits: Fits, **settings: Any) -> None:
        super().__init__(**settings)
        self._fits = fits
        self.next_best: list[dict[str, int]] = []
        """The points that came next after the latest suggestion, the best first; a batch with it."""

    def _compute_acquisition_func(self, samples: dict[str, Any], mpe_below: Any, mpe_above: Any) -> Any:
        """The logarithm of the ratio of the densities, minus infinity where a sample does not fit; none may fit."""
        self.next_best = []
        columns = list(samples.values())
        points = [dict(zip(samples, map(int, point), strict=True)) for point in zip(*columns, strict=True)]
        first = {tuple(point.values()): index for index, point in reversed(list(enumerate(points)))}
        right = [index for index in sorted(first.values()) if self._fits(points[index])]
        if not right:
            return super()._compute_acquisition_func(samples, mpe_below, mpe_above)
        found = np.full(len(points), -np.inf)
        chosen = {name: values[right] for name, values in samples.items()}
        found[right] = super()._compute_acquisition_func(chosen, mpe_below, mpe_above)
        ranking = np.argsort(-found, kind="stable")[: min(BATCH, len(right))]
        self.next_best = [points[index] for index in ranking[1:]]
        return found


def optuna_sampler(name: str, seed: int, fits: Fits) -> optuna.samplers.BaseSampler:
    """The sampler `name` of `SAMPLERS`; only TPE asks what `fits`."""
    with warnings.catch_warnings():
        # Optuna 4 calls some of these arguments experimental; they are what this needs, in 4 and in 5.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            return ValidTpe(
                fits,
                seed=seed,
                n_startup_trials=STARTUP_TRIALS,
                n_ei_candidates=SAMPLES,
                multivariate=True,
                constant_liar=True,
            )
        if name == "cmaes":
            return optuna.samplers.CmaEsSampler(seed=seed, with_margin=True, warn_independent_sampling=False)
        return optuna.samplers.RandomSampler(seed=seed)
