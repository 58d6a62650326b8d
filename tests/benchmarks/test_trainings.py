"""Benchmarks of whole trainings: sameness by emulation, the others with fakes in processes of their own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import place as place_module
from benchmarks import sameness, to_accuracy, variants
from benchmarks.entries import LEFT, Entries, Slice
from benchmarks.place import Ours, Place
from tests.trainer.fakes import Fake, Slow
from trainer import race as race_module
from trainer.contenders.base import Task, Weights
from trainer.contenders.model import Reference
from trainer.data import SAMPLE
from trainer.mlp import Network, fresh_weights
from tuner.errors import UserError

HEAD: dict[str, Any] = {"device_key": "a", "sources": "b", "data_hash": "c", "versions": {"host": "x", "torch": "2"}}


class TestEntries:
    def test_what_was_made_is_found_by_its_key(self, tmp_path: Path) -> None:
        entries = Entries(tmp_path / "x.json", HEAD)
        entries.add({"width": 8, "list": (1, 2)}, {"ms": 3.0})
        entries.add({"width": 16}, {"error": "failed"})
        again = Entries(tmp_path / "x.json", {**HEAD, "versions": {"host": "another", "torch": "2"}})
        found = again.find({"width": 8, "list": (1, 2)})
        assert found is not None
        assert found["ms"] == 3.0
        assert again.find({"width": 16}) is None, "what failed is tried again"
        assert again.find({"width": 8}) is None
        again.add({"width": 16}, {"error": None})
        assert len(again.entries) == 2

    @pytest.mark.parametrize("change", [{"sources": "c"}, {"device_key": "b"}, {"versions": {"torch": "3"}}])
    def test_a_file_of_something_else_is_not_touched(self, change: dict[str, Any], tmp_path: Path) -> None:
        Entries(tmp_path / "x.json", HEAD).add({"width": 8}, {})
        before = (tmp_path / "x.json").read_text()
        with pytest.raises(UserError, match="was made on another device"):
            Entries(tmp_path / "x.json", {**HEAD, **change})
        assert (tmp_path / "x.json").read_text() == before

    @pytest.mark.parametrize("content", ["", "[]", "{}"])
    def test_no_document_at_all(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(UserError, match="is no document of this benchmark"):
            Entries(tmp_path / "x.json", HEAD)
        with pytest.raises(UserError, match="does not exist"):
            Entries(tmp_path / "nowhere" / "x.json", HEAD)

    def test_a_slice_ends(self) -> None:
        assert Slice(0.0).over
        assert not Slice(None).over
        assert not Slice(60.0).over


def small(seed: int = 0, lr: float = 0.1, steps: int = 1) -> Task:
    rng = np.random.default_rng(seed)
    return Task(
        weights=fresh_weights(Network(12, layers=2, batch=8), seed),
        images=rng.random((32, 784), dtype=np.float32).astype(np.float16),
        labels=rng.integers(0, 10, 32).astype(np.uint8),
        order=rng.integers(0, 32, (steps, 8)).astype(np.int32),
        lr=lr,
        steps_per_call=1,
        device="cpu",
    )


class TestGradients:
    def test_float64_is_what_pytorch_differentiates(self) -> None:
        import torch

        task = small()
        parameters = [
            torch.tensor(part, dtype=torch.float64, requires_grad=True) for pair in task.weights for part in pair
        ]
        x = torch.tensor(task.images[task.order[0]], dtype=torch.float64)
        for i in range(0, 6, 2):
            x = x @ parameters[i] + parameters[i + 1]
            x = torch.relu(x) if i < 4 else x
        torch.nn.functional.cross_entropy(x, torch.tensor(task.labels[task.order[0]]).long()).backward()
        found = sameness.float64_gradients(task, sameness.relu_decisions(task, rounded=False))
        for theirs, ours in zip(parameters, (part for pair in found for part in pair), strict=True):
            assert theirs.grad is not None
            np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=1e-9, atol=1e-12)

    def test_pytorchs_fp32_step_passes_and_a_wrong_one_does_not(self) -> None:
        task = small()
        exact = sameness.float64_gradients(task, sameness.relu_decisions(task, rounded=False))
        [errors] = sameness.gradient_errors(Reference, task, exact)
        assert set(errors) == {"W0", "b0", "W1", "b1", "W2", "b2"}
        assert max(errors.values()) < 1e-5

        class NoBias(Reference):
            def _step(self, x: Any, y: Any) -> Any:
                kept = self.model[2].bias.detach().clone()
                loss = super()._step(x, y)
                self.model[2].bias.data.copy_(kept)
                return loss

        [errors] = sameness.gradient_errors(NoBias, task, exact)
        assert errors["b1"] == pytest.approx(1.0)
        assert max(error for name, error in errors.items() if name != "b1") < 1e-5

    def test_a_relu_on_the_edge_is_a_toss_and_no_error(self, tmp_path: Path) -> None:
        # In this network one unit's input is nearer to zero at step 0 than fp16 resolves. Our step and PyTorch's
        # autocast both decide otherwise than float64 does, and are equally far from its gradient.
        options = argparse.Namespace(device="cpu", data=SAMPLE, db=str(tmp_path / "tuning.db"))
        place = Place.of(options, gpu_only=False)
        found = sameness.check_gradients(
            place, Network(16), place.ours(Network(16)), sameness.Settings(lr=0.1, steps=1, epochs=1, seeds=2)
        )
        assert found["relu_apart"] == 1
        assert found["passed"], found["said"]
        assert found["own_relu"]["W0"] > 10 * sameness.GRADIENT_LIMIT
        assert found["own_relu_pytorch"]["W0"] == pytest.approx(found["own_relu"]["W0"], rel=0.01)


def test_accuracies_are_compared_by_their_standard_error() -> None:
    theirs = [0.970, 0.972, 0.974]
    near = sameness.compare_accuracies([0.969, 0.972, 0.972], theirs)
    assert near["passed"]
    assert near["difference"] == pytest.approx(-0.001)
    assert near["standard_error"] == pytest.approx(np.sqrt((3e-6 + 4e-6) / 3))
    assert not sameness.compare_accuracies([0.960, 0.961, 0.962], theirs)["passed"]
    assert not sameness.compare_accuracies([0.990, 0.991, 0.992], theirs)["passed"], "better is not the same"
    assert not sameness.compare_accuracies([float("nan"), 0.97, 0.97], theirs)["passed"]


Command = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a script; its exit code, its document and what it printed."""

    def run(module: Any, *arguments: str) -> tuple[int, dict[str, Any], str]:
        out = tmp_path / f"{module.__name__}.json"
        common = ["--data", str(SAMPLE), "--db", str(tmp_path / "tuning.db"), "--out", str(out)]
        monkeypatch.setattr("sys.argv", ["script", *common, *arguments])
        code = module.main()
        return code, json.loads(out.read_text()) if out.exists() else {}, capsys.readouterr().out

    return run


