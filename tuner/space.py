"""Search spaces: parameters with their values, constraints with their reasons."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tuner.types import Config, Value, canonical_json


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
    """A rule that a configuration must keep, and the reason for it in one line."""

    reason: str
    holds: Callable[[Config], bool]


@dataclass(frozen=True, slots=True)
class Space:
    """The valid configurations of one problem on one device."""

    params: tuple[Param, ...]
    constraints: tuple[Constraint, ...] = ()

    def broken(self, config: Config) -> str | None:
        """Why `config` is not in the space; None where it is."""
        names = {param.name for param in self.params}
        if set(config) != names:
            return f"has the parameters {sorted(config)}, the space has {sorted(names)}"
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
        for values in itertools.product(*(param.values for param in self.params)):
            config = Config.of(dict(zip((param.name for param in self.params), values, strict=True)))
            if self.broken(config) is None:
                yield config

    def default(self) -> Config:
        """The kernel's default; where a constraint forbids it for this problem, the valid configuration that differs
        from it in the fewest parameters.

        Raises:
            ValueError: the space has no valid configuration at all.
        """
        wanted = Config.of({param.name: param.default for param in self.params})
        if wanted in self:
            return wanted
        best = min(self, key=lambda config: sum(config[name] != wanted[name] for name in wanted), default=None)
        if best is None:
            raise ValueError("the search space is empty: no configuration keeps all constraints")
        return best

    @property
    def hash(self) -> str:
        """Changes when a parameter, a value or a constraint's reason does."""
        content = {
            "params": [[param.name, list(param.values), param.default] for param in self.params],
            "constraints": [constraint.reason for constraint in self.constraints],
        }
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]
