"""Which problems there are to tune: those of an MLP, and those that a user writes down."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import kernels
from tuner.devices import KNOWN
from tuner.errors import UserError
from tuner.types import Problem

PIXELS, CLASSES = 784, 10
STEPS_PER_GRAPH = 50
"""Training steps that one CUDA graph replays: the host launches once a millisecond or so, and is out of the loop."""

STEPS_PER_LAUNCH = 64
"""Training steps of a kernel that makes whole steps while it is tuned: enough that its start weighs little."""

STREAMED_FROM = 256
"""Narrower networks' weights are kept on every GPU that we know; there streaming them has no chance."""

LARGEST_SIZE = 1 << 20
WIDEST = 1 << 15
MOST_LAYERS = 16
LARGEST_BATCH = 1 << 12


def layer_sizes(width: int, layers: int) -> list[int]:
    """Features along the network 784-H-...-H-10 with `layers` hidden layers of `width`.

    Raises:
        UserError: a width, or a number of layers, that no network has.
    """
    for name, count, most in (("width", width, WIDEST), ("number of hidden layers", layers, MOST_LAYERS)):
        if not 1 <= count <= most:
            raise UserError(f"The {name} is {count}; give a whole number from 1 to {most}.")
    return [PIXELS, *[width] * layers, CLASSES]


def forward_problems(width: int, layers: int, batch: int) -> list[Problem]:
    """One problem per layer, from the input to the logits (no activation)."""
    sizes = layer_sizes(width, layers)
    return [
        kernels.linear_forward.problem(batch, sizes[i], sizes[i + 1], activation="relu" if i < layers else "none")
        for i in range(layers + 1)
    ]


def backward_problems(width: int, layers: int, batch: int) -> list[Problem]:
    """One problem per layer, from the input (no dX) to the logits."""
    sizes = layer_sizes(width, layers)
    return [
        kernels.linear_backward.problem(batch, sizes[i], sizes[i + 1], dx="relu" if i else "none")
        for i in range(layers + 1)
    ]


def loss_problem(batch: int) -> Problem:
    return kernels.softmax_cross_entropy.problem(batch, CLASSES)


def gather_problem(batch: int, steps: int = STEPS_PER_GRAPH) -> Problem:
    return kernels.gather_rows.problem(batch, PIXELS, steps)


def resident_problem(width: int, layers: int, batch: int, steps: int = STEPS_PER_LAUNCH) -> Problem:
    """The whole step as one kernel that keeps its weights."""
    return kernels.mlp_resident.problem(batch, PIXELS, width, layers, CLASSES, steps)


def streaming_problem(width: int, layers: int, batch: int, steps: int = STEPS_PER_LAUNCH) -> Problem:
    """The whole step as one kernel through which the weights stream."""
    return kernels.mlp_streaming.problem(batch, PIXELS, width, layers, CLASSES, steps)


def mlp_problems(width: int, layers: int, batch: int) -> list[Problem]:
    """Every distinct problem of one training step of 784-H-...-H-10, in the order of the step.

    The last are the whole step as one problem: by the resident kernel where a GPU that we know can keep such a
    network's weights, and by the streaming one from `STREAMED_FROM` on.

    Raises:
        UserError: a width, depth or batch that no network has.
    """
    if not 1 <= batch <= LARGEST_BATCH:
        raise UserError(f"The batch is {batch}; give a whole number from 1 to {LARGEST_BATCH}.")
    backward = reversed(backward_problems(width, layers, batch))
    everything = [gather_problem(batch), *forward_problems(width, layers, batch), loss_problem(batch), *backward]
    whole = [resident_problem(width, layers, batch)]
    if width >= STREAMED_FROM:
        whole.append(streaming_problem(width, layers, batch))
    for problem in whole:
        kernel = kernels.ALL[problem.kernel]
        if any(next(iter(kernel.space(problem, gpu)), None) is not None for gpu in KNOWN.values()):
            everything.append(problem)
    return list(dict.fromkeys(everything))


WIDTHS = "128,256,512,1024,2048,4096,8192"
"""Those of the story."""


def problems_of(shapes: str, widths: str | None, layers: int, batch: int) -> list[Problem]:
    """The problems that `--shapes` means: those of the MLPs of all `widths` (`mlp`), of shapes, or of a file.

    Raises:
        UserError: something in it is not what it should be.
    """
    if shapes != "mlp":
        if widths is not None:
            raise UserError("--widths names MLPs and goes with --shapes mlp; leave one of the two out.")
        return parse_problems(shapes)
    widths = WIDTHS if widths is None else widths
    found = [problem for width in parse_widths(widths) for problem in mlp_problems(width, layers, batch)]
    return list(dict.fromkeys(found))


