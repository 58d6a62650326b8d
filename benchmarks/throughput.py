"""How many new candidates a second a search gets through, end to end: asked, compiled, verified, timed, recorded.

A search of linear_forward 32x1024x1024 with a fresh store and a fresh compile cache, without early stop. Prints where
the time went, writes JSON. Needs a GPU.

    python -m benchmarks.throughput --out benchmarks/throughput-h200.json

With --against-kernel-tuner also the same random search by Kernel Tuner (pip install kernel-tuner), side by side: the
same source, problem, tunables and restrictions, and check of the output. What Kernel Tuner cannot launch is left out
for both: clusters, dependent launches, more than 48 KB of shared memory. It stops at --kernel-tuner-trials candidates
or after --kernel-tuner-limit seconds, whichever is first. The JSON is written after each part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernels
from benchmarks.common import check_writable, head, script
from kernels.linear_forward import LinearForward
from tuner.compile import include_dir
from tuner.errors import UserError
from tuner.kernel import Array, Kernel
from tuner.progress import Silent
from tuner.run import check, workplace
from tuner.space import Constraint, Space
from tuner.spent import CHILD, COMPILERS, PARENT
from tuner.store import Store
from tuner.task import ProblemResult, Settings
from tuner.tune import tune
from tuner.types import Config, Device, Environment, Problem, Value
from tuner.verify import compare

SHAPE = (32, 1024, 1024)
WITHOUT_ASKING = 48 << 10
"""Bytes of dynamic shared memory that a launch has without asking for more, which Kernel Tuner does not."""


class Restricted(LinearForward):
    """`linear_forward` without what Kernel Tuner cannot launch."""

    def space(self, problem: Problem, device: Device) -> Space:
        whole = super().space(problem, device)
        fixed: dict[str, Value] = {"REDUCE": "workspace", "OVERLAP": 0}
        params = tuple(
            replace(param, values=(fixed[param.name],), default=fixed[param.name]) if param.name in fixed else param
            for param in whole.params
        )
        small = Constraint(
            "at most 48 KB of shared memory", lambda config: self._shared_bytes(config) <= WITHOUT_ASKING
        )
        return Space(params, (*whole.constraints, small), whole.also)


@contextmanager
def fresh_caches() -> Iterator[Path]:
    """A folder that is removed afterwards; compiled kernels are kept there meanwhile."""
    with tempfile.TemporaryDirectory(prefix="mnist-tune-throughput-") as folder:
        names = {"MNIST_TUNE_CACHE": f"{folder}/cubin", "CUPY_CACHE_DIR": f"{folder}/cupy"}
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def ours(kernel: Kernel, settings: Settings) -> tuple[ProblemResult, Device, Environment]:
    """The search's result; from the start of its first process to its last row."""
    problem = kernel.problem(*SHAPE)
    with fresh_caches() as folder, Store.open(folder / "throughput.db") as store:
        device, environment, worker = workplace("cuda", settings.limit_s)
        with worker:
            assert device is not None, "a GPU was asked for"
            search = tune(
                (problem,),
                kernels={kernel.name: kernel},
                store=store,
                device=device,
                environment=environment,
                settings=settings,
                progress=Silent(),
                worker=worker,
            )
            started = time.monotonic()
            [result] = search
            return replace(result, seconds=time.monotonic() - started), device, environment