SAME = ("--device", "cpu", "--widths", "16", "--layers", "1", "--steps", "50", "--seeds", "2", "--epochs", "1")


def test_the_emulated_step_is_the_same_and_a_slice_goes_on(command: Command) -> None:
    code, document, text = command(sameness, *SAME, "--slice", "0")
    assert (code, document) == (LEFT, {})
    assert "4 checks are left; run the same command again." in text
    code, document, text = command(sameness, *SAME)
    assert code == 0, text
    assert text.count(" same: ") == 4
    assert [entry["key"]["check"] for entry in document["entries"]] == ["gradients", "bitwise", "curve", "accuracy"]
    assert all(entry["passed"] for entry in document["entries"])
    gradients = document["entries"][0]
    assert set(gradients["errors"]) == set(gradients["own_relu_pytorch"]) == {"W0", "b0", "W1", "b1"}
    assert len(document["entries"][3]["accuracies_pytorch"]) == 2
    assert (document["emulated"], document["device"]) == (True, "Tesla T4")
    again = command(sameness, *SAME)
    assert (again[0], again[1]["entries"]) == (0, document["entries"]), "nothing is made twice"


def test_what_is_not_the_same_fails(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = {"passed": True, "said": "fine"}
    checks = dict.fromkeys(sameness.CHECKS, lambda *_: passes) | {"curve": lambda *_: {"passed": False, "said": "off"}}
    monkeypatch.setattr(sameness, "CHECKS", checks)
    code, _, text = command(sameness, *SAME)
    assert code == 1
    assert "curve      NOT THE SAME: off" in text


class Learns(Fake):
    """Knows every digit after 300 steps."""

    us: ClassVar[float] = 10.0

    def timed(self, first_step: int, steps: int) -> float:
        self.done = first_step + steps
        return self.us * 1e-6 * steps

    def losses(self, first_step: int, steps: int) -> NDArray[np.float32]:
        return np.ones(steps, np.float32)

    def weights(self) -> Weights:
        right = int(self.task.test_labels[0])  # type: ignore[index]
        W, b = np.zeros((784, 10), np.float32), np.zeros(10, np.float32)
        b[right if self.done >= 300 else 9 - right] = 1.0
        return ((W, b),)


class LearnsSlowly(Learns):
    name: ClassVar[str] = "slow"
    us: ClassVar[float] = 30.0


class LearnsNothing(Fake):
    def weights(self) -> Weights:
        return ((np.zeros((784, 10), np.float32), np.zeros(10, np.float32)),)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, dict[str, Any]], None]:
    """A GPU whose step is a fake, and PyTorch's contenders too."""

    def put(ours: Any, theirs: dict[str, Any]) -> None:
        def of(cls: type[Place], options: Any, *, gpu_only: bool) -> Place:
            return original(options, gpu_only=False)

        original = place_module.Place.of
        monkeypatch.setattr(place_module.Place, "of", classmethod(of))
        monkeypatch.setattr(place_module.Place, "ours", lambda *_, **__: Ours(ours, {"engine": "fake"}, "a fake"))
        task = place_module.Place.task
        monkeypatch.setattr(place_module.Place, "task", lambda self, *a: replaced(task(self, *a)))
        for module in (to_accuracy, variants):
            monkeypatch.setattr(module, "chosen", lambda names: [theirs[name] for name in names])

    return put


