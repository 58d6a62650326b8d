"""How much of a race is run."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Schedule:
    """How much is run. Counts are steps, rounded up to what one call makes."""

    steps: int = 5000
    """Of one sample."""
    repeats: int = 5
    warmup: int = 500
    """Before the first sample."""
    lead_in: int = 200
    """Before each sample, untimed: brings the clocks up again after the others' turns."""
    longest_sample_s: float | None = None
    """A contender that would need longer for a sample runs fewer steps per sample; None: everybody runs them all."""

    def rounded(self, per_call: int) -> Schedule:
        """The same in whole calls of `per_call` steps, at least one each (the lead-in may be none)."""

        def up(steps: int) -> int:
            return -(-steps // per_call) * per_call

        return replace(
            self, steps=up(max(self.steps, 1)), warmup=up(max(self.warmup, per_call + 1)), lead_in=up(self.lead_in)
        )

    @property
    def total(self) -> int:
        """All steps that a contender makes."""
        return self.warmup + self.repeats * (self.lead_in + self.steps)
