"""Children are not hit by Ctrl-C, and do not stay when their parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.commands import ROOT, wait_until_gone
from tuner.children import shielded_from_interrupts

HELD = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

PARENT = """
import multiprocessing, os, time
from tuner.children import end_with_parent, leave_interrupts_to_parent

def child(parent):
    leave_interrupts_to_parent()
    end_with_parent(parent)
    os.write(1, b"ready\\n")
    time.sleep(60)

context = multiprocessing.get_context("fork")
context.Process(target=child, args=(os.getpid(),)).start()
time.sleep(60)
"""


def test_an_interrupt_waits_until_the_child_is_started() -> None:
    said = []

    def start_a_child() -> None:
        with shielded_from_interrupts():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
            said.append(done.stdout)

    with pytest.raises(KeyboardInterrupt):
        start_a_child()
    assert said == ["True\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_child_ends_with_a_killed_parent_and_not_of_an_interrupt() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    [child] = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if is_child(entry, parent.pid)]
    os.kill(child, signal.SIGINT)
    assert wait_until_gone(parent.pid, 0.3) != []
    parent.kill()
    parent.communicate()
    assert wait_until_gone(parent.pid) == []


def is_child(entry: Path, parent: int) -> bool:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended while this looked
