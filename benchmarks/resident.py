"""How long a training step takes in every configuration of `mlp_resident`, and where the time of the best ones goes.

    python benchmarks/resident.py --widths 32,64,128,256 --out resident.json

For each width it compiles the whole space in a pool, checks every configuration on the GPU against float64, times those
that are right (a launch of 64 steps, as the search does), times the best few again over one long launch, and runs them
once more in a build that counts cycles (PROFILE). What fails is listed with its reason. Needs a GPU.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kernels
from kernels.mlp_resident import PARTS
from kernels.problems import resident_problem
from tuner.backends.cuda import CudaRunner
from tuner.compile import CompilePool, compile_source
from tuner.devices import device_index, resolve
from tuner.errors import UserError
from tuner.judge import CudaWorkplace, Describe, Job, WarmUp
from tuner.kernel import Array
from tuner.types import Binary, CacheState, Config, Device, Failure, Measurement, Problem, Status
from tuner.worker import Worker

WARM_UP_LIMIT_S = 180.0
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

    kernel, problem = kernels.mlp_resident, request.problem
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
    cycles = cupy.asnumpy(values["loss"])[: len(PARTS)]
    if int(values["failed"][0]):
        return Failure(Status.RUNTIME, f"a block did not answer in a launch of {problem['steps']} steps")
    return LongTimes(tuple(samples[1 : SAMPLES + 1]), dict(zip(PARTS, map(float, cycles), strict=True)))


def measure_width(
    width: int, layers: int, batch: int, steps: int, best: int, device: Device, worker: Worker, pool: CompilePool
) -> dict[str, Any]:
    """All that is reported about one width, as plain JSON."""
    kernel, problem = kernels.mlp_resident, resident_problem(width, layers, batch)
    space = list(kernel.space(problem, device))
    compiled = {config: pool.submit(kernel, problem, config, device.arch) for config in space}
    if space:
        worker.call(WarmUp(kernel, problem, space[0], 0), limit_s=WARM_UP_LIMIT_S)
    rows: list[dict[str, Any]] = []
    right: list[tuple[float, Config, Binary]] = []
    for config, future in compiled.items():
        binary = future.result()
        row: dict[str, Any] = {"config": dict(config)}
        rows.append(row)
        if isinstance(binary, Failure):
            row |= {"status": binary.status.value, "message": binary.message}
            continue
        row |= {"registers": binary.registers, "spill_bytes": binary.spill_bytes}
        answer = worker.call(Job(kernel, problem, config, binary, CacheState.HOT, 0))
        row |= {"status": answer.status.value, "message": answer.message}
        if isinstance(answer, Measurement) and answer.ok and answer.median_us is not None:
            us = answer.median_us / problem["steps"]
            row |= {"us_per_step": us, "error": answer.error, "spread": answer.spread}
            right.append((us, config, binary))
            print(f"  H={width} {config.label}: {us:.3f} us", flush=True)
        else:
            print(f"  H={width} {config.label}: {answer.status.value} {answer.message}", flush=True)
    long = resident_problem(width, layers, batch, steps)
    finals = []
    for _, config, _ in sorted(right, key=lambda item: item[0])[:best]:
        finals.append(_final(long, config, device, worker))
    return {"width": width, "configurations": rows, "long": finals}


def _final(problem: Problem, config: Config, device: Device, worker: Worker) -> dict[str, Any]:
    kernel = kernels.mlp_resident
    builds = []
    for extra in ({}, {"PROFILE": 1}):
        built = compile_source(kernel.source, kernel.name, kernel.defines(problem, config) | extra, device.arch)
        if isinstance(built, Failure):
            return {"config": dict(config), "status": built.status.value, "message": built.message}
        builds.append(built)
    answer = worker.call(LongRun(problem, config, *builds))
    if isinstance(answer, Failure):
        return {"config": dict(config), "status": answer.status.value, "message": answer.message}
    return {"config": dict(config), "status": "ok", "steps": problem["steps"], **asdict(answer)}


def table(widths: Sequence[dict[str, Any]]) -> str:
    """The compact summary: for each width the fastest configurations, and the cycles of a step by part."""
    lines = []
    for found in widths:
        rows = found["configurations"]
        right = sorted((row for row in rows if "us_per_step" in row), key=lambda row: row["us_per_step"])
        lines.append(f"H={found['width']}: {len(right)} of {len(rows)} configurations are right")
        for row in right[:6]:
            lines.append(f"  {row['us_per_step']:7.3f} us  {_label(row)}  {row['registers']} registers")
        for row in found["long"]:
            if row["status"] != "ok":
                lines.append(f"  long: {_label(row)}: {row['status']} {row['message']}")
                continue
            us = statistics.median(row["us_per_step"])
            parts = " ".join(f"{name} {cycles:.0f}" for name, cycles in row["cycles"].items() if cycles)
            lines.append(f"  {us:7.3f} us  {_label(row)}  over {row['steps']} steps")
            lines.append(f"           cycles: {parts} = {sum(row['cycles'].values()):.0f}")
        failures = [row for row in rows if "us_per_step" not in row]
        for row in failures:
            lines.append(f"  {row['status']}: {_label(row)}: {row['message'][:140]}")
    return "\n".join(lines)


def _label(row: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in row["config"].items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="32,64,128,256")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000, help="of the long launch")
    parser.add_argument("--best", type=int, default=2, help="configurations that are timed again over a long launch")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args()
    found: list[dict[str, Any]] = []
    with Worker(functools.partial(Workplace, chosen.device), limit_s=JOB_LIMIT_S) as worker, CompilePool() as pool:
        described = worker.call(Describe())
        if isinstance(described, Failure) or described[0] is None:
            raise SystemExit("resident.py: there is no GPU to time on.")
        device, environment = described
        document = {"device": asdict(device), "environment": asdict(environment), "widths": found}
        for width in map(int, chosen.widths.split(",")):
            found.append(
                measure_width(width, chosen.layers, chosen.batch, chosen.steps, chosen.best, device, worker, pool)
            )
            if chosen.out is not None:
                chosen.out.write_text(json.dumps(document, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
