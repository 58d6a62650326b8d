"""The path without a GPU: compile, rank by the model, verify the best-ranked by emulation.

Emulating a candidate costs a second or two of g++, predicting it next to nothing once it is compiled. So all are ranked
first, then verified in the order of the ranking until enough have passed. Failures are stored as they are found; of the
others only those that were verified are: a prediction that nobody verified is not worth a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.backends.model import predict
from tuner.judge import CheckJob, shared_bytes
from tuner.reduced import reduced
from tuner.task import ProblemResult, Task, fastest
from tuner.types import Binary, CacheState, Config, Failure, Measurement, Status
from tuner.verify import Verdict

WINDOW = 16
"""Asked before the first is told: about as many as are tried before the sampler has anything to learn from. Nothing but
compilers is kept busy here, so it is shorter than `candidates.WINDOW`."""

EMULATION_LIMIT_S = 180.0
"""For g++ and one launch on a slow machine."""


def predict_problem(task: Task) -> ProblemResult:
    """Without a GPU: every candidate is compiled and ranked by the model, the best-ranked are verified by emulation.

    Only those that passed are stored as ok; failures are stored as such. A prediction that nobody verified is not.
    """
    rows = task.rows()
    stored = task.stored(rows)
    passed = [row for row in stored.values() if row.ok]
    searched = max((int(row.extra.get("candidates", 0)) for row in passed), default=0)
    complete = searched >= task.settings.trials or any(row.extra.get("all") for row in passed)
    if complete and len(passed) >= task.settings.verify:
        return replace(task.result(fastest(passed), (None, None), stored, 0, "trials"), trials=searched)
    # Only failures are answered by the store: what passed takes part in the ranking again.
    failed = {config: row for config, row in stored.items() if not row.ok}
    search = task.search(rows, known=[row for row in failed.values() if row.seed != task.settings.seed])
    seen, ranked = dict(failed), list[Measurement]()
    cache = task.cache
    with task.candidates(search, failed, window=WINDOW) as candidates:
        for config, compiled in candidates.in_order(task.overdue):
            row = compiled if isinstance(compiled, Measurement) else _predicted(task, config, compiled, cache)
            if row.ok:
                ranked.append(row)
            elif config not in failed:
                task.record(row)
            seen[config] = row
            search.tell(row)
            task.progress.trial(row, search.best, len(seen))
    ranked.sort(key=lambda row: (row.median_us or 0.0, row.config.key))
    rank = {"candidates": len(seen), "all": candidates.ended == "exhausted"}
    verified = _verify_ranked(task, ranked, stored, rank)
    best = fastest(verified)
    seen.update((row.config, row) for row in verified)
    return task.result(best, (None, None), seen, len(seen) - len(failed), candidates.ended)


def _predicted(task: Task, config: Config, compiled: Binary | Failure, cache: CacheState) -> Measurement:
    if isinstance(compiled, Failure):
        return task.row(config, compiled)
    launch, work = task.kernel.launch(task.problem, config), task.kernel.work(task.problem, config)
    prediction = predict(task.device, launch, compiled, work, cache)
    if isinstance(prediction, Failure):
        return task.row(config, prediction, compiled)
    return replace(
        task.row(config, Failure(Status.OK, ""), compiled),
        samples_us=(prediction.us,),
        median_us=prediction.us,
        spread=0.0,
        cache=cache,
        shared_bytes=shared_bytes(task.kernel, task.problem, config, compiled),
        extra={"model": prediction.terms()},
    )


def _verify_ranked(
    task: Task, ranked: list[Measurement], stored: Mapping[Config, Measurement], rank: Mapping[str, Any]
) -> list[Measurement]:
    """Emulate in the order of the ranking until enough have passed; the rows of all that were verified, in that order.

    A configuration that passed in an earlier run is not emulated again, but ranked anew. One that cannot be emulated
    at any size is passed over.
    """
    verified: list[Measurement] = []
    passed = 0
    for place, predicted in enumerate(ranked, 1):
        if passed >= task.settings.verify or (passed and task.overdue()):
            break
        row = replace(predicted, extra={**predicted.extra, **rank, "rank": place})
        before = stored.get(row.config)
        if before is None:
            task.progress.note(f"verifying candidate {place} of {len(ranked)} by emulation")
            seen = _emulated(task, row)
        else:
            seen = _with_verdict_of(row, before)
        if seen is None:
            continue
        if before is None or before.extra != seen.extra:
            task.record(seen)
        verified.append(seen)
        passed += seen.ok
    return verified


def _emulated(task: Task, row: Measurement) -> Measurement | None:
    """`row` with what the emulation says of it, on a smaller problem of the same tails where this one is too large."""
    if not task.kernel.emulates(row.config):
        task.progress.note(f"cannot be emulated, only run on a GPU: {row.config.label}")
        return None
    where = reduced(task.kernel, task.problem, row.config, task.device)
    if where is None:
        task.progress.note(f"{task.problem.shape} is too large to emulate with {row.config.label}")
        return None
    job = CheckJob(task.kernel, where, row.config, task.settings.seed)
    verdict: Verdict | Failure = task.worker.call(job, limit_s=EMULATION_LIMIT_S)
    notes = [verdict.message] if verdict.message else []
    if where != task.problem:
        notes.append(f"verified on {where.shape}, of the same tails: {task.problem.shape} is too large to emulate")
    row = replace(row, status=verdict.status, message="; ".join(notes), extra={**row.extra, "verified_on": where.shape})
    if row.status is not Status.OK:
        row = replace(row, median_us=None, samples_us=(), spread=None)
    if isinstance(verdict, Failure):
        return row
    if verdict.worst is not None:
        row = replace(row, extra={**row.extra, "worst": verdict.worst})
    return replace(row, error=verdict.error, tolerance=verdict.tolerance, verified_by=verdict.verified_by)


def _with_verdict_of(row: Measurement, before: Measurement) -> Measurement:
    kept = {name: value for name, value in before.extra.items() if name in {"verified_on", "worst"}}
    return replace(
        row,
        message=before.message,
        error=before.error,
        tolerance=before.tolerance,
        verified_by=before.verified_by,
        extra={**row.extra, **kept},
    )
