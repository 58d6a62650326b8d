"""The network's sizes, its fresh weights, and the accuracy of given weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.data import SAMPLE, load, scaled
from trainer.mlp import Network, accuracy, fresh_weights
from tuner.errors import UserError


def test_sizes_of_the_network_of_the_story() -> None:
    network = Network(128)
    assert network.sizes == [784, 128, 128, 128, 10]
    assert network.label == "784-128-128-128-10"
    # 784 * 128 + 128, twice 128 * 128 + 128, 128 * 10 + 10.
    assert network.parameters == 100_480 + 2 * 16_512 + 1_290
    assert sum(W.size + b.size for W, b in fresh_weights(network, 0)) == network.parameters


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"width": 0}, "The width is 0; give a whole number from 1 to 32768."),
        ({"width": -1}, "The width is -1; give a whole number from 1 to 32768."),
        ({"width": 1 << 40}, "The width is 1099511627776; give a whole number from 1 to 32768."),
        ({"width": 8, "layers": 0}, "The number of hidden layers is 0; give a whole number from 1 to 16."),
        ({"width": 8, "batch": 4097}, "The batch is 4097; give a whole number from 1 to 4096."),
    ],
)
def test_a_network_that_nobody_can_train(sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        Network(**sizes)
    assert str(caught.value) == sentence


def test_fresh_weights_are_drawn_as_pytorch_draws_them() -> None:
    (W, b), *_ = fresh_weights(Network(256), seed=3)
    torch.manual_seed(3)
    theirs = torch.nn.Linear(784, 256).weight.detach().numpy()
    assert W.shape == (784, 256)
    assert W.dtype == b.dtype == np.float32
    # Uniform within +-1/28 = 784 ** -0.5, whose standard deviation is the bound over the root of 3.
    assert np.abs(W).max() <= 1 / 28
    assert W.std() == pytest.approx(1 / 28 / 3**0.5, rel=0.01)
    assert W.std() == pytest.approx(float(theirs.std()), rel=0.01)
    assert abs(W.mean()) < 1e-3
    assert np.abs(b).max() <= 1 / 28


def test_the_seed_decides_the_weights() -> None:
    first, again, other = (fresh_weights(Network(16), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for pair in zip(first, again, strict=True) for a, b in zip(*pair, strict=True))
    assert not np.array_equal(first[0][0], other[0][0])


def test_accuracy_is_what_pytorch_says() -> None:
    dataset = load(SAMPLE)
    weights = fresh_weights(Network(32, layers=2), seed=8)
    images, labels = scaled(dataset.test_images), dataset.test_labels
    x = torch.from_numpy(images.astype(np.float32))
    for depth, (W, b) in enumerate(weights):
        x = x @ torch.from_numpy(W) + torch.from_numpy(b)
        x = x.relu() if depth < 2 else x
    theirs = float((x.argmax(1).numpy() == labels).mean())
    assert accuracy(weights, images, labels) == theirs
    assert accuracy(weights, images, labels, at_once=7) == theirs


def test_accuracy_of_a_network_that_reads_the_answer_off_the_image() -> None:
    eye = np.eye(10, dtype=np.float32)
    images = np.eye(10, dtype=np.float16)[[3, 1, 4, 1]]
    weights = ((eye, np.zeros(10, np.float32)),)
    assert accuracy(weights, images, np.array([3, 1, 4, 1], np.uint8)) == 1.0
    assert accuracy(weights, images, np.array([3, 1, 4, 2], np.uint8)) == 0.75
