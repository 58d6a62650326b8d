"""What the benchmark scripts share: the GPU, one problem, a document's head, and timing configurations in turns."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from kernels.problems import parse_problems
from tuner.candidates import Compiler, outcome
from tuner.errors import UserError
from tuner.finals import LIMIT_S
from tuner.judge import FinalsJob
from tuner.kernel import Kernel
from tuner.measure import Timing, median_interval
from tuner.progress import Live, Plain, Progress
from tuner.run import workplace
from tuner.task import Poster
from tuner.types import CacheState, Config, Device, Environment, Failure, Problem
from tuner.worker import Worker

PROBLEM = "linear_forward 32x1024x1024 activation=relu"
"""What is searched unless told: a hidden layer of the width in the middle of those that are tuned."""

Pool = Callable[[], AbstractContextManager[Compiler]]
"""Makes whoever compiles: `tuner.compile.CompilePool`."""


def gpu(spec: str | None, limit_s: float) -> tuple[Device, Environment, Worker]:
    """The GPU that `--device` names, its environment, and a worker for it; `limit_s` seconds for a candidate.

    Raises:
        UserError: there is no such GPU, or none at all.
    """
    device, environment, worker = workplace(spec, limit_s)
    if device is None:
        worker.close()
        raise UserError("This benchmark times kernels on a GPU, and no GPU is used here; see mnist-tune doctor.")
    return device, environment, worker


def one_problem(text: str) -> Problem:
    """The problem that `text` names, as tables print it.

    Raises:
        UserError: it names none, or several (a mere shape means a forward and a backward problem).
    """
    problems = parse_problems(text)
    if len(problems) != 1:
        raise UserError(f"{text!r} means {len(problems)} problems; name one, for example {PROBLEM!r}.")
    return problems[0]


def check_writable(path: Path) -> None:
    """To be asked before long work that ends in `path`.

    Raises:
        UserError: its folder is not there.
    """
    if not path.resolve().parent.is_dir():
        raise UserError(f"The folder of --out {path} does not exist; make it, or name another file.")


def head(script: str, device: Device, environment: Environment) -> dict[str, Any]:
    """How a document begins: where, with what, by which command and when it was made."""
    return {
        "device": device.name,
        "device_key": device.key,
        "versions": asdict(environment),
        "command": shlex.join(["python", "-m", f"benchmarks.{script}", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def progress_on(console: Console) -> Progress:
    """Bars on a terminal, a line now and then elsewhere."""
    return Live(console) if console.is_terminal else Plain(console)


def timed_together(
    kernel: Kernel,
    problem: Problem,
    configs: Sequence[Config],
    *,
    device: Device,
    cache: CacheState,
    seed: int,
    worker: Poster,
    pool: Pool,
) -> tuple[Timing, ...]:
    """The times of `configs`, which were right before, taken in turns in one process.

    Raises:
        UserError: one does not compile any more, or they cannot be timed.
    """
    with pool() as compiler:
        jobs = [compiler.submit(kernel, problem, config, device.arch) for config in configs]
        binaries = [outcome(job) for job in jobs]
    contestants = []
    for config, binary in zip(configs, binaries, strict=True):
        if isinstance(binary, Failure):
            raise UserError(f"{config.label} was right and does not compile now ({binary.message}); run this again.")
        contestants.append((config, binary))
    answer: tuple[Timing, ...] | Failure = worker.call(
        FinalsJob(kernel, problem, tuple(contestants), cache, seed), limit_s=LIMIT_S
    )
    if isinstance(answer, Failure):
        raise UserError(f"{len(contestants)} configurations could not be timed together ({answer.message}); try again.")
    return answer


def timing_document(timing: Timing) -> dict[str, Any]:
    """Plain JSON; times in us, the interval that of the median with 95% confidence."""
    return {
        "us": round(timing.median_us, 4),
        "ci_us": [round(end, 4) for end in median_interval(timing.samples_us)],
        "samples_us": [round(sample, 4) for sample in timing.samples_us],
    }


def script(name: str, main: Callable[[], int]) -> NoReturn:
    """Run a script's `main` and exit with its code; 2 and one sentence for what the user can mend, 130 for Ctrl-C."""
    try:
        code = main()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print(f"{name}: stopped.", file=sys.stderr)
        code = 130
    sys.exit(code)
