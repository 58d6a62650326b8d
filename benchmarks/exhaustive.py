"""Measures every valid configuration of a restricted space, so that searches can be judged by the best there is.

The dull tunables are held to the values that good configurations have (`benchmarks.restricted`), which leaves a space
of some thousands. It is searched in full by the ordinary path (the sampler `grid`, no early stop), into a store of its
own (--db), from which the same command goes on where it was stopped. At the end the fastest are timed once more, in
turns, as the least of thousands of single timings is partly luck: both times are kept. Writes gzipped JSON and prints
the ten fastest; exits with 1 where configurations are missing, after writing what there is.

    python -m benchmarks.exhaustive --db exhaustive.db --timeout 480 --out benchmarks/exhaustive-h200.json.gz

`tests/test_exhaustive_replay.py` replays the file without a GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from benchmarks.restricted import RESTRICTIONS, parse_restriction, restricted
from tuner.compile import CompilePool
from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.measure import Timing, cache_state, median_interval
from tuner.progress import Progress
from tuner.run import check
from tuner.space import Space
from tuner.store import Store
from tuner.task import Poster, Settings
from tuner.tune import tune
from tuner.types import Config, Device, Environment, Kind, Measurement, Problem

COLUMNS = ("status", "us", "low_us", "high_us", "compile_s", "registers", "shared_bytes", "spill_bytes")
"""Of a configuration, after its parameters; the interval is that of the median with 95% confidence."""


def measure(
    kernel: Kernel,
    problem: Problem,
    settings: Settings,
    *,
    store: Store,
    device: Device,
    environment: Environment,
    worker: Poster,
    progress: Progress,
    pool: Pool,
) -> bool:
    """Measure what `store` does not know yet, as far as `settings` allow; False where Ctrl-C ended it."""
    search = tune(
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
    try:
        with progress:
            list(search)
    except KeyboardInterrupt:
        return False
    return True


def single_timings(
    store: Store, kernel: Kernel, problem: Problem, device: Device, space: Space
) -> dict[Config, Measurement]:
    """Every configuration's row of the search; the finalists' second rows are left out."""
    members = set(space)
    rows = store.observations(problem=problem, device=device, source_hash=kernel.source_hash, kind=Kind.MEASURED)
    trials = [row.measurement for row in rows if not row.measurement.finalist]
    return {row.config: row for row in trials if row.config in members}


def fastest(rows: Mapping[Config, Measurement], count: int) -> list[Measurement]:
    right = [row for row in rows.values() if row.ok and row.median_us is not None]
    return sorted(right, key=lambda row: (row.median_us, row.config.key))[:count]


def row_document(row: Measurement, names: Sequence[str]) -> list[Any]:
    """`names` and then `COLUMNS`, as values."""
    low, high = median_interval(row.samples_us) if row.ok else (None, None)
    times = [None if us is None else round(us, 4) for us in (row.median_us, low, high)]
    seconds = None if row.compile_s is None else round(row.compile_s, 2)
    facts = (row.registers, row.shared_bytes, row.spill_bytes)
    return [*(row.config[name] for name in names), row.status.value, *times, seconds, *facts]


def standings(chosen: Sequence[Measurement], timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Those that were timed twice, the fastest of the second time first."""
    both = sorted(zip(chosen, timings, strict=True), key=lambda pair: pair[1].median_us)
    return [
        {"config": dict(row.config), "single_us": round(row.median_us or 0.0, 4), **timing_document(timing)}
        for row, timing in both
    ]


