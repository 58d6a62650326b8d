"""A CUDA graph of N launches, replayed between two events: a sample of what one launch takes.

N is calibrated so that a sample lasts long enough for the events to resolve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

SAMPLE_US = 200.0
"""A sample lasts at least this long: events resolve about 0.5 us."""
LAUNCHES = 20
"""Fewest launches of a sample, so that the graph's own start, some microseconds, weighs little."""
LONG_SAMPLE_US = 2_000.0
"""In a sample of this length it weighs nothing, however few launches that are."""
SLOW_SAMPLE_US = 20_000.0
"""A turn of the argument sets is cut to about this."""
WARM_UP_US = 2_000.0
"""Replays before the first sample, those that calibrate included."""


class TimedGraph:
    """A captured graph of `launches` launches; a call replays it once and returns microseconds per launch."""

    def __init__(self, launch: Callable[[int], None], launches: int, stream: Any) -> None:
        """Capture `launch(turn)` for each turn on `stream`, which is the current one."""
        import cupy

        self.launches = launches
        self._launch = launch  # holds the arrays that the graph works on
        self._stream = stream
        self._start, self._stop = cupy.cuda.Event(), cupy.cuda.Event()
        stream.begin_capture()
        for turn in range(launches):
            launch(turn)
        self._graph = stream.end_capture()

    def __call__(self) -> float:
        import cupy

        self._start.record(self._stream)
        self._graph.launch(self._stream)
        self._stop.record(self._stream)
        self._stop.synchronize()
        return 1e3 * float(cupy.cuda.get_elapsed_time(self._start, self._stop)) / self.launches


def calibrated(launch: Callable[[int], None], sets: int, stream: Any) -> TimedGraph:
    """A replay that lasts long enough, warmed up. `launch(turn)` enqueues one launch on the current stream."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()  # the inputs were made there
    with stream:
        launch(0)  # what is done lazily at a first launch cannot be captured
        stream.synchronize()
        single = TimedGraph(launch, 1, stream)
        single()
        replay = TimedGraph(launch, launches_for(single(), sets), stream)
        warm = replay.launches * replay()
        one_us = replay()
        warm += replay.launches * one_us
        if launches_for(one_us, sets) > replay.launches:
            replay = TimedGraph(launch, launches_for(one_us, sets), stream)
            replay()  # a graph's first replay also uploads it
        while warm < WARM_UP_US:
            # A timer that gives nothing must not keep the loop going.
            warm += max(replay.launches * replay(), WARM_UP_US / 100)
        return replay


def launches_for(one_us: float, sets: int = 1) -> int:
    """Launches of one sample for a kernel of about `one_us` microseconds: whole turns of the argument sets, but for a
    kernel so slow that one turn would take too long.
    """
    if not one_us > 0:
        return LAUNCHES * sets
    wanted = max(math.ceil(SAMPLE_US / one_us), min(LAUNCHES, math.ceil(LONG_SAMPLE_US / one_us)))
    affordable = max(1, int(SLOW_SAMPLE_US / one_us))
    if affordable < sets:
        return affordable
    return math.ceil(min(wanted, affordable) / sets) * sets
