"""Asks ahead of the judge and compiles in the pool meanwhile, so that the GPU does not wait for a compiler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Future
from typing import Protocol

from tuner.errors import UserError
from tuner.kernel import Kernel
from tuner.search import Search
from tuner.types import Binary, Config, Failure, Measurement, Problem

SPARE = 2
"""Compiled candidates that wait for the judge, beyond one per compiler process."""


class Compiler(Protocol):
    """What `tuner.compile.CompilePool` offers."""

    @property
    def workers(self) -> int: ...

    def submit(self, kernel: Kernel, problem: Problem, config: Config, arch: str) -> Future[Binary | Failure]: ...


class Candidates:
    """The candidates of one search, in the order in which they were asked.

    The order does not depend on which compilation is done first, so the same seed gives the same search.
    """

    def __init__(
        self,
        search: Search,
        stored: Mapping[Config, Measurement],
        kernel: Kernel,
        problem: Problem,
        arch: str,
        trials: int,
        compiler: Compiler,
    ) -> None:
        """`stored` answers what is known already; `trials` counts it, and what `search` knew beforehand."""
        self._search = search
        self._stored = stored
        self._kernel = kernel
        self._problem = problem
        self._arch = arch
        self._trials = trials
        self._compiler = compiler
        self._known = {*search.known, *stored}
        self._stopped = False
        self.ended = "trials"
        """Why there are no more: enough `trials`, the space is `exhausted`, the `time` is over, or it has `settled`."""

    def settle(self) -> None:
        """Ask no more: it is not worth it."""
        self._stopped = True

    def until(self, overdue: Callable[[], bool]) -> Iterator[tuple[Config, Binary | Failure | Measurement]]:
        """Each configuration with what became of its compilation, or with its stored row.

        The caller tells the search about each before it takes the next. What is still compiling when `overdue` says so
        is dropped.
        """
        waiting: deque[tuple[Config, Measurement | Future[Binary | Failure]]] = deque()
        while True:
            if self._stopped and (waiting or len(self._known) < self._trials):
                self.ended = "settled"
                _cancel(waiting)
                return
            while len(waiting) < self._compiler.workers + SPARE and len(self._known) < self._trials:
                config = self._search.ask()
                if config is None:
                    self.ended = "exhausted"
                    break
                self._known.add(config)
                stored = self._stored.get(config)
                waiting.append((config, stored if stored is not None else self._submit(config)))
            if not waiting:
                return
            if overdue():
                self.ended = "time"
                _cancel(waiting)
                return
            config, item = waiting.popleft()
            yield config, outcome(item) if isinstance(item, Future) else item

    def _submit(self, config: Config) -> Future[Binary | Failure]:
        return self._compiler.submit(self._kernel, self._problem, config, self._arch)


def _cancel(waiting: Iterable[tuple[Config, Measurement | Future[Binary | Failure]]]) -> None:
    for _, item in waiting:
        if isinstance(item, Future):
            item.cancel()


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