def show(console: Console, document: Mapping[str, Any], count: int = 10) -> None:
    """The fastest, the fixed tunables left out, and what is missing."""
    fixed = [name for name, values in document["restriction"].items() if len(values) == 1]
    console.print("in turns, us         single us  config", highlight=False)
    for entry in document["fastest"][:count]:
        label = " ".join(f"{name}={value}" for name, value in entry["config"].items() if name not in fixed)
        low, high = entry["ci_us"]
        console.print(
            f"{entry['us']:5.3f} ({low:5.3f}-{high:5.3f})  {entry['single_us']:9.3f}  {label}",
            highlight=False,
            soft_wrap=True,
        )
    statuses = ", ".join(f"{count} {status}" for status, count in document["statuses"].items())
    console.print(f"{len(document['configs'])} of {document['valid']} configurations: {statuses}.", highlight=False)
    if document["missing"]:
        console.print(
            f"{document['missing']} are missing; the same command goes on with them.",
            highlight=False,
            soft_wrap=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.exhaustive", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problem", default=PROBLEM, help="as the tables print it (default: %(default)s)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME=VALUE,VALUE",
        help="the values that a tunable keeps; once for each tunable (default: the kernel's entry in restricted.py)",
    )
    parser.add_argument("--least", type=int, default=2000, help="valid configurations to be left (default: 2000)")
    parser.add_argument("--again", type=int, default=30, help="how many of the fastest are timed again (default: 30)")
    parser.add_argument("--timeout", type=float, help="seconds, for all but the second timing")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs and of the order (default: 0)")
    parser.add_argument("--device", help="cuda or cuda:N (default: the first GPU)")
    parser.add_argument("--db", type=Path, required=True, help="a store of its own: made, or gone on with")
    parser.add_argument("--out", type=Path, required=True, help="the .json.gz to write")
    options = parser.parse_args()
    problem = one_problem(options.problem)
    given = parse_restriction(options.only) if options.only else RESTRICTIONS.get(problem.kernel, {})
    kernel = restricted(kernels.ALL[problem.kernel], given)
    settings = Settings(sampler="grid", early_stop=False, seed=options.seed, timeout_s=options.timeout)
    check(settings, [problem])
    if options.again < 2:
        raise UserError(f"--again {options.again} compares nothing; give a number from 2.")
    check_writable(options.out)
    console = Console()
    device, environment, worker = gpu(options.device, settings.limit_s)
    with worker, Store.open(options.db) as store:
        document = run(
            kernel,
            problem,
            settings,
            store=store,
            device=device,
            environment=environment,
            worker=worker,
            pool=CompilePool,
            console=console,
            least=options.least,
            again=options.again,
        )
    document = {
        **head("exhaustive", device, environment),
        "restriction": {name: list(values) for name, values in given.items()},
        **document,
    }
    # mtime 0: the same content gives the same bytes.
    options.out.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0))
    show(console, document)
    return 130 if document["interrupted"] else 1 if document["missing"] else 0


def run(
    kernel: Kernel,
    problem: Problem,
    settings: Settings,
    *,
    store: Store,
    device: Device,
    environment: Environment,
    worker: Poster,
    pool: Pool,
    console: Console,
    least: int,
    again: int,
) -> dict[str, Any]:
    """Measure the whole space and time the fastest again; what the document says of it.

    Raises:
        UserError: the space has fewer than `least` valid configurations, or the fastest cannot be timed together.
    """
    space = kernel.space(problem, device)
    valid = sum(1 for _ in space)
    if valid < least:
        raise UserError(f"The restriction leaves {valid} valid configurations, fewer than {least}; leave more values.")
    console.print(f"Measuring {valid} configurations of {problem.label} on {device.name}.", highlight=False)
    finished = measure(
        kernel,
        problem,
        replace(settings, trials=valid),
        store=store,
        device=device,
        environment=environment,
        worker=worker,
        progress=progress_on(console),
        pool=pool,
    )
    rows = single_timings(store, kernel, problem, device, space)
    chosen = fastest(rows, again)
    timings: Sequence[Timing] = ()
    if finished and chosen:
        console.print(f"Timing the {len(chosen)} fastest in turns.", highlight=False)
        timings = timed_together(
            kernel,
            problem,
            [row.config for row in chosen],
            device=device,
            cache=cache_state(kernel.work(problem, space.default()), device),
            seed=settings.seed,
            worker=worker,
            pool=pool,
        )
    names = [param.name for param in space.params]
    products = [row.median_us for row in store.baselines(device) if row.problem == problem]
    return {
        "kernel": problem.kernel,
        "sizes": [size for _, size in problem.dims],
        "options": dict(problem.options),
        "source_hash": kernel.source_hash,
        "cache": cache_state(kernel.work(problem, space.default()), device).value,
        "seed": settings.seed,
        "products_us": products[-1] if products else None,
        "valid": valid,
        "missing": valid - len(rows),
        "interrupted": not finished,
        "statuses": dict(Counter(row.status.value for row in rows.values())),
        "fastest": standings(chosen, timings) if timings else [],
        "params": names,
        "columns": list(COLUMNS),
        "configs": [row_document(row, names) for row in rows.values()],
    }


if __name__ == "__main__":
    script("benchmarks.exhaustive", main)
