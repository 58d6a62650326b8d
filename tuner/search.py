"""Which configuration to try next: Optuna asks and is told; what is stored is replayed, nothing is asked twice.

A tunable is given to Optuna as the index of its value, so that every sampler (CMA-ES too, which knows no categories)
uses the order in which the kernel lists its values. Optuna knows nothing of constraints, and so:

- the kernel's default, configurations known to be good nearby, those that the model thinks best, and valid ones drawn
  at random come first, until a few results are there to learn from;
- gp, the default, chooses by a Gaussian process on top of the model's predictions (`tuner.surrogate`), and its choices
  are enqueued as Optuna's trials;
- TPE chooses among its samples that are valid and new (`tuner.samplers.ValidTpe`). A suggestion that none the less
  breaks a constraint, or that was tried already, is drawn again a few times and then moved to the nearest valid
  configuration that is new. It is never compiled;
- for CMA-ES the moved configuration's time counts for the suggestion itself, since a generation needs its own points.

A time is told as a value. A candidate that failed is told as pruned: Optuna ranks those below every complete trial, so
that the sampler leaves the region, without an invented time. Which failure it was is the trial's attribute `status`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import Trial, TrialState, create_trial

from tuner.guesses import Expected
from tuner.samplers import SAMPLERS, STARTUP_TRIALS, ValidTpe, optuna_sampler
from tuner.space import Space
from tuner.surrogate import POOL, Surrogate
from tuner.types import Config, Measurement
from tuner.valid import Valid

FEW = 5
"""Drawn at random before the sampler gp takes over: it has the model to begin with."""
_REDRAWS = 4


class Search:
    """The search of one space. `ask` and `tell` may be interleaved: several configurations can be under way."""

    def __init__(
        self,
        space: Space,
        *,
        sampler: str = "tpe",
        seed: int = 0,
        first: Iterable[Config] = (),
        known: Iterable[Measurement] = (),
        expected: Expected = lambda _: None,
    ) -> None:
        """`first` are tried before anything else, in their order, the valid ones once each; `known` are never asked
        again, and the sampler learns from them. `expected` predicts times for the sampler `gp`.
        """
        if sampler not in SAMPLERS:
            raise ValueError(f"no sampler {sampler!r}; there are {SAMPLERS}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._sampler = sampler
        self._valid = Valid(space, seed)
        self._grid = self._valid.shuffled() if sampler == "grid" else iter(())
        self._study = optuna.create_study(direction="minimize", sampler=optuna_sampler(sampler, seed, self._fits))
        self._distributions: dict[str, BaseDistribution] = {
            param.name: IntDistribution(0, len(param.values) - 1) for param in space.params
        }
        self._surrogate = Surrogate(space, expected, seed)
        self._observed: list[tuple[Config, float | None]] = []
        self._batch: list[Config] = []
        """What the surrogate would try next."""
        self._open: dict[Config, Trial] = {}
        self._seen: set[Config] = set()
        self._first = deque(first)
        self._drawn = self._told = 0
        self.best: Measurement | None = None
        """The fastest right candidate so far."""
        for measurement in known:
            self._replay(measurement)

    def sample(self, count: int) -> list[Config]:
        """Up to `count` valid configurations, drawn without regard to what was asked; the same for the same seed."""
        return self._valid.sample(count)

    def prefer(self, configs: Iterable[Config]) -> None:
        """Ask for `configs` after those that are to be tried first already, and before anything else."""
        self._first.extend(configs)

    @property
    def known(self) -> frozenset[Config]:
        """Configurations that were known from the start or have been asked."""
        return frozenset(self._seen)

    def ask(self) -> Config | None:
        """A valid configuration that was never asked before and is not known; None where there is none left."""
        chosen = self._next()
        if chosen is None:
            return None
        config, trial = chosen
        self._seen.add(config)
        self._open[config] = trial
        return config

    def tell(self, measurement: Measurement) -> None:
        """What became of a configuration that was asked."""
        self._told += 1
        trial = self._open.pop(measurement.config)
        trial.set_user_attr("status", measurement.status.value)
        self._observed.append((measurement.config, measurement.median_us if measurement.ok else None))
        if measurement.ok and measurement.median_us is not None:
            self._study.tell(trial, measurement.median_us)
            self._keep_best(measurement)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def _next(self) -> tuple[Config, Trial] | None:
        while self._first:
            config = self._first.popleft()
            if self._new(config):
                return config, self._trial(config)
        if self._sampler == "grid":
            return self._found(next((config for config in self._grid if self._new(config)), None))
        startup = FEW if self._sampler == "gp" else STARTUP_TRIALS
        ignorant = self._drawn < startup or (self._sampler == "tpe" and self._told < STARTUP_TRIALS)
        if self._sampler == "random" or ignorant:
            self._drawn += 1
            return self._found(self._valid.draw(self._seen))
        return self._promising() if self._sampler == "gp" else self._suggest()

    def _promising(self) -> tuple[Config, Trial] | None:
        """What the surrogate thinks best; where it knows nothing new, what is left."""
        while self._batch:
            config = self._batch.pop(0)
            if self._new(config):
                return config, self._trial(config)
        pool = self._valid.pool(POOL)
        self._batch = self._surrogate.next(self._observed, self._open, pool, lambda config: config not in self._seen)
        if not self._batch:
            return self._found(self._valid.draw(self._seen))
        config = self._batch.pop(0)
        return config, self._trial(config)

    def _suggest(self) -> tuple[Config, Trial] | None:
        """The sampler's suggestion, moved where it is not valid or not new."""
        sampler = self._study.sampler
        while isinstance(sampler, ValidTpe) and sampler.next_best:
            config = self._config(sampler.next_best.pop(0))
            if self._new(config):
                return config, self._trial(config)
        config = Config.of()
        for _ in range(_REDRAWS):
            trial = self._study.ask(self._distributions)
            config = self._decode(trial)
            if self._new(config):
                return config, trial
            if self._sampler == "cmaes":
                moved = self._valid.nearest(config, self._seen)
                if moved is None:
                    self._study.tell(trial, state=TrialState.FAIL)
                return None if moved is None else (moved, trial)
            self._study.tell(trial, state=TrialState.FAIL)
        return self._found(self._valid.nearest(config, self._seen))

    def _found(self, config: Config | None) -> tuple[Config, Trial] | None:
        return None if config is None else (config, self._trial(config))

    def _new(self, config: Config) -> bool:
        return config not in self._seen and config in self._space

    def _trial(self, config: Config) -> Trial:
        """A running trial with exactly these parameters."""
        self._study.enqueue_trial(self._encode(config))
        return self._study.ask(self._distributions)

    def _replay(self, measurement: Measurement) -> None:
        if not self._new(measurement.config):
            return
        self._seen.add(measurement.config)
        self._told += 1
        right = measurement.ok and measurement.median_us is not None
        self._observed.append((measurement.config, measurement.median_us if right else None))
        self._study.add_trial(
            create_trial(
                state=TrialState.COMPLETE if right else TrialState.PRUNED,
                value=measurement.median_us if right else None,
                params=self._encode(measurement.config),
                distributions=self._distributions,
                user_attrs={"status": measurement.status.value},
            )
        )
        if right:
            self._keep_best(measurement)

    def _keep_best(self, measurement: Measurement) -> None:
        if measurement.median_us is None:
            return
        if self.best is None or self.best.median_us is None or measurement.median_us < self.best.median_us:
            self.best = measurement

    def _encode(self, config: Config) -> dict[str, int]:
        return {param.name: param.values.index(config[param.name]) for param in self._space.params}

    def _decode(self, trial: Trial) -> Config:
        return self._config(trial.params)

    def _config(self, point: Mapping[str, int]) -> Config:
        return Config.of({param.name: param.values[point.get(param.name, 0)] for param in self._space.params})

    def _fits(self, point: Mapping[str, int]) -> bool:
        return self._new(self._config(point))


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A good configuration of another problem of the same kernel."""

    distance: float
    config: Config


def neighbours(problem_dims: tuple[tuple[str, int], ...], others: Iterable[Measurement], most: int = 3) -> list[Config]:
    """The best configurations of the problems nearest to `problem_dims`, nearest first.

    The distance is taken per size, in log space, so that 32x1024x64 is not 32x64x1024.
    """
    best: dict[str, Measurement] = {}
    for other in others:
        if not other.ok or other.median_us is None or other.by_library:
            continue
        held = best.get(other.problem.key)
        if held is None or held.median_us is None or other.median_us < held.median_us:
            best[other.problem.key] = other
    sizes = dict(problem_dims)
    found = [
        Neighbour(
            sum(abs(float(np.log2(size / sizes[name]))) for name, size in other.problem.dims if name in sizes),
            other.config,
        )
        for other in best.values()
    ]
    found.sort(key=lambda neighbour: (neighbour.distance, neighbour.config.key))
    configs: list[Config] = []
    for neighbour in found:
        if neighbour.config not in configs:
            configs.append(neighbour.config)
    return configs[:most]
