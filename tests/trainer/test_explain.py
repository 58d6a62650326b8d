"""`explain`: what a lookup serves, and why nothing better held."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kernels
from tests.trainer.plans import T4, add
from trainer.explain import run_explain
from tuner.errors import UserError
from tuner.store import Store
from tuner.types import Kind

PROBLEM = kernels.softmax_cross_entropy.problem(32, 10)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        config = kernels.softmax_cross_entropy.space(PROBLEM, T4).default()
        add(store, kernels.softmax_cross_entropy, PROBLEM, config, 1.25, kind=Kind.PREDICTED)
    return path


def explained(file: Path, text: str, *, device: str | None = "T4", as_json: bool = False) -> str:
    paper = io.StringIO()
    console = Console(file=paper, width=160)
    assert run_explain(str(file), text, device=device, as_json=as_json, console=console) == 0
    return paper.getvalue()


def test_the_rung_that_held_and_those_that_did_not(file: Path) -> None:
    text = explained(file, "softmax_cross_entropy 32x10")
    for rung in ("exact", "nearest", "architecture", "predicted"):
        assert rung in text
    assert "THREADS=128" in text


def test_a_shape_is_a_hidden_layer_and_a_first_one(file: Path) -> None:
    documents: list[dict[str, Any]] = json.loads(explained(file, "32x784x128", as_json=True))
    assert [(document["kernel"], document["options"]) for document in documents] == [
        ("linear_forward", {"activation": "relu"}),
        ("linear_backward", {"dx": "relu"}),
        ("linear_backward", {"dx": "none"}),
    ]
    assert "default" in json.dumps(documents[0])


def test_the_json_of_a_match(file: Path) -> None:
    [document] = json.loads(explained(file, "softmax_cross_entropy 32x10", as_json=True))
    assert document["rung"] == "predicted"
    assert document["config"] == dict(kernels.softmax_cross_entropy.space(PROBLEM, T4).default())


def test_without_a_gpu_it_is_the_one_that_training_emulates(file: Path) -> None:
    assert "Tesla T4" in explained(file, "softmax_cross_entropy 32x10", device="cpu")


@pytest.mark.parametrize(
    ("text", "device", "words"),
    [
        ("32x0x5", "T4", "The shape 32x0x5 has a size outside 1 to"),
        ("softmax 32x10", "T4", "there is no kernel 'softmax'"),
        ("softmax_cross_entropy 32x10x4", "T4", "takes 2 sizes"),
        ("32x16x10", "voodoo", "No GPU called 'voodoo' is known"),
        ("32x16x10", "cuda:x", "--device cuda:x is not understood"),
    ],
)
def test_what_cannot_be_explained(text: str, device: str, words: str, file: Path) -> None:
    with pytest.raises(UserError, match=words):
        explained(file, text, device=device)
