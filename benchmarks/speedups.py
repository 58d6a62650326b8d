"""What tuning is worth against cuBLAS, problem by problem: a table out of the store.

Each problem of the MLPs that has matrix products is compared, as it is served, with cuBLAS doing the products alone and
with cuBLAS and one element-wise kernel doing all that the fused kernel does (the library's way, which is a candidate
like any other). Needs no GPU. Exits with 1 unless

- the geometric mean of the speed-ups over the library's way is at least 1.5;
- no problem is served slower than the library's way does it, by more than their 95% intervals;
- the forward product of every H x H layer, by our own kernel, is at least 0.9 times as fast as cuBLAS's product;
- all of them were measured, and what is compared was measured in one session: the same host and software, and not many
  hours apart.

    python -m benchmarks.speedups --out benchmarks/speedups-h200.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import kernels
from benchmarks.common import check_writable, head, script
from kernels.problems import WIDTHS, mlp_problems, parse_widths
from tuner.errors import UserError
from tuner.measure import median_interval
from tuner.store import BaselineRow, Observation, Rung, Store
from tuner.types import Device, Kind, Problem

FORWARD = kernels.linear_forward
MOST_NAMED = 6
"""Problems that a sentence names; the document has them all."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store has of one problem on one device; None for what it does not have. Times are us."""

    problem: Problem
    served: Observation | None
    """What a lookup serves, where it was measured for this very problem."""
    own: Observation | None
    """The best that is a kernel of ours."""
    library: Observation | None
    """The library's way."""
    products: BaselineRow | None
    """The library's products alone, the inputs in the same state of the cache."""

    @property
    def speedup(self) -> float | None:
        """The library's way over what is served."""
        return _ratio(_us(self.library), _us(self.served))

    @property
    def products_ratio(self) -> float | None:
        """The library's products alone over what is served."""
        return _ratio(_us(self.products), _us(self.served))

    @property
    def bare_ratio(self) -> float | None:
        """The library's products alone over the best kernel of ours."""
        return _ratio(_us(self.products), _us(self.own))

    @property
    def slower(self) -> bool:
        """Whether what is served is slower than the library's way, and their intervals do not overlap."""
        if self.served is None or self.library is None:
            return False
        ours, theirs = (median_interval(row.measurement.samples_us) for row in (self.served, self.library))
        return ours[0] > theirs[1]

    def of_one_session(self, apart: timedelta) -> bool:
        """Whether what is compared was measured with one host and software, within `apart`."""
        rows = [row for row in (self.served, self.own, self.library, self.products) if row is not None]
        times = [row.created_at for row in rows]
        return len({row.environment for row in rows}) < 2 and (not times or max(times) - min(times) <= apart)

    def document(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "problem": self.problem.label,
            "served_us": _us(self.served),
            "served_ci_us": _interval(self.served),
            "served_by": None if self.served is None else _maker(self.served),
            "config": None if self.served is None else dict(self.served.measurement.config),
            "own_us": _us(self.own),
            "products_us": _us(self.products),
            "library_us": _us(self.library),
            "library_ci_us": _interval(self.library),
            "products_ratio": self.products_ratio,
            "speedup": self.speedup,
            "cache": self.served.measurement.cache if self.served else None,
        }


def _us(row: Observation | BaselineRow | None) -> float | None:
    if isinstance(row, Observation):
        return row.measurement.median_us
    return None if row is None else row.median_us


def _interval(row: Observation | None) -> list[float] | None:
    return None if row is None else list(median_interval(row.measurement.samples_us))


def _maker(row: Observation) -> str:
    return "cuBLAS" if row.measurement.by_library else "ours"


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs is not None and ours is not None else None


def standing(store: Store, device: Device, problem: Problem, baselines: Sequence[BaselineRow]) -> Standing:
    """What `store` has of `problem` on `device`, of the kernel's present source."""
    kernel = kernels.ALL[problem.kernel]
    match = store.lookup(kernel, problem, device)
    served = match.observation if match.rung is Rung.EXACT else None
    rows = store.observations(problem=problem, device=device, source_hash=kernel.source_hash, kind=Kind.MEASURED)
    latest = {row.measurement.config: row for row in rows}
    right = [row for row in latest.values() if row.measurement.ok and row.measurement.samples_us]
    cache = served.measurement.cache if served else None
    # The source of the library's way is not the kernel's: its configuration names it.
    current = {*kernel.also()}
    library = [row for row in right if row.measurement.config in current and row.measurement.cache is cache]
    products = [row for row in baselines if row.problem == problem and row.cache is cache]
    return Standing(
        problem,
        served,
        min((row for row in right if not row.measurement.by_library), key=_place, default=None),
        library[0] if library else None,
        products[-1] if products else None,
    )


def _place(row: Observation) -> tuple[float, int, str]:
    return row.measurement.standing


def fused_problems(widths: Iterable[int], layers: int, batch: int) -> list[Problem]:
    """Those of the MLPs that a library has products for."""
    problems = [problem for width in widths for problem in mlp_problems(width, layers, batch)]
    return [problem for problem in dict.fromkeys(problems) if kernels.ALL[problem.kernel].library(problem)]


def bare(width: int, batch: int, standing_of: Callable[[Problem], Standing]) -> Standing:
    """The forward product of an H x H layer; without the activation where that was measured, else with it, which is
    more work.
    """
    plain, hidden = (standing_of(FORWARD.problem(batch, width, width, activation=name)) for name in ("none", "relu"))
    return plain if plain.own is not None and plain.products is not None else hidden


