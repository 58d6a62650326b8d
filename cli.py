"""The command line: parse, one call, print. What the commands do lives in `tuner` and `trainer`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from tuner.errors import UserError

# Before anybody imports NumPy: its BLAS shares out even the small matrices of a search over all cores. Where these are
# compiling, its threads wait for each other far longer than they work (a solution for 160 rows on two busy
# cores: 55 ms instead of 5).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class OneSentence(TyperGroup):
    """Says what is wrong with the arguments in one sentence, as the commands do, instead of Typer's usage box."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except Exception as error:
            # Whichever click this Typer brings: its usage errors know how to say what is wrong, nothing else does.
            if not hasattr(error, "format_message"):
                raise
            # Without arguments there is nothing to say: the help has been printed.
            if sentence := error.format_message().rstrip("."):
                _complain(f"{sentence}; see mnist-tune --help.")
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    cls=OneSentence,
    help="A kernel autotuner with a persistent tuning database, and the MNIST trainer that proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Engine(StrEnum):
    """Which form of the training step is run."""

    AUTO = "auto"
    GRAPH = "graph"
    PERSISTENT = "persistent"
    STREAMING = "streaming"


class Sampler(StrEnum):
    """How the search picks the next configuration."""

    GP = "gp"
    TPE = "tpe"
    RANDOM = "random"
    GRID = "grid"
    CMAES = "cmaes"


