"""Which problems an MLP has, and what users may write."""

from __future__ import annotations

from pathlib import Path

import pytest

import kernels
from kernels.problems import backward_problems, file_problems, mlp_problems, shape_problems
from tuner.errors import UserError


def test_the_problems_of_an_mlp_in_the_order_of_a_step() -> None:
    assert [problem.label for problem in mlp_problems(128, 3, 32)] == [
        "gather_rows 32x784x50",
        "linear_forward 32x784x128 activation=relu",
        "linear_forward 32x128x128 activation=relu",
        "linear_forward 32x128x10 activation=none",
        "softmax_cross_entropy 32x10",
        "linear_backward 32x128x10 dx=relu",
        "linear_backward 32x128x128 dx=relu",
        "linear_backward 32x784x128 dx=none",
        "mlp_resident 32x784x128x3x10x64",
    ]


def test_the_whole_step_is_a_problem_where_some_gpu_can_keep_the_weights() -> None:
    whole = {
        width: [p.kernel for p in mlp_problems(width, 3, 32) if p.kernel.startswith("mlp")] for width in (16, 256, 272)
    }
    assert whole == {16: ["mlp_resident"], 256: ["mlp_resident", "mlp_streaming"], 272: ["mlp_streaming"]}


def test_one_hidden_layer_has_no_square_problem() -> None:
    assert [problem.shape for problem in backward_problems(64, 1, 8)] == ["8x784x64", "8x64x10"]


def test_a_shape_is_batch_in_out() -> None:
    forward, backward = shape_problems("32x784x128")
    assert (forward["batch"], forward["in_features"], forward["out_features"]) == (32, 784, 128)
    assert backward == kernels.linear_backward.problem(32, 784, 128)


@pytest.mark.parametrize("shape", ["32x0x5", "32x784", "axbxc", "32x-1x5", "", "32x784x128x2", "1x1x99999999"])
def test_a_shape_that_is_none_gets_one_sentence(shape: str) -> None:
    with pytest.raises(UserError, match=r"^The shape .*\.$"):
        shape_problems(shape)


def test_a_file_of_problems(tmp_path: Path) -> None:
    path = tmp_path / "problems.txt"
    path.write_text("# two layers\n32x784x128\n\nlinear_forward 32x128x10 activation=none  # logits\n32x784x128\n")
    assert [problem.label for problem in file_problems(path)] == [
        "linear_forward 32x784x128 activation=relu",
        "linear_backward 32x784x128 dx=relu",
        "linear_forward 32x128x10 activation=none",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("32x784", "Line 1 of"),
        ("32x784x128\nno_kernel 1x2x3", "Line 2 of"),
        ("linear_forward 1x2", "takes 3 sizes"),
        ("linear_forward 1x2x3 activation=tanh", "has no option activation=tanh"),
        ("softmax_cross_entropy 0x10", "must be 1 to"),
        ("# nothing\n", "names no problem"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "problems.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        file_problems(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        file_problems(tmp_path / "missing.txt")
