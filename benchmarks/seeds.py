"""Does a search find the same whatever its seed? The winners of several searches, timed against each other.

Each search starts from an empty store of its own, with the default settings; they share the cache of compiled kernels,
which holds no times. Then the winners are timed in turns in one process. Two agree where the 95% intervals of their
medians overlap, or where they differ by at most 3% of the fastest one's time. Writes JSON and prints a table; exits
with 1 where two do not agree.

    python -m benchmarks.seeds --out benchmarks/seeds-h200.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import kernels
from benchmarks.common import (
    PROBLEM,
    Pool,
    check_writable,
    gpu,
    head,
    one_problem,
    progress_on,
    script,
    timed_together,
    timing_document,
)
from tuner.compile import CompilePool
from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.measure import Timing, median_interval
from tuner.progress import Progress
from tuner.run import check
from tuner.store import Store
from tuner.task import Poster, ProblemResult, Settings
from tuner.tune import tune
from tuner.types import Device, Environment, Problem


def search(
    kernel: Kernel,
    problem: Problem,
    settings: Settings,
    *,
    device: Device,
    environment: Environment,
    worker: Poster,
    progress: Progress,
    pool: Pool,
) -> ProblemResult:
    """One search from an empty store, which is thrown away."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "tuning.db") as store, progress:
        [result] = tune(
            [problem],
            kernels={kernel.name: kernel},
            store=store,
            device=device,
            environment=environment,
            settings=settings,
            progress=progress,
            worker=worker,
            pool=pool(),
        )
    return result


def apart(timings: Sequence[Timing], within: float) -> list[tuple[int, int]]:
    """The pairs that do not agree: their intervals do not overlap, and they differ by more than `within` of the fastest
    of all.
    """
    fastest = min(timing.median_us for timing in timings)
    intervals = [median_interval(timing.samples_us) for timing in timings]
    return [
        (i, j)
        for i, j in itertools.combinations(range(len(timings)), 2)
        if intervals[i][0] > intervals[j][1] or intervals[j][0] > intervals[i][1]
        if abs(timings[i].median_us - timings[j].median_us) > within * fastest
    ]


def retimed(
    kernel: Kernel,
    problem: Problem,
    results: Sequence[ProblemResult],
    *,
    device: Device,
    worker: Poster,
    pool: Pool,
    seed: int = 0,
) -> tuple[Timing, ...]:
    """The winners' times, taken in turns; one that several searches found takes part as often.

    Raises:
        UserError: a search has no winner, or they cannot be timed.
    """
    winners = [result.best for result in results if result.best is not None]
    if len(winners) < len(results):
        without = len(results) - len(winners)
        raise UserError(f"{without} of {len(results)} searches found nothing right; see why with mnist-tune search.")
    cache = winners[0].cache
    assert cache is not None, "who was timed was timed in some state of the cache"
    configs = [winner.config for winner in winners]
    return timed_together(kernel, problem, configs, device=device, cache=cache, seed=seed, worker=worker, pool=pool)


def run_document(seed: int, result: ProblemResult, timing: Timing, fastest_us: float) -> dict[str, Any]:
    """What one search found and stated, and what its winner took against the others."""
    best = result.best
    assert best is not None
    return {
        "seed": seed,
        "config": dict(best.config),
        "stated_us": best.median_us,
        "stated_ci_us": list(best.extra.get("ci_us") or median_interval(best.samples_us)),
        "tied_with": best.extra.get("tied_with", 0),
        "trials": result.trials,
        "ended": result.ended,
        "seconds": round(result.seconds, 1),
        "library_us": result.library_us,
        "products_us": result.products_us,
        "failures": dict(result.failures),
        "retimed": timing_document(timing),
        "over_fastest": round(timing.median_us / fastest_us - 1, 4),
    }


def show(console: Console, runs: Sequence[dict[str, Any]], differing: Sequence[tuple[int, int]], within: float) -> None:
    say = partial(console.print, highlight=False, soft_wrap=True)
    say("seed  stated us            trials  seconds  in turns, us         over fastest  config")
    for run in runs:
        stated, again = run["stated_ci_us"], run["retimed"]
        label = " ".join(f"{name}={value}" for name, value in run["config"].items())
        say(
            f"{run['seed']:4d}  {run['stated_us']:5.3f} ({stated[0]:5.3f}-{stated[1]:5.3f})  {run['trials']:6d}"
            f"  {run['seconds']:7.1f}  {again['us']:5.3f} ({again['ci_us'][0]:5.3f}-{again['ci_us'][1]:5.3f})"
            f"  {run['over_fastest']:12.1%}  {label}"
        )
    if differing:
        pairs = ", ".join(f"{runs[i]['seed']} and {runs[j]['seed']}" for i, j in differing)
        say(f"Neither within their 95% intervals nor within {within:.0%} of each other: seeds {pairs}.")
    else:
        say(f"All {len(runs)} winners are within their 95% intervals of each other, or within {within:.0%}.")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.seeds", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", default=PROBLEM, help="as the tables print it (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="how many searches, with the seeds 0, 1, ... (default: 5)")
    parser.add_argument("--trials", type=int, default=Settings().trials, help="of each search (default: %(default)s)")
    parser.add_argument("--within", type=float, default=0.03, help="share of the fastest (default: %(default)s)")
    parser.add_argument("--device", help="cuda or cuda:N (default: the first GPU)")
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write")
    options = parser.parse_args()
    problem = one_problem(options.problem)
    kernel = kernels.ALL[problem.kernel]
    if options.seeds < 2:
        raise UserError(f"--seeds {options.seeds} leaves nothing to compare; give a number from 2.")
    check(Settings(trials=options.trials), [problem])
    check_writable(options.out)
    console = Console()
    device, environment, worker = gpu(options.device, Settings().limit_s)
    with worker:
        results = []
        for seed in range(options.seeds):
            console.print(f"Search {seed + 1} of {options.seeds}, seed {seed}, on {device.name}.", highlight=False)
            results.append(
                search(
                    kernel,
                    problem,
                    Settings(trials=options.trials, seed=seed),
                    device=device,
                    environment=environment,
                    worker=worker,
                    progress=progress_on(console),
                    pool=CompilePool,
                )
            )
        console.print("Timing the winners in turns.", highlight=False)
        timings = retimed(kernel, problem, results, device=device, worker=worker, pool=CompilePool)
    differing = apart(timings, options.within)
    fastest_us = min(timing.median_us for timing in timings)
    runs = [run_document(seed, *pair, fastest_us) for seed, pair in enumerate(zip(results, timings, strict=True))]
    document = {
        **head("seeds", device, environment),
        "problem": problem.label,
        "cache": timings[0].cache.value,
        "trials": options.trials,
        "stores": "one per search, empty at first; the cache of compiled kernels is shared",
        "within": options.within,
        "runs": runs,
        "seeds_apart": [[i, j] for i, j in differing],
        "agree": not differing,
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    show(console, runs, differing, options.within)
    return 1 if differing else 0


if __name__ == "__main__":
    script("benchmarks.seeds", main)