def replaced(task: Task) -> Task:
    """With one kind of digit to test, and as many steps in a call as a graph has."""
    assert task.test_images is not None
    assert task.test_labels is not None
    same = task.test_labels == task.test_labels[0]
    return replace(
        task, steps_per_call=50, test_images=task.test_images[same][:5], test_labels=task.test_labels[same][:5]
    )


ARRIVE = ("--device", "cpu", "--widths", "8", "--seeds", "2", "--every", "100", "--epochs", "4", "--starts", "2")


def test_milliseconds_to_an_accuracy(command: Command, fakes: Callable[[Any, dict[str, Any]], None]) -> None:
    fakes(Learns, {"slow": LearnsSlowly})
    arguments = (*ARRIVE, "--lrs", "0.1", "--contenders", "slow")
    code, document, text = command(to_accuracy, *arguments, "--slice", "0")
    assert code == LEFT
    code, document, text = command(to_accuracy, *arguments)
    assert code == 0, text
    ours, theirs = document["entries"]
    # 50 steps of the start and then hundreds: the first look that finds 300 done is after 350, at 10 us each.
    assert [seed["steps"] for seed in ours["seeds"]] == [350, 350]
    assert ours["ms"] == pytest.approx(3.5)
    assert theirs["ms"] == pytest.approx(10.5)
    assert "Best: width 8, batch 32, lr 0.1: 3.5 ms to 97.5%; with the same settings slow 10.5 ms, 3.00x." in text


def test_who_never_gets_there_has_no_time(command: Command, fakes: Callable[[Any, dict[str, Any]], None]) -> None:
    fakes(LearnsNothing, {"slow": LearnsSlowly})
    code, document, text = command(to_accuracy, *ARRIVE, "--lrs", "0.1", "--contenders", "slow")
    assert code == 1
    assert document["entries"][0]["ms"] is None
    assert "Ours got there with none of these settings." in text


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = np.ones(2000, np.float32)
    monkeypatch.setattr(race_module, "_yardstick", lambda *_: (ones, ones))


VARY = ("--device", "cpu", "--widths", "8", "--batches", "64", "--layers", "3", "--steps", "50", "--repeats", "2")


def test_variants_are_raced_and_kept(
    command: Command, fakes: Callable[[Any, dict[str, Any]], None], flat: None
) -> None:
    fakes(Fake, {"fake": Slow})
    code, document, text = command(variants, *VARY, "--contenders", "fake")
    assert code == 0, text
    assert [(each["key"]["batch"], each["key"]["layers"]) for each in document["entries"]] == [(64, 3), (32, 3)]
    assert all(each["ratio_to_strongest"] == pytest.approx(4.0, rel=0.02) for each in document["entries"])
    assert text.count("4.00x") == 2
    again = command(variants, *VARY, "--contenders", "fake")
    assert again[1]["entries"] == document["entries"]


def test_where_pytorch_is_faster_it_is_said(
    command: Command, fakes: Callable[[Any, dict[str, Any]], None], flat: None
) -> None:
    fakes(Slow, {"fake": Fake})
    code, _, text = command(variants, *VARY, "--contenders", "fake")
    assert code == 1
    assert "0.25x" in text


def test_a_variant_that_fails_says_why(
    command: Command, fakes: Callable[[Any, dict[str, Any]], None], flat: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes(Fake, {"fake": Slow})

    def refuse(self: Place, network: Network, **_: Any) -> Ours:
        if network.batch == 64:
            raise UserError("No kernel works.")
        return Ours(Fake, {"engine": "fake"}, "a fake")

    monkeypatch.setattr(place_module.Place, "ours", refuse)
    code, document, text = command(variants, *VARY, "--contenders", "fake")
    assert code == 1
    assert [each["error"] for each in document["entries"]] == ["No kernel works.", None]
    assert "No kernel works." in text


def test_which_networks_vary() -> None:
    found = variants.combinations([8, 16], [32, 64], [1, 3], everything=False)
    assert [(each.width, each.layers, each.batch) for each in found[:3]] == [(8, 3, 32), (8, 3, 64), (8, 1, 32)]
    assert len(found) == 6
    assert len(variants.combinations([8], [32, 64], [1, 3], everything=True)) == 4


@pytest.mark.parametrize("module", [to_accuracy, variants])
def test_without_a_gpu_it_is_said(command: Command, module: Any) -> None:
    with pytest.raises(UserError, match="no GPU is used here"):
        command(module, "--device", "cpu")


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        (sameness, ("--seeds", "1"), "--seeds 1 has no standard error"),
        (sameness, ("--steps", "60"), "--steps 60 is no multiple of 50"),
        (to_accuracy, ("--every", "30"), "--every 30 is no multiple of 50"),
        (to_accuracy, ("--accuracy", "97"), "--accuracy 97 is no share"),
        (to_accuracy, ("--contenders", "nobody"), "There is no contender 'nobody'"),
        (variants, ("--repeats", "0"), "--repeats 0 measures nothing"),
    ],
)
def test_what_makes_no_sense(command: Command, module: Any, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        command(module, *arguments)