def tunables(kernel: Kernel, problem: Problem, device: Device) -> tuple[dict[str, list[Any]], list[str]]:
    """The space of `Restricted` in Kernel Tuner's terms: parameters with their values, and restrictions as text.

    Kernel Tuner wants the size of a block among the parameters, so it is one, which the others determine.
    """
    params: dict[str, list[Any]] = {param.name: list(param.values) for param in kernel.space(problem, device).params}
    wmma = [shape.split("x") for shape in params.pop("WMMA")]
    params["FRAGMENT_M"], params["FRAGMENT_N"] = (sorted({int(shape[axis]) for shape in wmma}) for axis in (0, 1))
    params["REDUCE_CLUSTER"] = [0 for _ in params.pop("REDUCE")]
    params["block_size_x"] = [32 * warps for warps in range(1, 17)]
    inputs = problem["in_features"]
    tiles = f"(({inputs} + BLOCK_K - 1) // BLOCK_K)"
    ring = "STAGES * 2 * (BLOCK_M * (BLOCK_K + SKEW) + BLOCK_K * (BLOCK_N + SKEW))"
    sums = "WARPS_K * BLOCK_M * (BLOCK_N + 8)"
    restrictions = [
        "FRAGMENT_M * FRAGMENT_N == 256",
        "BLOCK_M % WARP_M == 0",
        "BLOCK_N % WARP_N == 0",
        "WARP_M % FRAGMENT_M == 0",
        "WARP_N % FRAGMENT_N == 0",
        "WARP_M * WARP_N <= 2048",
        "BLOCK_K % (16 * WARPS_K) == 0",
        "block_size_x == 32 * (BLOCK_M // WARP_M) * (BLOCK_N // WARP_N) * WARPS_K",
        f"STAGES <= 2 or STAGES <= {tiles} // SPLIT_K",
        f"SPLIT_K <= {tiles}",
        f"{ring} <= {WITHOUT_ASKING}",
        f"{sums} * 2 <= {WITHOUT_ASKING}",
        f"ACCUMULATOR == 'half' or {sums} * 4 <= {WITHOUT_ASKING}",
    ]
    return params, restrictions


def spelled_out(kernel: Kernel) -> str:
    """The source with `unsigned` as `unsigned int`: Kernel Tuner knows the type of a uint32 array by that name only."""
    return re.sub(r"\bunsigned\*", "unsigned int*", kernel.source.read_text())


def theirs(kernel: LinearForward, device: Device, trials: int, limit_s: float, seed: int) -> dict[str, Any]:
    """Kernel Tuner's random search of the same space: how long it took, and what became of its candidates.

    It looks at the time after each candidate, so the last one may take it beyond `limit_s`.
    """
    import cupy
    import kernel_tuner  # type: ignore[import-not-found,unused-ignore]
    import numpy as np

    problem = kernel.problem(*SHAPE)
    params, restrictions = tunables(kernel, problem, device)
    default = kernel.space(problem, device).default()
    arguments = kernel.arguments(problem, default, np.random.default_rng(seed))
    values = {item.name: item.data if isinstance(item, Array) else item.value for item in arguments}
    reference = kernel.reference(problem, values)["Y"]
    # One size that is enough for every configuration.
    most = max(params["SPLIT_K"]) * problem["batch"] * problem["out_features"]
    values["partial"] = np.zeros(most, np.float32)
    values["arrived"] = np.zeros(math.prod(SHAPE[::2]), np.uint32)
    # Kernel Tuner has one tolerance for all: the loosest that ours has.
    loosest = max(
        kernel.tolerance(problem, Config.of({**default, "ACCUMULATOR": accumulator}))["Y"]
        for accumulator in params["ACCUMULATOR"]
    )

    def verify(_: Any, results: list[Any], atol: float) -> bool:
        found: Any = results[list(values).index("Y")]
        return compare("Y", found, reference, atol, kernel.worst_element).complaint is None

    def shared_bytes(chosen: Mapping[str, Any]) -> int:
        config = Config.of({**{name: chosen[name] for name in default if name in chosen}, "REDUCE": "workspace"})
        return kernel._shared_bytes(config)

    constants = {"BATCH": SHAPE[0], "IN_FEATURES": SHAPE[1], "OUT_FEATURES": SHAPE[2]}
    constants["RELU"] = int(problem.option("activation") == "relu")
    with fresh_caches():
        started = time.perf_counter()
        rows, _ = kernel_tuner.tune_kernel(
            kernel.name,
            spelled_out(kernel),
            lambda chosen: (SHAPE[2], SHAPE[0], chosen["SPLIT_K"]),
            list(values.values()),
            params,
            grid_div_x=["BLOCK_N"],
            grid_div_y=["BLOCK_M"],
            grid_div_z=[],
            restrictions=restrictions,
            answer=[reference if name == "Y" else None for name in values],
            atol=loosest,
            verify=verify,
            lang="CUPY",
            device=cupy.cuda.Device().id,
            smem_args={"size": shared_bytes},
            compiler_options=[
                "--std=c++17",
                "-default-device",
                f"-I{kernel.source.parent}",
                f"-I{include_dir()}",
                *(f"-D{name}={value}" for name, value in constants.items()),
            ],
            strategy="random_sample",
            strategy_options={"max_fevals": trials, "time_limit": limit_s},
            seed=seed,
            quiet=True,
        )
        seconds = time.perf_counter() - started
    right = [row["time"] for row in rows if isinstance(row["time"], int | float)]
    return {
        "version": importlib.metadata.version("kernel-tuner"),
        "candidates": len(rows),
        "right": len(right),
        "best_us": round(1000 * min(right), 3) if right else None,
        "seconds": round(seconds, 3),
        "per_second": round(len(rows) / seconds, 3),
    }


