"""A training and its race as plain JSON: what `train --json` prints and benchmarks/ keeps, one document a width."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from trainer.data import Dataset
from trainer.mlp import Network
from trainer.plan import Form, Plan, WholeStepPlan
from tuner.devices import environment
from tuner.store import RaceRow
from tuner.types import Device


def describe(
    network: Network, dataset: Dataset, device: Device, plan: Plan | WholeStepPlan, *, lr: float, seed: int
) -> dict[str, Any]:
    """What was trained, on what, with which kernels; no race yet."""
    return {
        "network": network.label,
        "width": network.width,
        "layers": network.layers,
        "batch": network.batch,
        "lr": lr,
        "seed": seed,
        "device": device.name,
        "arch": device.arch,
        "data": dataset.source,
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": asdict(environment()),
        "strongest": None,
        "ratio_to_strongest": None,
        "contenders": {},
        "engine": (plan.form if isinstance(plan, WholeStepPlan) else Form.GRAPH).value,
        "expected_us": plan.expected_us,
        "plan": [
            {
                "problem": choice.problem.label,
                "config": dict(choice.config),
                "rung": choice.rung.value,
                "expected_us": choice.expected_us,
            }
            for choice in plan.choices
        ],
    }


def describe_race(row: RaceRow, details: Any) -> dict[str, Any]:
    """What a race adds to the description, as plain JSON; one document per width is what benchmarks/ keeps."""
    ours, strongest = row.ours, row.contender(row.strongest)
    ratio = None
    if ours and strongest and ours.us_per_step and strongest.us_per_step:
        pairs = [theirs / our for our, theirs in zip(ours.samples, strongest.samples, strict=True)]
        ratio = float(np.median(pairs))
    return {
        "strongest": row.strongest or None,
        "ratio_to_strongest": ratio,
        "race_steps": row.steps,
        "contenders": {
            contender.name: {
                "us_per_step": contender.us_per_step,
                "samples": list(contender.samples),
                "spread": contender.spread,
                "start_s": contender.start_s,
                "peak_bytes": contender.peak_bytes,
                "test_accuracy": contender.accuracy,
                "error": contender.error,
                "notes": details.get(contender.name, ""),
            }
            for contender in row.contenders
        },
    }


def command_line() -> str:
    """The command that this process was started with, as an installed package has it."""
    return shlex.join(["mnist-tune", *sys.argv[1:]])
