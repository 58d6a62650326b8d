"""A spawned child that judges candidates, so that a hang or a crash costs the candidate and nothing else.

The parent never makes a CUDA context: what touches the GPU (discovery included) is a request to a child, which holds a
`Workplace`. Emulation runs in such a child too: an endless loop there must be killable as well.

    parent: Worker.post(request) --pipe--> child: Workplace.handle(request) --pipe--> Worker.wait(): Answer
            no answer in time: kill, spawn another, TIMEOUT
            child dies: spawn another, RUNTIME
            Workplace.lost after the answer: the child ends by itself, and another is spawned for the next request

One more request may lie in the pipe, so that the child goes on without waiting for the parent. Answers come in the
order of posting. What happens to the child is put down to the request that it was working on, and those behind it are
given to the next child. `Worker.call` is one request and its answer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tuner.children import shielded_from_interrupts
from tuner.errors import UserError
from tuner.serving import Raised, Workplace, serve
from tuner.types import Failure, Status

START_LIMIT_S = 180.0
"""For the child to import CuPy and make its context, on a slow disk."""

END_LIMIT_S = 3.0
"""For a killed child to be gone: a hang costs its time limit and no more than this."""

AHEAD = 2
"""Requests that are in the child's hands: the one it works on, and the next."""

_AHEAD_BYTES = 32 << 10
"""A request that is larger waits here until the child is free: a full pipe would hold the parent."""

_LAST_WORDS = 4096
"""Bytes of the end of the child's stderr that are looked at."""

MOST_DEATHS = 3
"""In a row, on different requests, before the search is stopped: then it is not the candidates."""


class Waitable(Protocol):
    """What can be waited for beside an answer."""

    def fileno(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a posted request."""

    value: Any
    """The workplace's answer, or a `Failure` (TIMEOUT, RUNTIME) where the child did not give one."""
    started: float
    """By `time.monotonic`, which all processes of a machine share; when the request was sent where no child said."""
    finished: float
    spent: Mapping[str, float] = field(default_factory=dict)
    """`Workplace.spent`."""


class WorkerLostError(UserError):
    """Children die whatever they are given: the search stops, and keeps what it has."""


@dataclass(slots=True)
class _Posted:
    """A request without its answer."""

    request: Any
    data: bytes
    limit_s: float
    sent: bool = False
    since: float = 0.0
    """From when its time limit counts: sent, and the one before it done."""


class _BugError(RuntimeError):
    """An error in the child that nobody expected."""


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
        self._posted: deque[_Posted] = deque()
        self._deaths: list[str] = []
        self.spawned = 0
        """Children so far."""

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        """The workplace's answer to `request`, or a `Failure` (TIMEOUT, RUNTIME) where the child did not give one.

        Raises:
            WorkerLostError: the third child in a row died, each on another request, or a child cannot even start.
        """
        if self._posted:
            raise RuntimeError("a call while posted requests are without their answers")
        self.post(request, limit_s=limit_s)
        answer = self.wait()
        assert answer is not None, "there is nothing else to wait for"
        return answer.value

    def post(self, request: Any, *, limit_s: float | None = None) -> None:
        """Have `request` handled after those posted before it; `wait` has the answer. Its time limit counts from when
        the child can start with it.

        Raises:
            WorkerLostError: a child cannot even start.
        """
        data = bytes(ForkingPickler.dumps(request))
        self._posted.append(_Posted(request, data, limit_s if limit_s is not None else self._limit_s))
        with self._all_or_nothing():
            self._hand_over()

    def wait(self, *, also: Sequence[Waitable] = (), timeout_s: float | None = None) -> Answer | None:
        """The answer to the oldest request without one; None where one of `also` is ready, or `timeout_s` over, first.

        After an error that is raised, what was posted is forgotten.

        Raises:
            WorkerLostError: the third child in a row died, each on another request, or a child cannot even start.
            ValueError: nothing was posted.
        """
        if not self._posted:
            raise ValueError("nothing was posted")
        with self._all_or_nothing():
            pipe = self._hand_over()
            head = self._posted[0]
            left = max(0.0, head.since + head.limit_s - time.monotonic())
            patience = left if timeout_s is None else min(left, timeout_s)
            ready = connection.wait([pipe, *(each.fileno() for each in also)], patience)
            if pipe in ready:
                return self._received(pipe)
            if time.monotonic() < head.since + head.limit_s:
                return None
            self._end()
            return self._failed(_late(head))

    def _received(self, pipe: Connection) -> Answer:
        head = self._posted[0]
        try:
            value, lost, started, finished, spent = pipe.recv()
        except (EOFError, ConnectionError):
            return self._failed(Failure(Status.RUNTIME, self._obituary()))
        if lost:
            self._end()
        if isinstance(value, Raised):
            if isinstance(value.error, UserError):
                raise value.error
            raise _BugError(f"a bug in the worker:\n{value.text}") from value.error
        if finished - head.since > head.limit_s:
            # It was looked for too late to be killed.
            return self._failed(_late(head))
        self._deaths.clear()
        self._posted.popleft()
        if self._posted:
            self._posted[0].since = max(self._posted[0].since, finished)
        return Answer(value, started, finished, spent)

    def _failed(self, failure: Failure) -> Answer:
        """The oldest request's answer is `failure`; those behind it may start now."""
        head = self._posted.popleft()
        now = time.monotonic()
        if self._posted:
            self._posted[0].since = max(self._posted[0].since, now)
        return Answer(self._count(head.request, failure), head.since, now)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """An error leaves nothing posted, and no child that is still at work on it."""
        try:
            yield
        except BaseException as error:
            # Ctrl-C and the like: a child still at work would answer the next request with this one's answer. One that
            # has answered with an error is idle, unless it has the next request already.
            answered = isinstance(error, UserError | _BugError) and sum(item.sent for item in self._posted) == 1
            try:
                if not answered:
                    self._end()
            finally:
                self._posted.clear()
            raise

    def _hand_over(self) -> Connection:
        """Send what the child may have by now."""
        pipe = self._start()
        for place, item in enumerate(self._posted):
            if place == AHEAD or (place and len(item.data) > _AHEAD_BYTES):
                break
            if item.sent:
                continue
            try:
                pipe.send_bytes(item.data)
            except ConnectionError:
                # The child is gone, which the reply to the oldest request will show.
                if place:
                    break
            item.sent, item.since = True, time.monotonic()
        return pipe

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
        at_work = any(item.sent for item in self._posted)
        # One that died at work is left to `wait`, which says what it died of.
        if self._pipe is not None and self._child is not None and (at_work or self._child.is_alive()):
            return self._pipe
        self._end()
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._complaints, name = tempfile.mkstemp(prefix="mnist-tune-worker-")
        child = context.Process(target=serve, args=(self._make, theirs, name, os.getpid()), daemon=True)
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
        if isinstance(ready, Raised):
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
        for item in self._posted:
            item.sent = False
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


def _late(item: _Posted) -> Failure:
    return Failure(Status.TIMEOUT, f"no answer within {item.limit_s:g} s")


def _last_line(file: int | None) -> str:
    if file is None:
        return ""
    start = max(0, os.fstat(file).st_size - _LAST_WORDS)
    text = os.pread(file, _LAST_WORDS, start).decode(errors="replace")
    lines = text.strip().splitlines()
    return f" ({lines[-1][:300]})" if lines else ""
