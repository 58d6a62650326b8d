"""How near do searches come to the best of what was measured? Replayed on every problem of a store, without a GPU.

What the store holds of a problem on a device is taken for its whole space: a table of configurations and times. Each
sampler searches a part of it, with the kernel's default and the model's best guesses first, as `tune` does, and with
several configurations under way. It is judged by the best of its finalists. **A replay, not a measurement**: the tables
are what earlier searches tried, so they hold more good configurations than a space does, which favours all samplers,
and random search most. Writes JSON and prints a table; exits with 1 where a winner of `gp` is further from the best
than --within.

    python -m benchmarks.replays --out benchmarks/replays-h200.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import kernels
from benchmarks.common import check_writable, script
from tuner.errors import UserError
from tuner.finals import finalists
from tuner.guesses import best_guesses, expectation
from tuner.kernel import Kernel
from tuner.search import Search
from tuner.space import Constraint, Space
from tuner.store import Store
from tuner.types import CacheState, Config, Device, Kind, Measurement, Problem

SAMPLERS = ("gp", "tpe", "random")
LEAST = 60
"""Right configurations that a table must have."""
UNDER_WAY = 8
"""Asked before the first is told; the windows of real searches are of the size of these tables."""


@dataclass(frozen=True, slots=True)
class Measured(Space):
    """The part of a space that was measured."""

    measured: tuple[Config, ...] = ()

    def __iter__(self) -> Iterator[Config]:
        return iter(self.measured)


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of a problem; `true_us` against the other fast ones where it took part there, else its trial's."""

    kernel: Kernel
    problem: Problem
    device: Device
    cache: CacheState
    rows: Mapping[Config, Measurement]
    true_us: Mapping[Config, float]

    @property
    def best_us(self) -> float:
        return min(self.true_us.values())

    @property
    def space(self) -> Measured:
        whole = self.kernel.space(self.problem, self.device)
        rule = Constraint("it was not measured", self.rows.__contains__)
        return Measured(whole.params, (rule,), measured=tuple(self.rows))


def tables(store: Store, declared: Mapping[str, Kernel], least: int = LEAST) -> list[Table]:
    """Every problem of the store with enough right configurations of the kernel's present source."""
    found: dict[tuple[Problem, Device], dict[Config, list[Measurement]]] = {}
    for name, kernel in declared.items():
        for seen in store.observations(kernel=name, source_hash=kernel.source_hash, kind=Kind.MEASURED):
            row = seen.measurement
            if not row.by_library:
                found.setdefault((row.problem, seen.device), {}).setdefault(row.config, []).append(row)
    made = [_table(declared[problem.kernel], problem, device, rows) for (problem, device), rows in found.items()]
    return [table for table in made if len(table.true_us) >= least]


def _table(kernel: Kernel, problem: Problem, device: Device, seen: Mapping[Config, Sequence[Measurement]]) -> Table:
    space = kernel.space(problem, device)
    rows = {config: each for config, each in seen.items() if config in space}
    trials = {config: next((row for row in each if not row.finalist), each[0]) for config, each in rows.items()}
    times = {config: each[-1].median_us for config, each in rows.items() if each[-1].ok}
    caches = [row.cache for row in trials.values() if row.cache is not None]
    cache = caches[-1] if caches else CacheState.HOT
    true_us = {config: us for config, us in times.items() if us is not None}
    return Table(kernel, problem, device, cache, trials, true_us)


def searched(table: Table, sampler: str, seed: int, trials: int) -> list[Measurement]:
    """The rows that a search of `trials` is told, in the order of asking."""
    space = table.space
    expected = expectation(table.kernel, table.problem, table.device, table.cache)
    default = table.kernel.space(table.problem, table.device).default()
    search = Search(space, sampler=sampler, seed=seed, first=[default], expected=expected)
    search.prefer(best_guesses(expected, search.sample(len(table.rows))))
    waiting: deque[Config] = deque()
    told: list[Measurement] = []

    def tell() -> None:
        told.append(table.rows[waiting.popleft()])
        search.tell(told[-1])

    for _ in range(trials):
        config = search.ask()
        if config is None:
            break
        waiting.append(config)
        if len(waiting) == UNDER_WAY:
            tell()
    while waiting:
        tell()
    return told


