"""Do two runs learn the same? The criterion by which everybody's losses are judged.

Runs from the same weights on the same batches differ by rounding only, but training amplifies rounding: two correct
runs drift apart, the faster the higher the learning rate. So no fixed bound will do. The yardstick is PyTorch against
itself: its fp32 run (the reference) and its fp16 autocast run (the twin) of the same task.

- Steps are cut into windows that double: 0-19, 20-49, 50-99, 100-199, 200-399, ...
- The distance of two runs in a window is the root mean square of the difference of their losses, step by step, over
  the mean loss of the reference there. Step by step, because a wrong update shows in single losses long before it
  moves their mean.
- Allowed in a window is FACTOR times the largest distance that the twin has had up to there, and at least
  FLOOR * (1 + first step of the window / GROWTH).

Seen with 784-128-128-128-10, batch 32 (distance to the reference in the windows 0-19, 50-99, 200-399, 800-1599):

    lr      twin                      learning rate x 1.05      learning rate x 1.5       biases never updated
    0.003   9e-7  1e-6  1e-6  2e-6    5e-6  3e-5  1e-4  1e-3    5e-5  3e-4  1e-3  2e-2    7e-5  2e-4  7e-4  3e-3
    0.1     4e-6  1e-4  1e-2  6e-2    2e-4  2e-2  3e-2  7e-2    2e-3  2e-1  2e-1  2e-1    2e-3  2e-2  4e-2  1e-1

All three faults are beyond the bound at both rates, by a factor of 3 to 400; of the contenders, at widths 128 and 512
and from several seeds, none used more than 0.36 of it. At a high rate the first windows show a fault, at a low one the
last. What the criterion cannot see (one small layer's bias at a low rate) the check of step 0's gradient is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.contenders.base import Contender, Task

Curve = NDArray[np.float32]
"""The loss of every step, from step 0."""

FACTOR = 5.0
FLOOR = 1e-4
GROWTH = 400
COMPARED = 2000
"""So many steps at most: later ones say little about a fault and much about chaos."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run agrees with the reference, and the window that comes nearest to its bound (or breaks it most)."""

    agrees: bool
    first: int
    last: int
    distance: float
    allowed: float

    def __str__(self) -> str:
        relation = "within" if self.agrees else "beyond"
        return (
            f"losses of steps {self.first} to {self.last} differ from PyTorch's fp32 run by {self.distance:.1e}, "
            f"{relation} the allowed {self.allowed:.1e}"
        )


def curves_agree(ours: Curve, reference: Curve, twin: Curve) -> Verdict:
    """Judge `ours` by the criterion of this module, over the steps that all three have (`COMPARED` at most).

    `reference` is PyTorch's fp32 run and `twin` its fp16 autocast run. A loss that is not finite never agrees.

    Raises:
        ValueError: a curve is empty.
    """
    steps = min(len(ours), len(reference), len(twin), COMPARED)
    if steps == 0:
        raise ValueError("there is no loss to compare")
    verdicts = []
    drift = 0.0
    for first, end in windows(steps):
        drift = max(drift, _distance(twin[first:end], reference[first:end]))
        allowed = max(FACTOR * drift, FLOOR * (1 + first / GROWTH))
        distance = _distance(ours[first:end], reference[first:end])
        # Where PyTorch itself diverges, everything would be allowed.
        agrees = distance <= allowed and np.isfinite(distance)
        verdicts.append(Verdict(bool(agrees), first, end - 1, distance, allowed))
    return max(verdicts, key=lambda verdict: (not verdict.agrees, verdict.distance / min(verdict.allowed, 1e300)))


def windows(steps: int) -> Iterator[tuple[int, int]]:
    """The windows (first, end) of the first `steps` steps; the last one may be cut short."""
    first, end = 0, 20
    while first < steps:
        yield first, min(end, steps)
        first, end = end, 50 if end == 20 else 2 * end


def yardstick(task: Task, steps: int) -> tuple[Curve, Curve]:
    """The reference and the twin: PyTorch's own fp32 and fp16 autocast losses of the first `steps` steps, run here."""
    from trainer.contenders.model import Eager, Reference

    return _losses(Reference(), task, steps), _losses(Eager(), task, steps)


def _losses(contender: Contender, task: Task, steps: int) -> Curve:
    contender.prepare(task)
    try:
        contender.run(0, steps)
        contender.synchronize()
        return contender.losses(0, steps)
    finally:
        contender.close()


def _distance(run: Curve, reference: Curve) -> float:
    difference = run.astype(np.float64) - reference
    distance = float(np.sqrt(np.mean(np.square(difference))) / np.mean(reference, dtype=np.float64))
    return distance if np.isfinite(distance) else float("inf")