def summary(result: ProblemResult) -> dict[str, Any]:
    return {
        "candidates": result.new,
        "right": result.new - sum(result.failures.values()),
        "best_us": result.best.median_us if result.best else None,
        "seconds": round(result.seconds, 3),
        "per_second": round(result.new / result.seconds, 3),
        "failures": dict(result.failures),
        "spent": dict(result.spent),
    }


def show(document: Mapping[str, Any]) -> None:
    mine = document["ours"]
    spent = mine["spent"]
    print(f"{document['device']}, {document['cores']} cores: {mine['per_second']:.1f} candidates a second")
    print(f"{mine['candidates']} in {mine['seconds']:.1f} s, {mine['failures'] or 'no'} failures")
    for group, phases in (("parent", PARENT), ("compilers", COMPILERS), ("gpu", ("period", "busy", "starved", *CHILD))):
        print(f"{group:10s}" + "".join(f" {phase} {spent[group][phase]:.2f} s " for phase in phases))
    share = spent["gpu"]["share"]
    print(f"GPU's process busy, or nothing queued for it: {share:.1%} of its period" if share is not None else "")
    other = document.get("kernel_tuner")
    if other is not None:
        print("side by side, random search      candidates   seconds   a second   best us")
        for name, row in (("mnist-tune", document["ours_restricted"]), (f"Kernel Tuner {other['version']}", other)):
            best = "-" if row["best_us"] is None else f"{row['best_us']:.3f}"
            print(f"{name:32s} {row['candidates']:10d} {row['seconds']:9.1f} {row['per_second']:10.2f} {best:>9s}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=400, help="of the search (default: %(default)s)")
    parser.add_argument("--sampler", default=Settings().sampler, help="of the search (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--against-kernel-tuner", action="store_true", help="side by side, on a restricted space")
    parser.add_argument("--kernel-tuner-trials", type=int, default=60, help="of each there (default: %(default)s)")
    parser.add_argument(
        "--kernel-tuner-limit", type=float, default=120.0, help="seconds for Kernel Tuner (default: %(default)g)"
    )
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write")
    options = parser.parse_args()
    if options.against_kernel_tuner and importlib.util.find_spec("kernel_tuner") is None:
        raise UserError(
            "Kernel Tuner is not installed; install it with: pip install kernel-tuner, or leave --against-kernel-tuner "
            "out."
        )
    settings = Settings(trials=options.trials, sampler=options.sampler, seed=options.seed, early_stop=False)
    check(settings, [kernels.linear_forward.problem(*SHAPE)])
    check_writable(options.out)
    result, device, environment = ours(kernels.linear_forward, settings)
    document: dict[str, Any] = {
        **head("throughput", device, environment),
        "problem": result.problem.label,
        "cores": os.cpu_count(),
        "sampler": options.sampler,
        "seed": options.seed,
        "ours": summary(result),
    }

    def write() -> None:
        options.out.write_text(json.dumps(document, indent=2) + "\n")

    write()
    if options.against_kernel_tuner:
        restricted = Restricted()
        count, limit_s = options.kernel_tuner_trials, options.kernel_tuner_limit
        mine, _, _ = ours(restricted, replace(settings, trials=count, sampler="random"))
        document["ours_restricted"] = summary(mine)
        write()
        print(f"Kernel Tuner: up to {count} candidates in {limit_s:g} s.", flush=True)
        document["kernel_tuner"] = {**theirs(restricted, device, count, limit_s, options.seed), "limit_s": limit_s}
        write()
    show(document)
    return 0


if __name__ == "__main__":
    script("benchmarks.throughput", main)