def judged(
    standings: Sequence[Standing],
    squares: Mapping[int, Standing],
    *,
    mean: float,
    bare_ratio: float,
    apart: timedelta,
) -> dict[str, Any]:
    """The criterion, part by part, and whether all of it holds; plain JSON."""
    speedups = [one.speedup for one in standings if one.speedup is not None]
    reached = statistics.geometric_mean(speedups) if speedups else None
    found: dict[str, Any] = {
        "geometric_mean": reached,
        "geometric_mean_at_least": mean,
        "bare_at_least": bare_ratio,
        "served_by_library": [one.problem.label for one in standings if one.served and _maker(one.served) == "cuBLAS"],
        "served_slower": [one.problem.label for one in standings if one.slower],
        "not_measured": [one.problem.label for one in standings if one.speedup is None or one.products is None],
        "bare": {str(width): square.bare_ratio for width, square in squares.items()},
        "bare_problems": {str(width): square.problem.label for width, square in squares.items()},
        "bare_too_slow": [
            width for width, square in squares.items() if square.bare_ratio is None or square.bare_ratio < bare_ratio
        ],
        "not_one_session": list(
            dict.fromkeys(one.problem.label for one in (*standings, *squares.values()) if not one.of_one_session(apart))
        ),
    }
    bad = ("served_slower", "not_measured", "bare_too_slow", "not_one_session")
    return {**found, "holds": reached is not None and reached >= mean and not any(found[name] for name in bad)}


def measured_device(store: Store, wanted: str | None) -> Device:
    """The device with measured rows that has `wanted` in its name, or the only one there is.

    Raises:
        UserError: there is none, or there are several.
    """
    measured = {row.device.key: row.device for row in store.observations(kind=Kind.MEASURED)}
    fits = [device for device in measured.values() if wanted is None or wanted.lower() in device.name.lower()]
    if len(fits) != 1:
        names = ", ".join(device.key for device in measured.values()) or "none"
        raise UserError(f"{len(fits)} devices fit; name one with --device of those measured in the store: {names}.")
    return fits[0]


def show(console: Console, standings: Sequence[Standing], verdict: Mapping[str, Any]) -> None:
    say = partial(console.print, highlight=False, soft_wrap=True)
    width = max(len(one.problem.label) for one in standings)
    say(f"{'problem':{width}}  served us  by      products us  ratio  library us  ratio")
    for one in standings:
        cells = (_number(_us(one.products)), _number(one.products_ratio), _number(_us(one.library)))
        maker = _maker(one.served) if one.served else "-"
        say(
            f"{one.problem.label:{width}}  {_number(_us(one.served)):>9}  {maker:6}  {cells[0]:>11}  {cells[1]:>5}"
            f"  {cells[2]:>10}  {_number(one.speedup):>5}"
        )
    say(f"Geometric mean over the library's way: {_number(verdict['geometric_mean'])}.")
    squares = ", ".join(f"{width} {_number(ratio)}" for width, ratio in verdict["bare"].items())
    say(f"Bare products of H x H, cuBLAS's time over ours: {squares}.")
    for key, sentence in _FAULTS.items():
        if verdict[key]:
            named, more = verdict[key][:MOST_NAMED], len(verdict[key]) - MOST_NAMED
            say(f"{sentence}: {', '.join(map(str, named))}{f' and {more} more' if more > 0 else ''}.")
    say("The criterion holds." if verdict["holds"] else "The criterion does not hold.")


_FAULTS = {
    "served_by_library": "Served by cuBLAS, which was faster",
    "served_slower": "Served slower than the library's way",
    "not_measured": "Not measured, or without the library's times",
    "bare_too_slow": "Bare product too slow, or not measured, at H",
    "not_one_session": "Compared across sessions",
}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.speedups", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--db", help="the store (default: $MNIST_TUNE_DB, else tuning.db)")
    parser.add_argument("--device", help="part of the name of one (default: the only one that was measured)")
    parser.add_argument("--widths", default=WIDTHS, help="hidden widths (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="hidden layers (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images per step (default: %(default)s)")
    parser.add_argument("--mean", type=float, default=1.5, help="the geometric mean's least (default: %(default)s)")
    parser.add_argument("--bare", type=float, default=0.9, help="the bare products' least ratio (default: %(default)s)")
    parser.add_argument("--hours", type=float, default=12.0, help="how long a session may be (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="the JSON to write")
    options = parser.parse_args()
    widths = parse_widths(options.widths)
    problems = fused_problems(widths, options.layers, options.batch)
    if options.out is not None:
        check_writable(options.out)
    with Store.open(options.db) as store:
        device = measured_device(store, options.device)
        look = partial(standing, store, device, baselines=store.baselines(device))
        standings = [look(problem) for problem in problems]
        squares = {width: bare(width, options.batch, look) for width in widths}
    served = [one.served for one in standings if one.served is not None]
    if not served:
        raise UserError(f"No such problem was measured on {device.name}; run mnist-tune search --shapes mlp there.")
    verdict = judged(
        standings, squares, mean=options.mean, bare_ratio=options.bare, apart=timedelta(hours=options.hours)
    )
    if options.out is not None:
        document = {
            **head("speedups", device, served[-1].environment),
            **verdict,
            "problems": [one.document() for one in standings],
        }
        options.out.write_text(json.dumps(document, indent=2) + "\n")
    show(Console(), standings, verdict)
    return 0 if verdict["holds"] else 1


if __name__ == "__main__":
    script("benchmarks.speedups", main)
