"""Workplaces for the child of a `Worker`: they hang, die and lie as they are asked to."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from tuner.errors import UserError


class Actor:
    """Does what the request says."""

    def __init__(self) -> None:
        self.lost = False

    def handle(self, request: Any) -> Any:
        match request:
            case ("echo", value):
                return value
            case ("pid",):
                return os.getpid()
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
