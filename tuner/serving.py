"""The child's side of `tuner.worker`: it takes requests from a pipe, has its workplace handle them, and answers."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tuner.children import end_with_parent, leave_interrupts_to_parent
from tuner.errors import UserError


class Workplace(Protocol):
    """What a child does its work with; made there, so that nothing of it exists in the parent."""

    @property
    def lost(self) -> bool:
        """Whether this process can do no more work (an error that its CUDA context did not survive)."""
        ...

    @property
    def spent(self) -> Mapping[str, float]:
        """Where the last request's time went: seconds by phase. Empty where nobody looked."""
        ...

    def handle(self, request: Any) -> Any:
        """The answer to a request; both travel by pickle."""
        ...


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception in the child that is a bug or a user's error: raised again in the parent."""

    error: BaseException | None
    text: str


def serve(make: Callable[[], Workplace], pipe: Connection, complaints: str, parent: int) -> None:
    """The child's life."""
    leave_interrupts_to_parent()
    end_with_parent(parent)
    # A candidate's printf must not write over the progress display; what a crash says last is kept for the diagnosis.
    stdout, stderr = 1, 2
    with Path(os.devnull).open("w") as nowhere, Path(complaints).open("w") as paper:
        os.dup2(nowhere.fileno(), stdout)
        os.dup2(paper.fileno(), stderr)
    try:
        workplace = make()
        pipe.send(None)
    except Exception as error:
        pipe.send(portable(error))
        return
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        started = time.monotonic()
        try:
            answer = workplace.handle(request)
        except Exception as error:
            answer = portable(error)
        pipe.send((answer, workplace.lost, started, time.monotonic(), dict(workplace.spent)))
        if workplace.lost:
            # Not a normal end: tearing down a broken CUDA context may hang.
            pipe.close()
            os._exit(0)


def portable(error: Exception) -> Raised:
    """`error` as something that can be pickled: user's errors whole, others as their text."""
    text = "".join(traceback.format_exception(error))
    return Raised(UserError(str(error)) if isinstance(error, UserError) else None, text)
