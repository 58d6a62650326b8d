"""Workplaces for the child of a `Worker`: they hang, die and lie as they are asked to."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from tests.tuner.toy import Replayed
from tuner.errors import UserError
from tuner.judge import Job


class Actor:
    """Does what the request says."""

    def __init__(self) -> None:
        self.lost = False
        self.spent: dict[str, float] = {}

    def handle(self, request: Any) -> Any:
        match request:
            case ("echo", value):
                return value
            case ("pid",):
                return os.getpid()
            case ("sleep", seconds, value):
                time.sleep(seconds)
                self.spent = {"asleep": seconds}
                return value
            case ("hang", *_):
                while True:
                    time.sleep(0.01)
            case ("die", *_):
                os.kill(os.getpid(), signal.SIGKILL)
            case ("abort", text):
                sys.stderr.write(f"first line\n{text}\n")
                sys.stderr.flush()
                os._exit(3)
            case ("sticky", value):
                self.lost = True
                return value
            case ("print", count):
                # Around Python, as a kernel's printf does it.
                os.write(1, b"noise\n" * count)
                return "quiet"
            case ("bug",):
                raise KeyError("what")
            case ("user",):
                raise UserError("Install g++.")
        return None


def missing() -> Actor:
    raise UserError("There is no device cuda:7.")


def faulty() -> Actor:
    raise ZeroDivisionError("of course")


def deadly() -> Actor:
    os._exit(9)


class Sleeper:
    """A GPU on which every candidate takes `JOB_S`."""

    JOB_S = 0.03
    lost = False

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._answers = Replayed()

    def handle(self, request: Any) -> Any:
        if isinstance(request, Job):
            time.sleep(self.JOB_S)
            self.spent = {"time": self.JOB_S}
        return None if isinstance(request, tuple) else self._answers.call(request)
