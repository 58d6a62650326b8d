"""Kernels of whole steps as engines: the same training as the graph of kernels, in one launch."""

from __future__ import annotations

import numpy as np
import pytest

import kernels
from kernels.problems import STEPS_PER_LAUNCH, resident_problem
from tests.trainer.plans import SMALL, T4, add, passes
from tests.trainer.report_rows import LAPTOP
from trainer.contenders.base import Task
from trainer.contenders.model import Reference
from trainer.engines.whole_step import EmulatedWholeStepEngine, WholeStepError, make_scalars
from trainer.mlp import Network, fresh_weights
from trainer.plan import Choice, Form, WholeStepPlan, make_whole_step_plan, whole_step_problem
from tuner.devices import find
from tuner.store import Rung, Store
from tuner.types import Config

RESIDENT = Config.of(CLUSTER=0, WARPS=4, SPLIT_K=1, X_BUFFERS=0)
STREAMING = Config.of(CLUSTER=0, GRID_N=2, GRID_K=2, WARPS=4, SLOTS=2, ROUNDS=1)


def plan(network: Network, form: Form = Form.PERSISTENT) -> WholeStepPlan:
    config = RESIDENT if form is Form.PERSISTENT else STREAMING
    return WholeStepPlan(network, T4, Choice(whole_step_problem(network, form), config, Rung.DEFAULT, None))


def task(network: Network, steps: int = 12, lr: float = 0.02) -> Task:
    rng = np.random.default_rng(0)
    # Normal, not pixels: few activations then lie where the rounding to fp16 decides about the ReLU.
    images = rng.standard_normal((64, 784), dtype=np.float32).astype(np.float16)
    labels = rng.integers(0, 10, 64).astype(np.uint8)
    order = rng.integers(0, 64, (steps, network.batch)).astype(np.int32)
    return Task(fresh_weights(network, 0), images, labels, order, lr, steps_per_call=1, device="cpu")


@pytest.mark.parametrize(
    ("form", "layers"),
    [
        (Form.PERSISTENT, 1),
        (Form.PERSISTENT, 2),
        (Form.PERSISTENT, 3),
        (Form.STREAMING, 2),
        (Form.STREAMING, 3),
    ],
)
def test_it_trains_as_pytorch_does(form: Form, layers: int) -> None:
    network = Network(40, layers=layers, batch=8)
    work = task(network)
    ours, theirs = EmulatedWholeStepEngine(plan(network, form)), Reference()
    for engine in (ours, theirs):
        engine.prepare(work)
        engine.run(0, work.steps)
    np.testing.assert_allclose(ours.losses(0, 12), theirs.losses(0, 12), rtol=2e-3)
    for (W, b), (W_theirs, b_theirs) in zip(ours.weights(), theirs.weights(), strict=True):
        np.testing.assert_allclose(W, W_theirs, atol=2e-3)
        np.testing.assert_allclose(b, b_theirs, atol=2e-3)


@pytest.mark.parametrize("form", [Form.PERSISTENT, Form.STREAMING])
def test_steps_in_several_launches_are_bitwise_those_of_one(form: Form) -> None:
    work = task(SMALL)
    runs = []
    for parts in ((12,), (5, 7)):
        engine = EmulatedWholeStepEngine(plan(SMALL, form))
        engine.prepare(work)
        done = 0
        for part in parts:
            engine.run(done, part)
            done += part
        runs.append(engine.losses(0, 12))
    np.testing.assert_array_equal(runs[0], runs[1])


def test_a_blocked_grid_is_an_error_not_a_result() -> None:
    engine = EmulatedWholeStepEngine(plan(SMALL))
    engine.prepare(task(SMALL))
    engine._buffers["failed"].array[0] = 1
    with pytest.raises(WholeStepError, match="--engine graph"):
        engine.losses(0, 1)


def test_the_rate_divides_by_the_batch() -> None:
    scalars = make_scalars(plan(SMALL), task(SMALL, lr=0.4), 3)
    assert scalars["rate"] == np.float32(0.4 / SMALL.batch)
    assert scalars["steps"] == 3


def test_its_time_per_step_is_that_of_a_launch_over_its_steps() -> None:
    network = Network(32)
    with Store.open("sqlite://") as store:
        problem = resident_problem(32, 3, 32)
        add(store, kernels.mlp_resident, problem, Config.of(CLUSTER=0, WARPS=8, SPLIT_K=1, X_BUFFERS=0), 128.0)
        found = make_whole_step_plan(store, network, T4, LAPTOP, check=passes, form=Form.PERSISTENT)
    assert found is not None
    assert found.expected_us == 128.0 / STEPS_PER_LAUNCH


@pytest.mark.parametrize(
    ("form", "width", "gpu", "fits"),
    [
        (Form.PERSISTENT, 64, "T4", True),
        (Form.PERSISTENT, 256, "T4", False),
        (Form.PERSISTENT, 256, "H200", True),
        (Form.PERSISTENT, 4096, "H200", False),
        (Form.STREAMING, 64, "H200", False),
        (Form.STREAMING, 512, "T4", True),
        (Form.STREAMING, 8192, "H200", True),
    ],
)
def test_what_fits(form: Form, width: int, gpu: str, fits: bool) -> None:
    with Store.open("sqlite://") as store:
        found = make_whole_step_plan(store, Network(width), find(gpu), LAPTOP, check=passes, form=form)
    assert (found is not None) == fits
