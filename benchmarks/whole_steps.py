"""Where the time of a training step goes that one kernel makes whole: `mlp_resident`, `mlp_streaming`.

    mnist-tune search --shapes mlp --widths 128,1024
    python -m benchmarks.whole_steps --widths 128,1024 --out whole-steps.json

For each width and kernel it takes the fastest configurations that the store has for this GPU, times each over one long
launch, and runs it once more in a build that counts cycles (PROFILE): those of block 0's first thread, by part of the
step. What fails is listed with its reason. Needs a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.common import check_writable, head, script
from kernels.problems import parse_widths
from trainer.mlp import Network
from trainer.plan import Form, whole_step, whole_step_problem
from tuner.backends.cuda import CudaRunner
from tuner.compile import compile_source
from tuner.devices import device_index, resolve
from tuner.errors import UserError
from tuner.judge import CudaWorkplace, Describe
from tuner.kernel import Array
from tuner.store import Store
from tuner.task import Poster
from tuner.types import Binary, Config, Device, Failure, Kind, Problem, Status
from tuner.worker import Worker

JOB_LIMIT_S = 60.0
SAMPLES = 5


@dataclass(frozen=True, slots=True)
class LongRun:
    """Asks for the time of one long launch, and for the cycles of the parts of a step; the answer is a `LongTimes`."""

    problem: Problem
    config: Config
    binary: Binary
    profiled: Binary


@dataclass(frozen=True, slots=True)
class LongTimes:
    """us_per_step: a sample per launch. cycles: per step, of block 0's first thread, by part."""

    us_per_step: tuple[float, ...]
    cycles: dict[str, float]


class Workplace:
    """In the child that owns the GPU: a search's requests, and `LongRun`."""

    def __init__(self, spec: str | None) -> None:
        self._searching = CudaWorkplace(spec)
        device = resolve(spec)
        self._runner = CudaRunner(device, device_index(spec) or 0) if device is not None else None
        self._failed = False

    @property
    def lost(self) -> bool:
        return self._failed or self._searching.lost

    @property
    def spent(self) -> Mapping[str, float]:
        return self._searching.spent

    def handle(self, request: Any) -> Any:
        if not isinstance(request, LongRun):
            return self._searching.handle(request)
        if self._runner is None:
            raise UserError("There is no GPU to time on.")
        import cupy

        try:
            return _long(self._runner, request)
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            self._failed = True
            return Failure(Status.RUNTIME, f"a long launch failed: {error}")


def _long(runner: CudaRunner, request: LongRun) -> LongTimes | Failure:
    import cupy

    problem = request.problem
    kernel = whole_step(problem)
    values = {
        item.name: item.data if isinstance(item, Array) else item.value
        for item in kernel.arguments(problem, request.config, runner.rng(0))
    }
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    samples = []
    for binary, count in ((request.binary, SAMPLES + 1), (request.profiled, 1)):
        prepared = runner.prepare(kernel, problem, request.config, binary)
        if isinstance(prepared, Failure):
            return prepared
        for _ in range(count):
            start.record()
            prepared(tuple(values.values()))
            stop.record()
            stop.synchronize()
            samples.append(1e3 * float(cupy.cuda.get_elapsed_time(start, stop)) / problem["steps"])
    cycles = cupy.asnumpy(values["loss"])[: len(kernel.parts)]
    if int(values["failed"][0]):
        return Failure(Status.RUNTIME, f"a block did not answer in a launch of {problem['steps']} steps")
    return LongTimes(tuple(samples[1 : SAMPLES + 1]), dict(zip(kernel.parts, map(float, cycles), strict=True)))


def fastest(store: Store, problem: Problem, device: Device, count: int) -> list[Config]:
    """The configurations of the fastest rows that were measured for `problem` on `device` with the present source."""
    kernel = whole_step(problem)
    rows = store.observations(problem=problem, device=device, source_hash=kernel.source_hash, kind=Kind.MEASURED)
    timed = [
        (row.measurement.median_us, row.measurement.config)
        for row in rows
        if row.measurement.ok and row.measurement.median_us is not None
    ]
    return list(dict.fromkeys(config for _, config in sorted(timed, key=lambda pair: pair[0])))[:count]