Database = Annotated[
    str | None,
    typer.Option("--db", help="The store: a file or an SQLAlchemy URL. [default: $MNIST_TUNE_DB, else tuning.db]"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
OnDevice = Annotated[
    str | None,
    typer.Option("--device", help="cuda, cuda:N, or cpu to do without the GPU. [default: the first GPU, if any]"),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Batch = Annotated[int, typer.Option("--batch", help="Images per training step.")]
Layers = Annotated[int, typer.Option("--layers", help="Hidden layers.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the four IDX files, gzipped or not. [default: download, else a sample]"),
]


def _complain(sentence: str) -> None:
    Console(stderr=True).print(f"mnist-tune: {sentence}", markup=False, highlight=False, soft_wrap=True)


def _unheard(code: int = 141) -> int:
    """Let go of an output that cannot be written; the exit code, for a reader that left (`| head`) as in shells."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # what is still buffered must not fail again when Python ends
    os.close(nowhere)
    return code


def _sentence(command: Callable[..., int]) -> Callable[..., None]:
    """Turn the command's return value into the exit code, and a `UserError` into one sentence and exit code 2."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except UserError as error:
            _complain(str(error))
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            _complain("stopped.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise typer.Exit(_unheard()) from None
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _complain("The disk is full; free some space, then run the same command again: what was stored is kept.")
            raise typer.Exit(_unheard(code=2)) from None
        except SystemExit as end:
            # rich ends the process by itself, with a code that would pass for a result of the command.
            if isinstance(end.__context__, BrokenPipeError):
                raise typer.Exit(_unheard()) from None
            raise
        raise typer.Exit(code)

    return run


@app.command()
@_sentence
def search(
    shapes: Annotated[
        str, typer.Option("--shapes", help="mlp, shapes such as 32x784x128 (batch x in x out), or a file of problems.")
    ] = "mlp",
    widths: Annotated[
        str | None,
        typer.Option("--widths", help="Hidden widths of the MLPs, with commas. [default: 128 to 8192, doubling]"),
    ] = None,
    layers: Layers = 3,
    batch: Batch = 32,
    trials: Annotated[int, typer.Option("--trials", help="Configurations to try per problem.")] = 100,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds per problem.")] = None,
    early_stop: Annotated[
        bool,
        typer.Option("--early-stop/--no-early-stop", help="End a problem where more trials gain no more than noise."),
    ] = True,
    seed: Seed = 0,
    sampler: Annotated[Sampler, typer.Option("--sampler", help="How to pick the next configuration.")] = Sampler.GP,
    device: OnDevice = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Without a GPU: what to compile for, as in sm_75.")] = None,
    predict_for: Annotated[
        str, typer.Option("--predict-for", help="Without a GPU: whose times to predict.")
    ] = "Tesla T4",
    db: Database = None,
    as_json: AsJson = False,
) -> int:
    """Tune kernels for matrix shapes: try configurations, keep what was seen, remember the best."""
    import kernels
    from kernels.problems import problems_of, step_bytes_of
    from tuner.run import run_search
    from tuner.store import Store
    from tuner.task import Settings

    settings = Settings(
        trials=trials,
        timeout_s=timeout,
        early_stop=early_stop,
        seed=seed,
        sampler=sampler.value,
        arch=arch,
        predict_for=predict_for,
        step_bytes=step_bytes_of(shapes, widths, layers, batch),
    )
    problems = problems_of(shapes, widths, layers, batch)
    with Store.open(db) as store:
        return run_search(problems, kernels=kernels.ALL, store=store, device=device, settings=settings, as_json=as_json)


@app.command()
@_sentence
def train(
    width: Annotated[int | None, typer.Option("--width", help="Hidden width. [default: 128; 32 without a GPU]")] = None,
    widths: Annotated[
        str | None, typer.Option("--widths", help="Several hidden widths with commas, one after the other.")
    ] = None,
    layers: Layers = 3,
    batch: Batch = 32,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over the images. [default: 10]")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Training steps, instead of epochs. [default without a GPU: 300]")
    ] = None,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of plain SGD.")] = 0.003,
    seed: Seed = 0,
    data: Data = None,
    device: OnDevice = None,
    engine: Annotated[
        Engine,
        typer.Option(
            "--engine",
            help="graph: a CUDA graph of kernels; persistent: one kernel that keeps its weights; "
            "streaming: one through which they stream; auto: as measured.",
        ),
    ] = Engine.AUTO,
    race: Annotated[
        bool, typer.Option("--race/--no-race", help="Race PyTorch afterwards; without a GPU, compare losses with it.")
    ] = True,
    contenders: Annotated[
        str | None,
        typer.Option("--contenders", help="Which PyTorch forms to race, with commas between. [default: all]"),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Samples that each contender gives in the race.")] = 5,
    starts: Annotated[
        int, typer.Option("--starts", help="Contenders that may compile and warm up at once; samples never are.")
    ] = 1,
    cold_starts: Annotated[
        bool, typer.Option("--cold-starts", help="Start each contender with empty compiler caches first, then again.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the results here, after every width; the same command again goes on."),
    ] = None,
    db: Database = None,
    as_json: AsJson = False,
) -> int:
    """Train an MLP on MNIST with the tuned kernels, then race PyTorch from the same weights on the same batches."""
    from trainer.startup import Startup

    startup = Startup.of_process()
    from kernels.problems import parse_widths
    from trainer.plan import Form
    from trainer.schedule import Schedule
    from trainer.settings import TrainSettings
    from trainer.train import run_train

    startup.imported()
    settings = TrainSettings(
        width=width,
        widths=tuple(parse_widths(widths)) if widths is not None else None,
        layers=layers,
        batch=batch,
        epochs=epochs,
        steps=steps,
        lr=lr,
        seed=seed,
        data=data,
        device=device,
        race=race,
        form=Form(engine.value),
        contenders=contenders.split(",") if contenders is not None else None,
        schedule=Schedule(repeats=repeats, longest_sample_s=2.0),
        starts=starts,
        cold_starts=cold_starts,
        out=out,
    )
    return run_train(db, settings, as_json=as_json, console=Console(), startup=startup)


@app.command()
@_sentence
def report(
    device: Annotated[str | None, typer.Option("--device", help="Only devices with this in their name.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page here as well.")] = None,
    markdown: Annotated[bool, typer.Option("--md", help="Print Markdown.")] = False,
    model: Annotated[bool, typer.Option("--model", help="Only how well the model ranks what was measured.")] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> int:
    """What was tuned, how fast, against what."""
    from trainer.report import run_report

    return run_report(db, device=device, html=html, as_json=as_json, markdown=markdown, console=Console(), model=model)


@app.command()
@_sentence
def explain(
    shape: Annotated[
        str, typer.Argument(help="batch x in x out, as in 32x784x128, or a problem as `report` prints it.")
    ],
    device: Annotated[
        str | None,
        typer.Option("--device", help="For which GPU: cuda, cuda:N, or a name such as T4. [default: as train]"),
    ] = None,
    db: Database = None,
    as_json: AsJson = False,
) -> int:
    """Which configuration a lookup serves for a problem, and why no better rung held."""
    from trainer.explain import run_explain

    return run_explain(db, shape, device=device, as_json=as_json, console=Console())


@app.command()
@_sentence
def doctor(data: Data = None, db: Database = None, as_json: AsJson = False) -> int:
    """Look for a GPU, compilers, headers, store and data, and name the command that mends what is missing."""
    from trainer.doctor import run_doctor

    return run_doctor(db, data, as_json, Console())


@app.command()
@_sentence
def selftest(
    device: OnDevice = None,
    limit: Annotated[float, typer.Option("--limit", help="Seconds for one candidate: what the hang costs.")] = 10.0,
    as_json: AsJson = False,
) -> int:
    """Try kernels that hang, crash and lie, and show that each is found out and the next candidate still runs."""
    from tuner.selftest import run_selftest

    return run_selftest(device=device, limit_s=limit, as_json=as_json, console=Console())


if __name__ == "__main__":
    app()
