"""What the user of `mnist-tune train` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.contenders import chosen
from trainer.mlp import Network
from trainer.plan import Form
from trainer.schedule import Schedule
from tuner.errors import UserError

EMULATED_WIDTH = 32
WIDEST_EMULATED = 512
"""A step of this width takes about half a second by emulation."""
GPU_WIDTH = 128


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """None: the GPU's default or the emulation's, whichever runs."""

    width: int | None = None
    widths: tuple[int, ...] | None = None
    """Several, one after the other; None: only `width`."""
    layers: int = 3
    batch: int = 32
    epochs: int | None = None
    steps: int | None = None
    lr: float = 0.003
    seed: int = 0
    data: Path | None = None
    device: str | None = None
    race: bool = True
    contenders: Sequence[str] | None = None
    form: Form = Form.AUTO
    schedule: Schedule = field(default_factory=lambda: Schedule(longest_sample_s=2.0))
    starts: int = 1
    """Contenders that may start at once."""
    cold_starts: bool = False
    """Start each contender with empty caches as well."""
    out: Path | None = None
    """A file for the documents of all widths; written after each."""

    def check(self) -> None:
        """Raises `UserError` for settings that make no sense."""
        if self.epochs is not None and self.steps is not None:
            raise UserError("Give --epochs or --steps, not both.")
        if self.width is not None and self.widths is not None:
            raise UserError("Give --width or --widths, not both.")
        for name, count in (("epochs", self.epochs), ("steps", self.steps), ("repeats", self.schedule.repeats)):
            if count is not None and count < 1:
                raise UserError(f"--{name} {count} trains nothing; give a whole number from 1.")
        if self.starts < 1:
            raise UserError(f"--starts {self.starts} starts nothing; give a whole number from 1.")
        if not 0 < self.lr < 1000:
            raise UserError(f"--lr {self.lr:g} is not a learning rate; give a number above 0 and below 1000.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed} is out of range; give a whole number from 0 to {2**32 - 1}.")
        if self.race:
            chosen(self.contenders)

    def networks(self, *, emulated: bool) -> list[Network]:
        """What is to be trained, in this order.

        Raises:
            UserError: no such network exists, or it is too large for the emulation.
        """
        default = EMULATED_WIDTH if emulated else GPU_WIDTH
        widths = self.widths or (self.width if self.width is not None else default,)
        networks = [Network(width, self.layers, self.batch) for width in widths]
        if emulated and max(widths) > WIDEST_EMULATED:
            option = "--width" if self.widths is None else "--widths"
            raise UserError(
                f"Without a GPU the training is emulated, which takes too long at width {max(widths)}; "
                f"give {option} up to {WIDEST_EMULATED}."
            )
        return networks

    def identity(self) -> dict[str, Any]:
        """All that decides what one width comes to, beside the network, as plain JSON."""
        return {
            "epochs": self.epochs,
            "steps": self.steps,
            "lr": self.lr,
            "seed": self.seed,
            "engine": self.form.value,
            "race": self.race,
            "contenders": list(self.contenders) if self.contenders is not None else None,
            "schedule": asdict(self.schedule),
            "starts": self.starts,
            "cold_starts": self.cold_starts,
        }