def cost(table: Table, rows: Sequence[Measurement]) -> float:
    """How much more than the best of the table the best finalist takes: 0.03 is 3%."""
    times = [table.true_us[row.config] for row in finalists(rows) if row.config in table.true_us]
    return min(times) / table.best_us - 1


def study(table: Table, samplers: Sequence[str], seeds: int, share: float) -> dict[str, Any]:
    """Plain JSON of one table."""
    trials = max(2 * UNDER_WAY, round(share * len(table.rows)))
    found = {
        sampler: [round(cost(table, searched(table, sampler, seed, trials)), 4) for seed in range(seeds)]
        for sampler in samplers
    }
    return {
        "problem": table.problem.label,
        "device": table.device.name,
        "configurations": len(table.rows),
        "trials": trials,
        "best_us": round(table.best_us, 4),
        "over_best": found,
    }


def summary(studies: Sequence[Mapping[str, Any]], samplers: Sequence[str], within: float) -> dict[str, Any]:
    """By sampler, over all problems and seeds."""
    found = {}
    for sampler in samplers:
        costs = [cost for each in studies for cost in each["over_best"][sampler]]
        found[sampler] = {
            "mean": round(statistics.fmean(costs), 4),
            "most": max(costs),
            "within": round(sum(cost <= within for cost in costs) / len(costs), 4),
            "problems_with_all_within": sum(max(each["over_best"][sampler]) <= within for each in studies),
        }
    return found


def show(console: Console, studies: Sequence[Mapping[str, Any]], totals: Mapping[str, Any], within: float) -> None:
    say = partial(console.print, highlight=False, soft_wrap=True)
    say(f"{'mean, and most, over the best':52s}" + "".join(f"{sampler:>18s}" for sampler in totals))
    for each in studies:
        cells = (each["over_best"][sampler] for sampler in totals)
        row = "".join(f"{statistics.fmean(costs):9.1%} {max(costs):8.1%}" for costs in cells)
        say(f"{each['problem']:42s} {each['trials']:4d}/{each['configurations']:<4d}{row}")
    for sampler, total in totals.items():
        all_within = total["problems_with_all_within"]
        say(
            f"{sampler}: {total['mean']:.2%} on the mean, {total['most']:.1%} at most; {total['within']:.1%} of winners"
            f" within {within:.0%} of the best, every seed's of {all_within} problems in {len(studies)}."
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.replays", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", type=Path, default=Path("tuning.db"), help="the store (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="the seeds 0, 1, ... (default: %(default)s)")
    parser.add_argument("--share", type=float, default=1 / 3, help="of a table that is tried (default: a third)")
    parser.add_argument(
        "--least", type=int, default=LEAST, help="right configurations of a table (default: %(default)s)"
    )
    parser.add_argument("--within", type=float, default=0.03, help="share of the best (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write")
    options = parser.parse_args()
    check_writable(options.out)
    if not options.db.is_file():
        raise UserError(f"There is no store {options.db}; name one with --db.")
    with Store.open(options.db) as store:
        chosen = tables(store, kernels.ALL, options.least)
    if not chosen:
        raise UserError(f"{options.db} has no problem with {options.least} right configurations; search some first.")
    chosen.sort(key=lambda table: (table.problem.kernel, table.problem.dims))
    console = Console()
    studies = []
    for table in chosen:
        studies.append(study(table, SAMPLERS, options.seeds, options.share))
        console.print(f"{len(studies)} of {len(chosen)}: {table.problem.label}", highlight=False)
    totals = summary(studies, SAMPLERS, options.within)
    document = {
        "what": "replays of what was measured, no measurement: each table is searched as if it were the whole space",
        "command": " ".join(["python", "-m", "benchmarks.replays", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": options.seeds,
        "under_way": UNDER_WAY,
        "within": options.within,
        "summary": totals,
        "problems": studies,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    show(console, studies, totals, options.within)
    return 0 if totals["gp"]["most"] <= options.within else 1


if __name__ == "__main__":
    script("benchmarks.replays", main)
