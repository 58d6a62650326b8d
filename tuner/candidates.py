"""Asks ahead of the judge and compiles in the pool meanwhile, so that the GPU does not wait for a compiler.

The n-th configuration is asked for when the search has been told of the first n - WINDOW, no earlier and no later: what
is asked depends on the seed and on what was measured, not on which compilation or launch was done first, nor on how
many cores there are. So a search that was killed goes on as if it had not been. Within the window candidates may be
judged in any order; they are told in the order of asking.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.search import Search
from tuner.spent import Spent
from tuner.types import Binary, Config, Failure, Measurement, Problem

WINDOW = 32
"""Configurations that are asked before the first of them is told.

Sixteen compilers need as many again, since a slow compilation holds up what is told after it. The sampler knows less
the longer the window is: on landscapes made from the H200's trials of six problems, eight seeds each, the best of 100
trials was 1.7% from the best known with a window of 1, 3.3% with 18, 4.2% with 32, 5.3% with 48 and 6.2% with 64 (each
within 0.8%).
"""


class Compiler(Protocol):
    """What `tuner.compile.CompilePool` offers."""

    @property
    def workers(self) -> int: ...

    def submit(self, kernel: Kernel, problem: Problem, config: Config, arch: str) -> Future[Binary | Failure]: ...


@dataclass(slots=True, eq=False)
class Candidate:
    """A configuration between its ask and its tell."""

    config: Config
    compilation: Future[Binary | Failure] | None
    """None where the store knew the row."""
    row: Measurement | None = None
    taken: bool = False
    """Whether the judge has it."""
    asked_at: float = 0.0
    ready_at: float | None = None
    """When it was compiled, by `time.monotonic`; None before, and where there is no binary."""


class Candidates:
    """The candidates of one search. A context manager."""

    def __init__(
        self,
        search: Search,
        stored: Mapping[Config, Measurement],
        kernel: Kernel,
        problem: Problem,
        arch: str,
        trials: int,
        compiler: Compiler,
        spent: Spent,
        *,
        window: int = WINDOW,
    ) -> None:
        """`stored` answers what is known already; `trials` counts it, and what `search` knew beforehand."""
        self._search = search
        self._stored = stored
        self._kernel = kernel
        self._problem = problem
        self._arch = arch
        self._trials = trials
        self._compiler = compiler
        self._spent = spent
        self._window = window
        self._known = {*search.known, *stored}
        self._asking = True
        self.waiting: deque[Candidate] = deque()
        """What was asked and not yet handed out by `next_known`, in the order of asking."""
        self.bell = Bell()
        """Rings when a compilation is done."""
        self.ended = "trials"
        """Why there are no more: enough `trials`, the space is `exhausted`, the `time` is over, or it has `settled`."""

    def settle(self) -> None:
        """Ask no more: it is not worth it. What was asked is still judged, however far it is: see above."""
        if self._asking and len(self._known) < self._trials:
            self._asking, self.ended = False, "settled"

    def ask(self) -> bool:
        """Ask for one more and have it compiled, where the window has room and there is one."""
        if not self._asking or len(self.waiting) >= self._window or len(self._known) >= self._trials:
            return False
        with self._spent.during("ask"):
            config = self._search.ask()
        if config is None:
            self._asking, self.ended = False, "exhausted"
            return False
        self._known.add(config)
        stored = self._stored.get(config)
        self.waiting.append(
            Candidate(config, None, stored, taken=True) if stored is not None else self._submitted(config)
        )
        return True

    def fill(self) -> None:
        """Ask until the window is full."""
        while self.ask():
            pass

    def next_known(self) -> Candidate | None:
        """The oldest, where its row is known; it leaves the window, so the search must be told before the next ask."""
        return self.waiting.popleft() if self.waiting and self.waiting[0].row is not None else None

    def next_compiled(self) -> Candidate | None:
        """The oldest that is compiled, or failed to, and that nobody has taken yet; it is taken now."""
        for candidate in self.waiting:
            if not candidate.taken and candidate.compilation is not None and candidate.compilation.done():
                candidate.taken = True
                return candidate
        return None

    def drop(self) -> None:
        """The time is over: what was not taken will not be."""
        self._asking, self.ended = False, "time"
        for candidate in self.waiting:
            if candidate.compilation is not None:
                candidate.compilation.cancel()
        self.waiting.clear()

    def in_order(self, overdue: Callable[[], bool]) -> Iterator[tuple[Config, Binary | Failure | Measurement]]:
        """Each configuration with what became of its compilation, or with its stored row, in the order of asking.

        The caller tells the search about each before it takes the next. What is still compiling when `overdue` says so
        is dropped.
        """
        while True:
            self.fill()
            if not self.waiting:
                return
            if overdue():
                self.drop()
                return
            candidate = self.waiting.popleft()
            if candidate.row is not None:
                yield candidate.config, candidate.row
            elif candidate.compilation is not None:
                yield candidate.config, outcome(candidate.compilation)

    def _submitted(self, config: Config) -> Candidate:
        compilation = self._compiler.submit(self._kernel, self._problem, config, self._arch)
        candidate = Candidate(config, compilation, asked_at=time.monotonic())

        def done(future: Future[Binary | Failure]) -> None:
            if not future.cancelled() and future.exception() is None and isinstance(future.result(), Binary):
                candidate.ready_at = time.monotonic()
            self.bell.ring()

        compilation.add_done_callback(done)
        return candidate

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bell.close()


class Bell:
    """Rung by any thread; whoever waits for files (`multiprocessing.connection.wait`) can wait for it too."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._open = True

    def ring(self) -> None:
        with suppress(OSError):  # it is ringing anyway, or nobody listens
            if self._open:
                os.write(self._in, b".")

    def hush(self) -> None:
        """Until it is rung again."""
        with suppress(BlockingIOError):
            while os.read(self._out, 4096):
                pass

    def fileno(self) -> int:
        return self._out

    def close(self) -> None:
        """Nobody hears it any more. The end that is rung stays open: another thread may be about to."""
        if self._open:
            self._open = False
            os.close(self._out)

    def __del__(self) -> None:
        self.close()
        os.close(self._in)


def outcome(compilation: Future[Binary | Failure]) -> Binary | Failure:
    """What became of a compilation, once it is done.

    Raises:
        UserError: the compiler process was killed.
    """
    try:
        return compilation.result()
    except BrokenExecutor as error:
        # Which candidate it was cannot be told, so none is blamed in the store.
        raise UserError(
            "A compiler process was killed, probably for want of memory; free some and run the same command again: "
            "everything recorded so far is stored."
        ) from error
