"""Each fault, and a right candidate after it, by the path of a search: compile, worker, verify, time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tuner.backends.model import predict
from tuner.candidates import Compiler, outcome
from tuner.judge import CheckJob, Job
from tuner.predicting import EMULATION_LIMIT_S
from tuner.selftest.faults import RIGHT, Fault, Faults
from tuner.task import Caller
from tuner.types import Binary, CacheState, Config, Device, Failure, Measurement, Status
from tuner.verify import Verdict

KERNEL = Faults()
PROBLEM = KERNEL.problem(20011)
"""An odd size, for a tail; large enough that one wrong element hides from the Frobenius error."""

GRACE_S = 5.0
"""How much more than its time limit a hang may cost."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a fault, and of the right candidate after it."""

    fault: Fault
    status: Status
    message: str
    seconds: float
    """What the fault cost, without its compilation."""
    limit_s: float
    next_status: Status
    next_message: str
    next_us: float | None
    """Microseconds per launch; None without a GPU."""
    next_seconds: float
    """With a new child, where the fault cost the old one."""

    @property
    def complaint(self) -> str | None:
        """What is not as it must be; None where all is."""
        if self.status not in self.fault.expected:
            return f"is {self.status}, not {' or '.join(self.fault.expected)}"
        if self.status is Status.TIMEOUT and self.seconds > self.limit_s + GRACE_S:
            return f"cost {self.seconds:.1f} s, with a time limit of {self.limit_s:g} s"
        if self.next_status is not Status.OK:
            return f"spoils the right candidate after it: {self.next_status}, {self.next_message}"
        return None

    def summary(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "fault": self.fault.name,
            "does": self.fault.does,
            "expected": [status.value for status in self.fault.expected],
            "status": self.status.value,
            "message": self.message,
            "seconds": round(self.seconds, 3),
            "next": {
                "status": self.next_status.value,
                "message": self.next_message,
                "us": self.next_us,
                "seconds": round(self.next_seconds, 3),
            },
            "complaint": self.complaint,
        }


@dataclass(frozen=True, slots=True)
class Bench:
    """Where candidates are judged: on the GPU `device` (`measured`), or by emulation, with the limits of `device`."""

    device: Device
    measured: bool
    worker: Caller
    compiler: Compiler
    limit_s: float

    def outcomes(self, faults: Sequence[Fault]) -> Iterator[Outcome]:
        """The outcome of each fault, in order.

        Raises:
            UserError: something is missing that the user can mend, or the GPU is gone.
        """
        compiled = {name: self._submit(name) for name in (RIGHT, *(fault.name for fault in faults))}
        for number, fault in enumerate(faults):
            started = time.monotonic()
            seen = self._judge(fault.name, outcome(compiled[fault.name]), 2 * number)
            between = time.monotonic()
            after = self._judge(RIGHT, outcome(compiled[RIGHT]), 2 * number + 1)
            yield Outcome(
                fault=fault,
                status=seen.status,
                message=seen.message,
                seconds=between - started,
                limit_s=self.limit_s,
                next_status=after.status,
                next_message=after.message,
                next_us=after.median_us if isinstance(after, Measurement) else None,
                next_seconds=time.monotonic() - between,
            )

    def _submit(self, name: str) -> Future[Binary | Failure]:
        return self.compiler.submit(KERNEL, PROBLEM, Config.of(FAULT=name), self.device.arch)

    def _judge(self, name: str, binary: Binary | Failure, seed: int) -> Measurement | Verdict | Failure:
        config = Config.of(FAULT=name)
        if isinstance(binary, Failure):
            return binary
        answer: Measurement | Verdict | Failure
        if self.measured:
            job = Job(KERNEL, PROBLEM, config, binary, CacheState.HOT, seed)
            answer = self.worker.call(job, limit_s=self.limit_s)
            return answer
        prediction = predict(
            self.device, KERNEL.launch(PROBLEM, config), binary, KERNEL.work(PROBLEM, config), CacheState.HOT
        )
        if isinstance(prediction, Failure):
            return prediction
        # The emulation keeps the time limit by itself: g++ takes its time too, and is not to be killed for it.
        answer = self.worker.call(CheckJob(KERNEL, PROBLEM, config, seed), limit_s=EMULATION_LIMIT_S)
        return answer
