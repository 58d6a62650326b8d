"""The references that everything is verified against, held against PyTorch's autograd in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernels
from kernels.linear_backward import join_master, split_master
from tuner.devices import find
from tuner.kernel import Array, Kernel
from tuner.types import Config, Problem

DEVICE = find("Tesla T4")


def inputs(kernel: Kernel, problem: Problem, **chosen: str) -> dict[str, np.ndarray]:
    config = Config.of(kernel.space(problem, DEVICE).default(), **chosen)
    arguments = kernel.arguments(problem, config, np.random.default_rng(1))
    return {item.name: item.data if isinstance(item, Array) else item.value for item in arguments}


def as_torch(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array.astype(np.float64), requires_grad=True)


@pytest.mark.parametrize("activation", ["relu", "none"])
def test_linear_forward(activation: str) -> None:
    problem = kernels.linear_forward.problem(5, 7, 3, activation=activation)
    given = inputs(kernels.linear_forward, problem)
    Y = torch.addmm(as_torch(given["b"]), as_torch(given["X"]), as_torch(given["W"]))
    expected = torch.relu(Y) if activation == "relu" else Y
    found = kernels.linear_forward.reference(problem, given)["Y"]
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("master", ["fp32", "hilo"])
def test_linear_backward_is_autograd_and_sgd(master: str) -> None:
    problem = kernels.linear_backward.problem(5, 7, 3, dx="relu")
    given = inputs(kernels.linear_backward, problem, MASTER=master)
    below = as_torch(given["X"])  # before the ReLU of the layer below; where it is positive it is X itself
    b = as_torch(given["b"])
    weight = torch.tensor(join_master(given["W"], given["master"], master), requires_grad=True)
    # dX is made with the fp16 copy of the weights, dW and the update belong to the weights themselves.
    copy = weight + (torch.tensor(given["W"].astype(np.float64)) - weight).detach()
    (torch.addmm(b, torch.relu(below), copy)).backward(torch.tensor(given["dY"].astype(np.float64)))
    rate = float(given["rate"])
    # X itself, negative values and all, enters dW: the kernel is given the layer's input and does not rectify it.
    dW = given["X"].astype(np.float64).T @ given["dY"].astype(np.float64)
    found = kernels.linear_backward.reference(problem, given)
    np.testing.assert_allclose(found["dX"], below.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(found["b"], (b - rate * b.grad).detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(found["weight"], (weight - rate * torch.tensor(dW)).detach().numpy(), rtol=1e-12)


def test_the_first_layer_has_no_dx() -> None:
    problem = kernels.linear_backward.problem(5, 7, 3, dx="none")
    assert "dX" not in kernels.linear_backward.reference(problem, inputs(kernels.linear_backward, problem))


def test_softmax_cross_entropy() -> None:
    problem = kernels.softmax_cross_entropy.problem(6, 10)
    given = inputs(kernels.softmax_cross_entropy, problem)
    logits = as_torch(given["logits"])
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(given["labels"]).long())
    loss.backward()
    found = kernels.softmax_cross_entropy.reference(problem, given)
    # Position 5, offset -3, two slots: the mean goes to slot 0 and the other stays as it was.
    np.testing.assert_allclose(found["loss"], [loss.item(), 0.5], rtol=1e-12)
    np.testing.assert_allclose(found["dLogits"], logits.grad.numpy() * given["scale"], rtol=1e-10, atol=1e-14)


def test_softmax_survives_logits_whose_exponential_overflows() -> None:
    problem = kernels.softmax_cross_entropy.problem(1, 2)
    given = inputs(kernels.softmax_cross_entropy, problem)
    given |= {"logits": np.array([[60000, -60000]], np.float16), "labels": np.array([0], np.int32)}
    found = kernels.softmax_cross_entropy.reference(problem, given)
    assert found["loss"][0] == 0.0
    assert np.isfinite(found["dLogits"]).all()


def test_gather_starts_over_at_the_end_of_the_order() -> None:
    problem = kernels.gather_rows.problem(2, 3, 4)
    given = inputs(kernels.gather_rows, problem)
    assert given["order"].shape == (5, 2)
    assert given["position"][0] == 2
    found = kernels.gather_rows.reference(problem, given)
    rows = given["order"][[2, 3, 4, 0]]
    np.testing.assert_array_equal(found["X"], given["images"][rows].astype(np.float64))
    np.testing.assert_array_equal(found["position"], [6])


@pytest.mark.parametrize(("master", "bits"), [("fp32", 24), ("hilo", 22)])
def test_a_master_keeps_its_bits(master: str, bits: int) -> None:
    weight = np.random.default_rng(0).uniform(-1, 1, 10_000).astype(np.float32)
    weight = weight[np.abs(weight) > 2.0**-10]
    W, part = split_master(weight, master)
    error = np.abs(join_master(W, part, master) - weight) / np.abs(weight)
    assert error.max() <= 2.0**-bits * 1.01