def step_bytes_of(shapes: str, widths: str | None, layers: int, batch: int) -> dict[Problem, int]:
    """How much memory a training step of the MLP that a problem belongs to touches; empty where no MLP is named.

    A problem of several widths (the loss, the gather) counts with the narrowest.
    """
    if shapes != "mlp":
        return {}
    touched: dict[Problem, int] = {}
    for width in sorted(parse_widths(widths or WIDTHS), reverse=True):
        sizes = layer_sizes(width, layers)
        weights = sum(inputs * outputs for inputs, outputs in itertools.pairwise(sizes))
        touched |= dict.fromkeys(mlp_problems(width, layers, batch), 4 * weights + 4 * batch * sum(sizes))
    return touched


def parse_widths(text: str) -> list[int]:
    """Hidden widths out of `128,256`.

    Raises:
        UserError: one of them is not a whole number from 1 to `WIDEST`.
    """
    for part in text.split(","):
        if not re.fullmatch(r"\d{1,9}", part.strip()) or not 1 <= int(part) <= WIDEST:
            raise UserError(
                f"The width {part.strip()!r} is not a whole number from 1 to {WIDEST}; give widths such as 128,256."
            )
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def parse_problems(text: str) -> list[Problem]:
    """Problems out of `32x784x128,32x128x10`, of a problem as reports print it, or of a file that holds such.

    Raises:
        UserError: it is none of these.
    """
    if _is_file(text):
        return file_problems(Path(text))
    if " " in text.strip():
        try:
            return [_named_problem(text)]
        except ValueError as error:
            raise UserError(f"{text!r} is not a problem: {error}.") from error
    looks_like_shapes = re.match(r"^-?\w*x", text) and "." not in text and "/" not in text
    if not looks_like_shapes and not re.fullmatch(r"[\dx,-]*", text):
        raise UserError(f"{text!r} is neither mlp, nor a shape such as 32x784x128, nor a file of problems.")
    found = [problem for shape in text.split(",") for problem in shape_problems(shape.strip())]
    return list(dict.fromkeys(found))


def _is_file(text: str) -> bool:
    """Whether `text` names a file; what no file can be called does not."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def shape_problems(shape: str) -> list[Problem]:
    """The forward and the backward problem of one layer, `32x784x128`: batch x in x out.

    Raises:
        UserError: not three positive whole numbers.
    """
    if not re.fullmatch(r"\d+x\d+x\d+", shape):
        raise UserError(
            f"The shape {shape!r} is not batch x in x out; write three whole numbers, for example 32x784x128."
        )
    sizes = [int(size) for size in shape.split("x")]
    if not all(1 <= size <= LARGEST_SIZE for size in sizes):
        raise UserError(f"The shape {shape} has a size outside 1 to {LARGEST_SIZE}; give sizes of at least 1.")
    return [kernels.linear_forward.problem(*sizes), kernels.linear_backward.problem(*sizes)]


def file_problems(path: Path) -> list[Problem]:
    """The problems of a text file, one a line: a shape (`32x784x128`), or a kernel, its sizes and options
    (`linear_forward 32x128x10 activation=none`). Empty lines and what follows a `#` are skipped.

    Raises:
        UserError: the file cannot be read, or a line is not understood.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file of problems {path} cannot be read; name a text file with a shape a line.") from error
    found: list[Problem] = []
    for number, text in enumerate(lines, 1):
        line = text.split("#")[0].strip()
        if line:
            try:
                found += shape_problems(line) if " " not in line else [_named_problem(line)]
            except (UserError, ValueError) as error:
                raise UserError(f"Line {number} of {path} is not a problem: {error}") from error
    if not found:
        raise UserError(f"The file {path} names no problem; write a shape such as 32x784x128 a line.")
    return list(dict.fromkeys(found))


def _named_problem(line: str) -> Problem:
    name, shape, *options = line.split()
    kernel = kernels.ALL.get(name)
    if kernel is None:
        raise UserError(f"there is no kernel {name!r}; the kernels are {', '.join(kernels.ALL)}.")
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise UserError(f"{shape!r} is not a shape; write sizes joined by x, for example 32x784x128.")
    sizes = [int(size) for size in shape.split("x")]
    if not all(1 <= size <= LARGEST_SIZE for size in sizes):
        raise UserError(f"the sizes of {shape} must be 1 to {LARGEST_SIZE}.")
    pairs = [option.partition("=") for option in options]
    return kernel.problem(*sizes, **{key: value for key, _, value in pairs})
