"""The PyTorch contenders, from what most people write to the strongest step that we know of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer.contenders.base import Contender, Task, Weights
from trainer.contenders.library import Library
from trainer.contenders.model import CompiledStep, Eager, Graph, MaxAutotune, Reference
from trainer.contenders.ones import OnesFused, OnesLibrary, OnesStreams, OnesTriton
from trainer.contenders.pytorch import TorchContender
from trainer.contenders.written_out import Compiled, CompiledFp16, CompiledFused
from tuner.errors import UserError

PYTORCH: Mapping[str, type[TorchContender]] = {
    contender.name: contender
    for contender in (
        Eager,
        MaxAutotune,
        CompiledStep,
        Graph,
        Compiled,
        CompiledFp16,
        CompiledFused,
        OnesFused,
        OnesTriton,
        Library,
        OnesLibrary,
        OnesStreams,
    )
}
"""By name: the usual forms first, then the written-out ones."""


def chosen(names: Sequence[str] | None = None) -> list[type[TorchContender]]:
    """The contenders called `names`, or all.

    Raises:
        UserError: there is no contender of such a name.
    """
    if names is None:
        return list(PYTORCH.values())
    for name in names:
        if name not in PYTORCH:
            raise UserError(f"There is no contender '{name}'; choose from {', '.join(PYTORCH)}.")
    return [PYTORCH[name] for name in names]


__all__ = ["PYTORCH", "Contender", "Eager", "Reference", "Task", "TorchContender", "Weights", "chosen"]
