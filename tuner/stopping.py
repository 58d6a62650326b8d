"""When more trials are not worth their time: the expected gain is under the noise.

A search has settled when none of the last `LEAST` trials, or of the last `SHARE` of all that it may have where that is
more, was better than the best before them by more than the noise: below the best one's own confidence interval of the
median, and by `GAIN` at least. Replayed on the searches of 18 problems on an H200 (80 to 200 trials each), this saves a
tenth of the trials and costs 0.2% of the winner's time on average, 2.9% at most; half the patience saves 45% and costs
13% on average. The rule was picked from seven on these same searches, so expect somewhat worse elsewhere. It is meant
for the long tail of large `--trials`. What was asked by then (`tuner.candidates.WINDOW`) is still judged.
"""

from __future__ import annotations

import math

from tuner.measure import median_interval
from tuner.types import Measurement

LEAST = 40
SHARE = 0.4
GAIN = 0.01


class Patience:
    """Counts the trials since the last improvement that was one."""

    def __init__(self, trials: int) -> None:
        """`trials` is how many configurations the search may try."""
        self.window = max(LEAST, math.ceil(SHARE * trials))
        self._bar = math.inf
        self._since = 0

    def saw(self, row: Measurement) -> None:
        """Take in the outcome of a trial. Failures before the first success do not count."""
        if self.better(row):
            self._since = 0
        elif self._bar < math.inf:
            self._since += 1

    def better(self, row: Measurement) -> bool:
        """Whether `row` improves on all before it by more than the noise; it is the one to beat then."""
        if not row.ok or row.median_us is None or not row.median_us < self._bar:
            return False
        self._bar = min(median_interval(row.samples_us or (row.median_us,))[0], (1 - GAIN) * row.median_us)
        return True

    @property
    def over(self) -> bool:
        return self._since >= self.window
