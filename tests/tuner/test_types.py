"""A configuration is a value: by its content, in every process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from tuner.types import Config

CONFIG = Config.of(BLOCK_M=32, REDUCE="cluster")


def test_a_configuration_is_a_mapping_sorted_by_name() -> None:
    assert dict(CONFIG) == {"BLOCK_M": 32, "REDUCE": "cluster"}
    assert list(Config.of(Z=1, A=2)) == ["A", "Z"]
    assert (CONFIG.integer("BLOCK_M"), CONFIG.choice("REDUCE"), len(CONFIG)) == (32, "cluster", 2)
    with pytest.raises(KeyError):
        CONFIG["WARPS"]
    with pytest.raises(TypeError, match="not an integer"):
        CONFIG.integer("REDUCE")


def test_equal_configurations_are_one_key() -> None:
    again = Config.of(REDUCE="cluster", BLOCK_M=32)
    assert again == CONFIG
    assert {CONFIG: 1}[again] == 1
    assert {CONFIG: 1}[pickle.loads(pickle.dumps(again))] == 1
    assert replace(CONFIG, values_=(("A", 1),)) == Config.of(A=1)


def test_a_configuration_from_another_process_is_the_same_key() -> None:
    """Texts have another hash in every process."""
    script = (
        "import sys, pickle; from tuner.types import Config; sys.stdout.buffer.write(pickle.dumps(Config.of(A='b')))"
    )
    sent = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert pickle.loads(sent.stdout.strip()) in {Config.of(A="b")}
