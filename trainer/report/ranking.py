"""The model held to account: how well its predictions rank what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from trainer.report.model import KernelRanking, ProblemRanking
from tuner.backends.model import Prediction, predict
from tuner.kernel import Kernel
from tuner.store import Observation
from tuner.types import Binary, Config, Kind, Measurement, Problem

LEAST_ROWS = 10
"""Measurements of a problem, below which its correlation would say nothing."""
TOP = 10
"""A search that trusted the model would measure about this many of its best guesses."""


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's, of the ranks, where equal values share the mean of theirs.

    None for fewer than two pairs, or where all values of one side are equal.

    Raises:
        ValueError: not as many values on one side as on the other.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values cannot be paired with {len(second)}")
    a, b = _ranks(first), _ranks(second)
    if len(a) < 2:
        return None
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else None


def _ranks(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """From 0; equal values share the mean of their ranks."""
    _, place, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray[tuple[int], np.dtype[np.float64]] = ((2 * ends - counts - 1) / 2)[place.ravel()]
    return means


def rankings(observations: Iterable[Observation], kernels: Mapping[str, Kernel]) -> tuple[KernelRanking, ...]:
    """The correlation per kernel of `observations`, which are one device's; kernels with too few rows are left out.

    A prediction is made anew from what a row says of its binary (registers, shared memory, spills), so the model of
    today is judged. Each configuration counts once, with its latest measurement of the kernel's present source.
    """
    latest: dict[tuple[Problem, Config], tuple[float, float]] = {}
    for observation in observations:
        row = observation.measurement
        kernel = kernels.get(row.problem.kernel)
        if kernel is None or row.kind is not Kind.MEASURED or observation.source_hash != kernel.source_hash:
            continue
        predicted = _predicted(kernel, observation)
        if predicted is not None and row.median_us is not None:
            latest[row.problem, row.config] = (predicted, row.median_us)
        else:
            latest.pop((row.problem, row.config), None)
    pairs: dict[Problem, list[tuple[float, float]]] = {}
    for (problem, _), pair in latest.items():
        pairs.setdefault(problem, []).append(pair)
    found: dict[str, list[tuple[ProblemRanking, list[tuple[float, float]]]]] = {}
    for problem, same in sorted(pairs.items(), key=lambda item: (item[0].kernel, item[0].dims, item[0].options)):
        ranking = _problem(problem, same)
        if ranking is not None:
            found.setdefault(problem.kernel, []).append((ranking, same))
    return tuple(_kernel(name, parts) for name, parts in found.items())


def _predicted(kernel: Kernel, observation: Observation) -> float | None:
    row: Measurement = observation.measurement
    if not row.ok or row.by_library or row.cache is None or row.registers is None or row.shared_bytes is None:
        return None
    launch = kernel.launch(row.problem, row.config)
    static = max(0, row.shared_bytes - launch.shared_bytes)
    binary = Binary(Path(), kernel.name, observation.device.arch, row.registers, static, row.spill_bytes or 0)
    work = kernel.work(row.problem, row.config)
    prediction = predict(observation.device, launch, binary, work, row.cache)
    return prediction.us if isinstance(prediction, Prediction) else None


def _problem(problem: Problem, pairs: Sequence[tuple[float, float]]) -> ProblemRanking | None:
    predicted, measured = zip(*pairs, strict=True)
    correlation = spearman(predicted, measured) if len(pairs) >= LEAST_ROWS else None
    if correlation is None:
        return None
    guessed = [us for _, us in sorted(pairs)[:TOP]]
    return ProblemRanking(
        shape=problem.shape,
        options=" ".join(f"{name}={value}" for name, value in problem.options),
        rows=len(pairs),
        spearman=correlation,
        top_over_best=min(guessed) / min(measured),
        predicted_over_measured=statistics.median(us / seen for us, seen in pairs),
    )


def _kernel(name: str, parts: Sequence[tuple[ProblemRanking, Sequence[tuple[float, float]]]]) -> KernelRanking:
    problems = tuple(ranking for ranking, _ in parts)
    pooled = [pair for _, pairs in parts for pair in pairs]
    each = [ranking.spearman for ranking in problems]
    return KernelRanking(
        kernel=name,
        rows=len(pooled),
        # Each part has a correlation, so both sides of the pool vary.
        pooled=spearman(*zip(*pooled, strict=True)) or 0.0,
        mean=statistics.fmean(each),
        least=min(each),
        problems=problems,
    )
