"""The contenders while a race is on: what each came to so far, and how they start."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainer.lanes import Finish, Lane, LaneError, started_first
from trainer.schedule import Schedule

Tell = Callable[[str], None]


@dataclass(slots=True)
class Runner:
    """A contender while the race is on."""

    name: str
    lane: Lane
    start_s: float | None = None
    cold_s: float | None = None
    """Seconds of a start with empty caches, where there was one before."""
    steps: int = 0
    """Per sample."""
    samples: list[float] = field(default_factory=list)
    """us per step."""
    error: str | None = None
    finish: Finish | None = None

    def attempt(self, stage: str, action: Callable[[], None]) -> None:
        """Do `action`; where it fails, note it and leave the race to the others."""
        if self.error is not None:
            return
        try:
            action()
        except LaneError as error:
            self.error = f"{stage}: {error}"
            self.close()

    def start(self) -> None:
        """Wait for the start that the lane began."""
        self.start_s = self.lane.start()

    def call_it_cold(self) -> None:
        """The start was one with empty caches; get ready for another."""
        self.cold_s, self.start_s = self.start_s, None
        self.lane.close()

    def warm_up(self, schedule: Schedule, per_call: int) -> None:
        """Warm up after a start, which made `per_call` steps; settle how many steps a sample has."""
        warmup = schedule.warmup - per_call
        step_s = self.lane.run(warmup) / warmup
        self.steps = schedule.steps
        if schedule.longest_sample_s is not None:
            affordable = int(schedule.longest_sample_s / step_s) // per_call * per_call
            self.steps = min(self.steps, max(affordable, per_call))

    def sample(self, schedule: Schedule) -> None:
        """One more sample."""
        if schedule.lead_in:
            self.lane.run(schedule.lead_in)
        self.samples.append(self.lane.run(self.steps) / self.steps * 1e6)

    def end(self) -> None:
        """Take the results and give the device's memory back."""
        self.finish = self.lane.finish()
        self.lane.close()

    def close(self) -> None:
        """End the lane; an error while it ends is noted where there is none yet."""
        try:
            self.lane.close()
        except LaneError as error:
            self.error = self.error or f"end: {error}"


def start_all(runners: Sequence[Runner], starts: int, tell: Tell) -> None:
    """Start them: the first one, which is ours, alone, then the others, at most `starts` of them at once."""
    _start(runners[:1], 1, tell)
    _start(runners[1:], starts, tell)


def _start(runners: Sequence[Runner], starts: int, tell: Tell) -> None:
    coming = deque(runners)
    under_way: list[Runner] = []
    while coming or under_way:
        while coming and len(under_way) < starts:
            runner = coming.popleft()
            runner.attempt("start", runner.lane.begin)
            under_way.append(runner)
        tell(f"{', '.join(runner.name for runner in under_way)}: compile, capture")
        ready = started_first([runner.lane for runner in under_way])
        for runner in [runner for runner in under_way if runner.lane in ready]:
            runner.attempt("start", runner.start)
            under_way.remove(runner)
