"""Every PyTorch contender as it races: compiled, captured, on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.agreement import curves_agree, yardstick
from trainer.contenders import PYTORCH, Task
from trainer.data import SAMPLE, load, permutations, scaled
from trainer.mlp import Network, fresh_weights

STEPS = 400

EXPECTED_NOTES = {
    "eager": "",
    "max_autotune": "2 CUDA graph replays per step",
    "compiled_step": "1 CUDA graph replays per step",
}


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # compilers warn of what they might do faster (TF32), and differ by version
@pytest.mark.parametrize("name", PYTORCH)
def test_it_learns_what_pytorch_learns(name):
    dataset = load(SAMPLE)
    task = Task(
        weights=fresh_weights(Network(width=64), seed=1),
        images=scaled(dataset.train_images),
        labels=dataset.train_labels,
        order=permutations(len(dataset.train_images), 32, STEPS, seed=2),
        lr=0.1,
        steps_per_call=20,
    )
    runner = PYTORCH[name]()
    runner.prepare(task)
    for (W, b), (W0, b0) in zip(runner.weights(), task.weights, strict=True):
        assert np.array_equal(W, W0)
        assert np.array_equal(b, b0)
    assert runner.timed(0, STEPS) > 0
    verdict = curves_agree(runner.losses(0, STEPS), *yardstick(task, STEPS))
    assert verdict.agrees, str(verdict)
    assert EXPECTED_NOTES.get(name, "20 steps per CUDA graph") in runner.notes
    assert runner.peak_bytes is not None
    runner.close()
