"""Search spaces: parameters with their values, constraints with their reasons."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tuner.types import Config, Value, canonical_json

_FEW = 2
"""Changes of the default that are tried one by one; three of a dozen parameters are some ten thousand."""


@dataclass(frozen=True, slots=True)
class Param:
    """A tunable: its name as the kernel's macro has it, its values in ascending order of size, and its default."""

    name: str
    values: tuple[Value, ...]
    default: Value
    why: str = ""
    """What it trades against what, in one line."""

    def __post_init__(self) -> None:
        if self.default not in self.values:
            raise ValueError(f"{self.name}: the default {self.default!r} is not among {self.values}")


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule that a configuration must keep, and the reason for it in one line.

    `needs` names the parameters that the rule reads (empty: all), so that walking a space can cut a branch early.
    """

    reason: str
    holds: Callable[[Config], bool]
    needs: tuple[str, ...] = ()


class _Rule:
    """A constraint that is asked about one combination after another, of which most agree in what it needs."""

    def __init__(self, constraint: Constraint, needs: tuple[str, ...]) -> None:
        self._holds = constraint.holds
        self._needs = needs
        self._answers: dict[tuple[Value, ...], bool] | None = {} if constraint.needs else None

    def holds(self, chosen: Mapping[str, Value]) -> bool:
        if self._answers is None:
            return self._holds(Config.of(chosen))
        key = tuple([chosen[name] for name in self._needs])
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._holds(Config.of({name: chosen[name] for name in self._needs}))
        return answer


@dataclass(frozen=True, slots=True)
class Space:
    """The valid configurations of one problem on one device."""

    params: tuple[Param, ...]
    constraints: tuple[Constraint, ...] = ()
    also: tuple[Config, ...] = ()
    """Members that are no combination of the parameters (a library's way). Walking the space leaves them out."""

    def broken(self, config: Config) -> str | None:
        """Why `config` is not in the space; None where it is."""
        if config in self.also:
            return None
        if len(config) != len(self.params) or any(param.name not in config for param in self.params):
            return f"has the parameters {sorted(config)}, the space has {sorted(param.name for param in self.params)}"
        for param in self.params:
            if config[param.name] not in param.values:
                return f"{param.name}={config[param.name]} is not among {list(param.values)}"
        for constraint in self.constraints:
            if not constraint.holds(config):
                return constraint.reason
        return None

    def __contains__(self, config: Config) -> bool:
        return self.broken(config) is None

    @property
    def cardinality(self) -> int:
        """Number of combinations, valid or not."""
        return math.prod(len(param.values) for param in self.params)

    def __iter__(self) -> Iterator[Config]:
        """Every valid configuration, in the order of the parameters' values."""
        due = self._due()
        chosen: dict[str, Value] = {}

        def walk(depth: int) -> Iterator[Config]:
            if depth == len(self.params):
                yield Config.of(chosen)
                return
            param = self.params[depth]
            for value in param.values:
                chosen[param.name] = value
                if all(rule.holds(chosen) for rule in due[depth]):
                    yield from walk(depth + 1)
            del chosen[param.name]

        return walk(0)

    def draws(self, source: random.Random) -> Iterator[Config | None]:
        """Combinations drawn at random without end, every one as likely as any other; None for those that are not
        valid, most of which are given up after a few parameters.
        """
        due = self._due()
        while True:
            chosen: dict[str, Value] = {}
            for param, rules in zip(self.params, due, strict=True):
                chosen[param.name] = param.values[int(source.random() * len(param.values))]
                if not all(rule.holds(chosen) for rule in rules):
                    yield None
                    break
            else:
                yield Config.of(chosen)

    def _due(self) -> list[list[_Rule]]:
        """By parameter: the rules that can be checked once it has its value, and those before it."""
        names = [param.name for param in self.params]
        due: list[list[_Rule]] = [[] for _ in names]
        for constraint in self.constraints:
            needs = constraint.needs or tuple(names)
            due[max((names.index(name) for name in needs), default=0)].append(_Rule(constraint, needs))
        return due

    def default(self) -> Config:
        """The kernel's default; where a constraint forbids it for this problem, the valid configuration that differs
        from it in the fewest parameters.

        Raises:
            ValueError: the space has no valid configuration at all.
        """
        wanted = Config.of({param.name: param.default for param in self.params})
        if wanted in self:
            return wanted
        for count in range(1, len(self.params) + 1):
            # What differs in few is soon looked through; where that would be more than all there is, all is walked.
            if count > _FEW:
                best = min(self, key=lambda config: sum(config[name] != wanted[name] for name in wanted), default=None)
                if best is not None:
                    return best
                break
            near = [config for config in self._changed(wanted, count) if config in self]
            if near:
                return min(near, key=self._place)
        raise ValueError("the search space is empty: no configuration keeps all constraints")

    def _changed(self, config: Config, count: int) -> Iterator[Config]:
        """What differs from `config` in exactly `count` parameters, valid or not."""
        for params in itertools.combinations(self.params, count):
            others = ([value for value in param.values if value != config[param.name]] for param in params)
            for values in itertools.product(*others):
                yield Config.of(config, **{param.name: value for param, value in zip(params, values, strict=True)})

    def _place(self, config: Config) -> tuple[int, ...]:
        """Where walking the space comes to `config`."""
        return tuple(param.values.index(config[param.name]) for param in self.params)

    @property
    def hash(self) -> str:
        """Changes when a parameter, a value or a constraint's reason does."""
        content = {
            "params": [[param.name, list(param.values), param.default] for param in self.params],
            "constraints": [constraint.reason for constraint in self.constraints],
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]