def profile(problem: Problem, config: Config, steps: int, device: Device, worker: Poster) -> dict[str, Any]:
    """What one configuration came to, as plain JSON."""
    kernel = whole_step(problem)
    long = Problem.of(problem.kernel, {**dict(problem.dims), "steps": steps}, dict(problem.options))
    found: dict[str, Any] = {"kernel": kernel.name, "width": problem["width"], "config": dict(config)}
    builds = []
    for extra in ({}, {"PROFILE": 1}):
        built = compile_source(kernel.source, kernel.name, kernel.defines(long, config) | extra, device.arch)
        if isinstance(built, Failure):
            return found | {"status": built.status.value, "message": built.message}
        builds.append(built)
    found |= {"registers": builds[0].registers, "spill_bytes": builds[0].spill_bytes}
    answer = worker.call(LongRun(long, config, *builds))
    if isinstance(answer, Failure):
        return found | {"status": answer.status.value, "message": answer.message}
    return found | {"status": "ok", "steps": steps, **asdict(answer)}


def profiles(
    networks: Sequence[Network], steps: int, best: int, store: Store, device: Device, worker: Poster
) -> Iterator[dict[str, Any]]:
    """The fastest `best` configurations of each network and kernel, over `steps` steps."""
    for network in networks:
        for form in (Form.PERSISTENT, Form.STREAMING):
            problem = whole_step_problem(network, form)
            for config in fastest(store, problem, device, best):
                yield profile(problem, config, steps, device, worker)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line per configuration, and the cycles of its step by part beneath."""
    lines = []
    for row in rows:
        label = " ".join(f"{param}={value}" for param, value in row["config"].items())
        name = f"{row['kernel']} H={row['width']}  {label}"
        if row["status"] != "ok":
            lines.append(f"{name}: {row['status']} {row['message'][:140]}")
            continue
        us = statistics.median(row["us_per_step"])
        parts = ", ".join(f"{part} {cycles:.0f}" for part, cycles in row["cycles"].items() if cycles)
        lines.append(f"{name}: {us:.3f} us per step, {row['registers']} registers")
        lines.append(f"    cycles: {parts} = {sum(row['cycles'].values()):.0f}")
    return "\n".join(lines)


def main() -> int:
    """Profile as the command line says; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="32,64,128,256,512,1024")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000, help="of the long launch")
    parser.add_argument("--best", type=int, default=2, help="configurations of each width and kernel")
    parser.add_argument("--device", default=None)
    parser.add_argument("--db", default=None, help="the store that the search filled")
    parser.add_argument("--out", type=Path, required=True, help="written after each configuration")
    options = parser.parse_args()
    widths = parse_widths(options.widths)
    check_writable(options.out)
    rows: list[dict[str, Any]] = []
    with (
        Worker(functools.partial(Workplace, options.device), limit_s=JOB_LIMIT_S) as worker,
        Store.open(options.db) as store,
    ):
        described = worker.call(Describe())
        if isinstance(described, Failure) or described[0] is None:
            raise UserError("This benchmark times kernels on a GPU, and no GPU is used here; see mnist-tune doctor.")
        device, environment = described
        begins = head("whole_steps", device, environment)
        networks = [Network(width, options.layers, options.batch) for width in widths]
        for row in profiles(networks, options.steps, options.best, store, device, worker):
            rows.append(row)
            options.out.write_text(json.dumps({**begins, "rows": rows}, indent=2) + "\n")
    if not rows:
        raise UserError("The store has no such kernel measured on this GPU; run mnist-tune search first.")
    Console().print(table(rows), highlight=False, markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    script("benchmarks.whole_steps", main)
