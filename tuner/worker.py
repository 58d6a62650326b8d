"""A spawned child that judges candidates, so that a hang or a crash costs the candidate and nothing else.

The parent never makes a CUDA context: what touches the GPU (discovery included) is a request to a child, which holds a
`Workplace`. Emulation runs in such a child too: an endless loop there must be killable as well.

    parent: Worker.call(request) --pipe--> child: Workplace.handle(request) --pipe--> answer
            no answer in time: kill, spawn another, TIMEOUT
            child dies: spawn another, RUNTIME
            Workplace.lost after the answer: the child ends by itself, and another is spawned for the next request
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tuner.children import end_with_parent, leave_interrupts_to_parent, shielded_from_interrupts
from tuner.errors import UserError
from tuner.types import Failure, Status

START_LIMIT_S = 180.0
"""For the child to import CuPy and make its context, on a slow disk."""

END_LIMIT_S = 3.0
"""For a killed child to be gone: a hang costs its time limit and no more than this."""

_LAST_WORDS = 4096
"""Bytes of the end of the child's stderr that are looked at."""

MOST_DEATHS = 3
"""In a row, on different requests, before the search is stopped: then it is not the candidates."""


class Workplace(Protocol):
    """What a child does its work with; made there, so that nothing of it exists in the parent."""

    @property
    def lost(self) -> bool:
        """Whether this process can do no more work (an error that its CUDA context did not survive)."""
        ...

    def handle(self, request: Any) -> Any:
        """The answer to a request; both travel by pickle."""
        ...


class WorkerLostError(UserError):
    """Children die whatever they are given: the search stops, and keeps what it has."""


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception in the child that is a bug or a user's error: raised again in the parent."""

    error: BaseException | None
    text: str


class Worker:
    """Owns one child. A context manager; not to be shared between threads."""

    def __init__(self, make: Callable[[], Workplace], *, limit_s: float = 30.0) -> None:
        """`make` runs in the child (a picklable callable); `limit_s` is the default time limit of a request."""
        self._make = make
        self._limit_s = limit_s
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._complaints: int | None = None
        """A file with what the child wrote to stderr."""
        self._deaths: list[str] = []
        self.spawned = 0
        """Children so far."""

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        """The workplace's answer to `request`, or a `Failure` (TIMEOUT, RUNTIME) where the child did not give one.

        Raises:
            WorkerLostError: the third child in a row died, each on another request, or a child cannot even start.
        """
        limit = limit_s if limit_s is not None else self._limit_s
        pipe = self._start()
        try:
            pipe.send(request)
            if not pipe.poll(limit):
                self._end()
                return self._count(request, Failure(Status.TIMEOUT, f"no answer within {limit:g} s"))
            answer, lost = pipe.recv()
        except (EOFError, ConnectionError):
            return self._count(request, Failure(Status.RUNTIME, self._obituary()))
        except BaseException:
            # Ctrl-C and the like: a child still at work would answer the next request with this one's answer.
            self._end()
            raise
        if lost:
            self._end()
        if isinstance(answer, _Raised):
            if isinstance(answer.error, UserError):
                raise answer.error
            raise RuntimeError(f"a bug in the worker:\n{answer.text}") from answer.error
        self._deaths.clear()
        return answer

    def _count(self, request: Any, failure: Failure) -> Failure:
        """Hand on the failure, unless children keep dying. A slow candidate is no sign of a broken machine."""
        if failure.status is Status.TIMEOUT:
            return failure
        text = repr(request)
        if text not in self._deaths:
            self._deaths.append(text)
        if len(self._deaths) >= MOST_DEATHS:
            raise WorkerLostError(
                f"The process that runs candidates died {MOST_DEATHS} times in a row, on different candidates (last: "
                f"{failure.message}); check the GPU with nvidia-smi and the free memory, then run the same command "
                "again: everything measured so far is stored."
            )
        return failure

    def _start(self) -> Connection:
        if self._pipe is not None and self._child is not None and self._child.is_alive():
            return self._pipe
        self._end()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._complaints, name = tempfile.mkstemp(prefix="mnist-tune-worker-")
        child = context.Process(target=_serve, args=(self._make, theirs, name, os.getpid()), daemon=True)
        with shielded_from_interrupts():
            child.start()
        theirs.close()
        self._child, self._pipe = child, ours
        self.spawned += 1
        try:
            if not ours.poll(START_LIMIT_S):
                self._end()
                raise WorkerLostError(f"The worker process did not start within {START_LIMIT_S:g} s; try again.")
            ready = ours.recv()
        except (EOFError, ConnectionError):
            raise WorkerLostError(f"The worker process could not start: {self._obituary()}.") from None
        finally:
            # Both sides have it open by now; without a name, nothing stays behind when this process is killed.
            Path(name).unlink(missing_ok=True)
        if isinstance(ready, _Raised):
            self._end()
            if isinstance(ready.error, UserError):
                raise ready.error
            raise WorkerLostError(f"The worker process could not start: {ready.text.strip().splitlines()[-1]}.")
        return ours

    def _obituary(self) -> str:
        """How the child ended, with the last line that it wrote."""
        child = self._child
        code = None
        if child is not None:
            child.join(5)
            code = child.exitcode
        said = _last_line(self._complaints)
        self._end()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"the process was ended by {signal.Signals(-code).name}{said}"
        return f"the process ended with code {code}{said}"

    def _end(self) -> None:
        """Kill the child, if there is one; it holds nothing worth waiting for."""
        child, pipe = self._child, self._pipe
        self._child = self._pipe = None
        if pipe is not None:
            pipe.close()
        if child is not None:
            child.kill()
            # A driver that is still tidying up keeps it for a while; the next child then waits for the GPU instead.
            child.join(END_LIMIT_S)
        if self._complaints is not None:
            os.close(self._complaints)
            self._complaints = None

    def close(self) -> None:
        """End the child."""
        self._end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _last_line(file: int | None) -> str:
    if file is None:
        return ""
    start = max(0, os.fstat(file).st_size - _LAST_WORDS)
    text = os.pread(file, _LAST_WORDS, start).decode(errors="replace")
    lines = text.strip().splitlines()
    return f" ({lines[-1][:300]})" if lines else ""


def _serve(make: Callable[[], Workplace], pipe: Connection, complaints: str, parent: int) -> None:
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
        pipe.send(_portable(error))
        return
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            answer = workplace.handle(request)
        except Exception as error:
            answer = _portable(error)
        pipe.send((answer, workplace.lost))
        if workplace.lost:
            # Not a normal end: tearing down a broken CUDA context may hang.
            pipe.close()
            os._exit(0)


def _portable(error: Exception) -> _Raised:
    """`error` as something that can be pickled: user's errors whole, others as their text."""
    text = "".join(traceback.format_exception(error))
    return _Raised(UserError(str(error)) if isinstance(error, UserError) else None, text)
