"""The valid configurations of a space, for whoever searches it: one, some, all, or the nearest to a point."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np

from tuner.space import Space
from tuner.types import Config

LISTED = 10_000
"""A space of at most this many valid configurations is listed in full (walking it takes some 10 us each)."""

FRESH = 200
"""Of a listed space, how many are in a pool that were not in the one before."""

_DRAWS = 20_000
"""Most random combinations that are looked at for valid ones, before the whole space is listed after all."""

_LOOKS = 2_000
"""Random combinations that tell a space which is far too large to be listed."""


class Valid:
    """The valid configurations of a space: listed where they are few, drawn where they are many."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._random = random.Random(seed)
        self._points: np.ndarray[tuple[int, int], np.dtype[np.float64]] | None = None
        self._steps = [1.0 / max(1, len(param.values) - 1) for param in space.params]
        self._sampled: dict[Config, None] = {}
        self._sampling = space.draws(random.Random(seed))
        self._drawing = space.draws(self._random)
        self._looked_at = 0
        self._listed: list[Config] | None = None
        if not _surely_many(space):
            few = list(itertools.islice(space, LISTED + 1))
            self._listed = few if len(few) <= LISTED else None

    def _list(self) -> list[Config]:
        if self._listed is None:
            self._listed = list(self._space)
        return self._listed

    def _point(self, config: Config) -> list[float]:
        """Where `config` lies, each tunable from 0 to 1."""
        return [
            step * param.values.index(config[param.name])
            for step, param in zip(self._steps, self._space.params, strict=True)
        ]

    def shuffled(self) -> Iterator[Config]:
        """All of them in a seeded order: a grid that is cut short is then no corner of the space."""
        everything = list(self._list())
        self._random.shuffle(everything)
        return iter(everything)

    def draw(self, taken: set[Config]) -> Config | None:
        """One of those not in `taken`, uniformly; None where there is none."""
        if self._listed is None:
            for config in itertools.islice(self._drawing, _DRAWS):
                if config is not None and config not in taken:
                    return config
        free = [config for config in self._list() if config not in taken]
        return self._random.choice(free) if free else None

    def pool(self, count: int) -> list[Config]:
        """Some `count` to choose from, mostly the same ones every time, since whoever chooses must get to know them; in
        a space that is listed, `FRESH` others with them.
        """
        fixed = self.sample(count)
        if self._listed is None or len(fixed) == len(self._listed):
            return fixed
        return [*fixed, *self._random.sample(self._listed, min(FRESH, len(self._listed)))]

    def sample(self, count: int) -> list[Config]:
        """Up to `count` different ones; what is drawn elsewhere does not depend on it."""
        if self._listed is not None:
            return random.Random(self._seed).sample(self._listed, min(count, len(self._listed)))
        while len(self._sampled) < count and self._looked_at < _DRAWS:
            self._looked_at += 1
            config = next(self._sampling)
            if config is not None:
                self._sampled.setdefault(config)
        return list(itertools.islice(self._sampled, count))

    def nearest(self, target: Config, taken: set[Config]) -> Config | None:
        """The one not in `taken` that is closest to `target` in steps of its tunables; None where there is none.

        In a space that is not listed, the first that is met on walks of growing length from `target`.
        """
        if self._listed is None:
            found = self._walk(target, taken)
            if found is not None:
                return found
        listed = self._list()
        if not listed:
            return None
        if self._points is None:
            self._points = np.array([self._point(config) for config in listed], dtype=np.float64)
        distance = np.abs(self._points - np.array(self._point(target))).sum(axis=1)
        order = np.argsort(distance, kind="stable")
        return next((listed[index] for index in order if listed[index] not in taken), None)

    def _walk(self, target: Config, taken: set[Config]) -> Config | None:
        params = self._space.params
        for length in range(1, len(params) + 1):
            for _ in range(100 * length):
                values = dict(target)
                for param in self._random.sample(params, length):
                    values[param.name] = self._random.choice(param.values)
                config = Config.of(values)
                if config not in taken and config in self._space:
                    return config
        return None


def _surely_many(space: Space) -> bool:
    """Whether a space has so many valid configurations that walking a part of it would be in vain.

    By a draw of `_LOOKS`: with `LISTED` valid ones, four times as many as are expected are out of the question.
    """
    if space.cardinality <= LISTED:
        return False
    right = sum(config is not None for config in itertools.islice(space.draws(random.Random(0)), _LOOKS))
    return right >= 25 and right * space.cardinality > 4 * LISTED * _LOOKS
