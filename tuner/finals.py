"""The finalists of a problem, timed against each other, and what is served of winners that cannot be told apart.

Trials are timed minutes apart, and the best of many is partly the luckiest. So the fastest few are timed once more, in
turns in one process, and recorded as new rows: a configuration's latest row counts. Those whose confidence intervals
of the median (`measure.median_interval`, 95%) overlap the fastest one's are a tie. The simplest of a tie is served: the
fewest bytes of shared memory, then the fewest registers, then the first configuration in the order of its text; and a
kernel of our own before the library's way, which is several launches and needs the library.

A finalist's row has in `extra`: `finalist`; `ci_us`, its interval; `tied_with`, how many others are in its tie; and, in
a tie, `tied_us`, the fastest one's time, and `tie_rank`, its place (0 is served).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tuner.candidates import outcome
from tuner.judge import FinalsJob, timed
from tuner.measure import Timing, median_interval, unbelievable
from tuner.task import Task, fastest
from tuner.types import Binary, Config, Failure, Measurement

MOST = 5
"""Finalists, and more where more overlap the fastest."""
CROWD = 12
"""Never more than this."""

ROUNDS = 4
"""Most finals in a row; a second one is rare."""

_OWN = ("finalist", "ci_us", "tied_with", "tied_us", "tie_rank", "samples", "gave_up_us")
"""In `extra`: what an earlier timing said, which the next one replaces."""

LIMIT_S = 180.0
"""For a fresh process to import CuPy's kernels, then to load and time a dozen configurations."""


def hold_finals(
    task: Task, trials: Mapping[Config, Measurement], latest: Mapping[Config, Measurement]
) -> list[Measurement]:
    """Time the finalists; the latest row of every configuration afterwards.

    `trials` are each configuration's latest row that is no finalist's, `latest` of any sort. Where the finals were held
    already, nothing is done. Should a finalist turn out slower than a trial that was not one, that one is asked in.
    """
    rows = {**trials, **latest}
    for _ in range(ROUNDS):
        entrants = _unsettled(trials, rows)
        if not entrants:
            break
        binaries = _compiled(task, entrants)
        entrants = [row for row in entrants if row.config in binaries]
        task.progress.note(f"timing the {len(entrants)} fastest against each other")
        job = FinalsJob(
            task.kernel,
            task.problem,
            tuple((row.config, binaries[row.config]) for row in entrants),
            task.cache,
            task.settings.seed,
        )
        timings = task.worker.call(job, limit_s=LIMIT_S)
        if isinstance(timings, Failure):
            task.progress.note(
                f"the finalists could not be timed together ({timings.message}); the trials' times stand"
            )
            break
        for row in ranked([_timed(task, row, timing) for row, timing in zip(entrants, timings, strict=True)]):
            task.record(row)
            rows[row.config] = row
    return list(rows.values())


def finalists(rows: Iterable[Measurement]) -> list[Measurement]:
    """The `MOST` fastest, and those whose interval overlaps the fastest one's, up to `CROWD` in all."""
    right = sorted((row for row in rows if row.ok and row.samples_us), key=lambda row: row.standing)
    if not right:
        return []
    _, high = median_interval(right[0].samples_us)
    near = [row for place, row in enumerate(right) if place < MOST or median_interval(row.samples_us)[0] <= high]
    return near[:CROWD]


def ranked(rows: Sequence[Measurement]) -> list[Measurement]:
    """`rows` of one final, with their intervals, and the tie of the fastest."""
    right = [row for row in rows if row.ok]
    intervals = {row.config: median_interval(row.samples_us) for row in right}
    first = min(right, key=lambda row: (row.median_us, row.config.key), default=None)
    tied = [row for row in right if first and intervals[row.config][0] <= intervals[first.config][1]]
    tied.sort(key=lambda row: (row.by_library, row.shared_bytes or 0, row.registers or 0, row.config.key))
    places = {row.config: place for place, row in enumerate(tied)} if len(tied) > 1 else {}
    found = []
    for row in rows:
        extra: dict[str, Any] = {**row.extra, "finalist": True}
        if row.config in intervals:
            extra |= {"ci_us": list(intervals[row.config]), "tied_with": 0}
        if first and row.config in places:
            extra |= {"tied_with": len(tied) - 1, "tied_us": first.median_us, "tie_rank": places[row.config]}
        found.append(replace(row, extra=extra))
    return found


def _unsettled(trials: Mapping[Config, Measurement], rows: Mapping[Config, Measurement]) -> list[Measurement]:
    """Who must be timed: the trials' finalists; after them, should the fastest not be one, the fastest of now."""
    chosen = finalists(trials.values())
    if len(chosen) < 2:
        return []
    entrants = [rows[row.config] for row in chosen if rows[row.config].ok]
    if any(not row.finalist for row in entrants):
        # Whoever is tied by an earlier final stands at its winner's time, which is to be beaten anew.
        tied = [row for row in rows.values() if row.ok and row.extra.get("tied_with") and row not in entrants]
        return [*entrants, *tied]
    best = fastest(rows.values())
    return [] if best is None or best.finalist else finalists(rows.values())


def _compiled(task: Task, rows: Sequence[Measurement]) -> dict[Config, Binary]:
    """From the compiler's cache, as a rule."""
    jobs = [(row.config, task.compiler.submit(task.kernel, task.problem, row.config, task.device.arch)) for row in rows]
    found = ((config, outcome(job)) for config, job in jobs)
    return {config: binary for config, binary in found if isinstance(binary, Binary)}


def _timed(task: Task, row: Measurement, timing: Timing) -> Measurement:
    doubt = unbelievable(timing, task.kernel.form(row.config).work(task.problem, row.config), task.device)
    kept = {name: value for name, value in row.extra.items() if name not in _OWN}
    return timed(replace(row, seed=task.settings.seed, extra=kept), timing, doubt)
