"""A training and its race as plain JSON: what `train --json` prints and benchmarks/ keeps, one document a width."""

from __future__ import annotations

import functools
import hashlib
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import kernels
from trainer.data import Dataset
from trainer.mlp import Network
from trainer.plan import Form, Plan, WholeStepPlan
from trainer.race import Race
from trainer.race_table import ratios
from trainer.settings import TrainSettings
from tuner.store import RaceRow
from tuner.types import Device, Environment

_SOURCES = ("tuner", "kernels", "trainer")
_SUFFIXES = {".py", ".cu", ".cuh", ".h"}


def head(
    network: Network, dataset: Dataset, device: Device, environment: Environment, settings: TrainSettings
) -> dict[str, Any]:
    """What is trained, on what, how: what there is to say before anything has run."""
    return {
        "network": network.label,
        "width": network.width,
        "layers": network.layers,
        "batch": network.batch,
        "lr": settings.lr,
        "seed": settings.seed,
        "device": device.name,
        "arch": device.arch,
        "data": dataset.source,
        "data_hash": dataset.fingerprint,
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": asdict(environment),
        "settings": settings.identity(),
        "sources": sources_hash(),
        "error": None,
        "strongest": None,
        "ratio_to_strongest": None,
        "contenders": {},
    }


def describe(plan: Plan | WholeStepPlan) -> dict[str, Any]:
    """With which kernels it is trained."""
    return {
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


def describe_race(row: RaceRow, race: Race, descriptions: Mapping[str, str]) -> dict[str, Any]:
    """What a race adds: the contenders, by name, and how ours compares with the strongest, pair by pair."""
    pairs = ratios(row, row.strongest)
    low, middle, high = np.percentile(pairs, (25, 50, 75)).tolist() if pairs else (None, None, None)
    return {
        "strongest": row.strongest or None,
        "ratio_to_strongest": middle,
        "ratio_quartiles": [low, high] if pairs else None,
        "ratio_pairs": list(pairs),
        "race_steps": row.steps,
        "starts": race.starts,
        "starts_note": starts_note(race),
        "contenders": {
            contender.name: {
                "us_per_step": contender.us_per_step,
                "samples": list(contender.samples),
                "spread": contender.spread,
                "start_s": contender.start_s,
                "start_cold_s": race.cold_starts.get(contender.name),
                "peak_bytes": contender.peak_bytes,
                "test_accuracy": contender.accuracy,
                "error": contender.error,
                "description": descriptions.get(contender.name, ""),
                "notes": race.details.get(contender.name, ""),
            }
            for contender in row.contenders
        },
    }


def starts_note(race: Race) -> str:
    """How to read the times to start, in a sentence; empty where there is nothing to be wary of."""
    said = []
    if race.starts > 1:
        said.append(
            f"Up to {race.starts} PyTorch contenders started at once (ours alone): their start times are longer than "
            "they would be alone, and their autotuner chose on a busier machine."
        )
    if race.cold_starts:
        said.append("Each started twice, with compiler caches of its own: empty (cold), then as that start left them.")
    return " ".join(said)


@functools.cache
def sources_hash() -> str:
    """Of all that takes part in a training or a race: sources of the three packages, kernels included."""
    root = Path(kernels.__file__).parents[1]
    digest = hashlib.sha256()
    for package in _SOURCES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in _SUFFIXES:
                digest.update(f"{path.relative_to(root)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def command_line() -> str:
    """The command that this process was started with, as an installed package has it."""
    return shlex.join(["mnist-tune", *sys.argv[1:]])
