"""A hang or a crash costs the request that caused it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.workplaces import Actor, deadly, faulty, missing
from tuner.errors import UserError
from tuner.types import Failure, Status
from tuner.worker import Worker, WorkerLostError


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(Actor, limit_s=20) as started:
        yield started


def test_one_child_serves_many_requests(worker: Worker) -> None:
    assert [worker.call(("echo", n)) for n in range(5)] == list(range(5))
    assert worker.call(("pid",)) != os.getpid()
    assert worker.spawned == 1


def test_a_hang_costs_its_time_limit(worker: Worker) -> None:
    worker.call(("echo", 0))
    started = time.monotonic()
    assert worker.call(("hang",), limit_s=0.3) == Failure(Status.TIMEOUT, "no answer within 0.3 s")
    assert time.monotonic() - started < 5
    assert worker.call(("echo", 1)) == 1
    assert worker.spawned == 2


def test_a_crash_is_a_failure_with_its_reason(worker: Worker) -> None:
    assert worker.call(("die",)) == Failure(Status.RUNTIME, "the process was ended by SIGKILL")
    assert worker.call(("abort", "driver says no")) == Failure(
        Status.RUNTIME, "the process ended with code 3 (driver says no)"
    )
    assert worker.call(("echo", 1)) == 1


def test_three_deaths_in_a_row_stop_the_search(worker: Worker) -> None:
    worker.call(("die", 1))
    worker.call(("die", 2))
    worker.call(("echo", "an answer starts the count anew"))
    worker.call(("die", 3))
    worker.call(("die", 3))  # the same one again is no further evidence
    worker.call(("die", 4))
    with pytest.raises(WorkerLostError, match=r"died 3 times in a row.*SIGKILL.*nvidia-smi"):
        worker.call(("die", 5))


def test_hangs_do_not_count_as_deaths(worker: Worker) -> None:
    for number in range(4):
        assert worker.call(("hang", number), limit_s=0.05).status is Status.TIMEOUT


def test_a_child_that_lost_its_context_is_replaced(worker: Worker) -> None:
    first = worker.call(("pid",))
    assert worker.call(("sticky", "illegal address")) == "illegal address"
    assert worker.call(("pid",)) != first
    assert worker.spawned == 2


def test_what_a_candidate_prints_is_not_seen(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    assert worker.call(("print", 10_000)) == "quiet"
    assert capfd.readouterr() == ("", "")


def test_a_flood_of_complaints_ends_in_the_last_line(worker: Worker) -> None:
    flood = "\n".join(["noise " * 20] * 5000 + ["the driver says no"])
    assert worker.call(("abort", flood)) == Failure(
        Status.RUNTIME, "the process ended with code 3 (the driver says no)"
    )


def test_errors_of_users_and_bugs_are_raised_in_the_parent(worker: Worker) -> None:
    with pytest.raises(UserError, match=r"^Install g\+\+\.$"):
        worker.call(("user",))
    with pytest.raises(RuntimeError, match="KeyError: 'what'"):
        worker.call(("bug",))
    assert worker.call(("echo", 1)) == 1


def test_a_workplace_that_cannot_be_made() -> None:
    with Worker(missing) as worker, pytest.raises(UserError, match=r"^There is no device cuda:7\.$"):
        worker.call(("echo", 1))
    with (
        Worker(faulty) as worker,
        pytest.raises(WorkerLostError, match="could not start: ZeroDivisionError: of course"),
    ):
        worker.call(("echo", 1))
    with Worker(deadly) as worker, pytest.raises(WorkerLostError, match=r"could not start: .* code 9"):
        worker.call(("echo", 1))


def test_an_interrupt_ends_the_child(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    first = worker.call(("pid",))

    def interrupted(*_: object) -> list[object]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.connection.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.call(("echo", "late"))
    assert worker.call(("pid",)) != first


def test_answers_come_in_the_order_of_posting(worker: Worker) -> None:
    for number in range(5):
        worker.post(("sleep", 0.01, number))
    answers = [worker.wait() for _ in range(5)]
    assert [answer and answer.value for answer in answers] == list(range(5))
    assert worker.spawned == 1
    times = [time for answer in answers if answer for time in (answer.started, answer.finished)]
    assert times == sorted(times)
    assert answers[0] is not None
    assert answers[0].spent == {"asleep": 0.01}
    with pytest.raises(ValueError, match="nothing was posted"):
        worker.wait()


def test_the_child_goes_on_while_the_parent_is_busy(worker: Worker) -> None:
    worker.call(("echo", 0))
    for number in range(2):
        worker.post(("sleep", 0.2, number))
    time.sleep(0.5)
    first, second = worker.wait(), worker.wait()
    assert first is not None
    assert second is not None
    # Nobody fetched the first answer before the second request was done.
    assert second.started - first.finished < 0.15
    assert second.finished < time.monotonic()


def test_waiting_ends_for_other_reasons_too(worker: Worker) -> None:
    worker.call(("echo", 0))
    ours, theirs = os.pipe()
    try:
        with os.fdopen(ours, "rb", closefd=False) as also:
            worker.post(("sleep", 0.5, "slept"))
            assert worker.wait(timeout_s=0.01) is None
            os.write(theirs, b".")
            started = time.monotonic()
            assert worker.wait(also=[also]) is None
            assert time.monotonic() - started < 0.4
        answer = worker.wait()
        assert answer is not None
        assert answer.value == "slept"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("bad", "status"), [(("hang",), Status.TIMEOUT), (("die",), Status.RUNTIME), (("sticky", "bad"), None)]
)
def test_what_is_queued_behind_a_bad_request_is_run_again(
    worker: Worker, bad: tuple[str, ...], status: Status | None
) -> None:
    worker.call(("echo", 0))
    worker.post(bad, limit_s=0.3)
    worker.post(("echo", "behind"))
    worker.post(("echo", "last"))
    first = worker.wait()
    assert first is not None
    assert first.value == "bad" if status is None else first.value.status is status
    assert [answer.value for answer in (worker.wait(), worker.wait()) if answer] == ["behind", "last"]
    assert worker.spawned == 2


def test_the_second_of_two_is_blamed_for_its_own_death(worker: Worker) -> None:
    worker.post(("echo", "fine"))
    worker.post(("abort", "mine"))
    time.sleep(0.3)  # both are over before anybody looks
    answers = [worker.wait(), worker.wait()]
    assert [answer and answer.value for answer in answers] == [
        "fine",
        Failure(Status.RUNTIME, "the process ended with code 3 (mine)"),
    ]


def test_the_time_limit_of_a_queued_request_counts_from_its_start(worker: Worker) -> None:
    worker.call(("echo", 0))
    worker.post(("sleep", 0.6, "slow"))
    worker.post(("sleep", 0.4, "in time"), limit_s=0.55)
    worker.post(("hang",), limit_s=0.1)
    assert [answer.value for answer in (worker.wait(), worker.wait()) if answer] == ["slow", "in time"]
    started = time.monotonic()
    answer = worker.wait()
    assert answer is not None
    assert answer.value == Failure(Status.TIMEOUT, "no answer within 0.1 s")
    assert time.monotonic() - started < 5


def test_an_answer_that_came_too_late_is_a_timeout_though_nobody_looked(worker: Worker) -> None:
    worker.call(("echo", 0))
    worker.post(("sleep", 0.2, "late"), limit_s=0.05)
    worker.post(("echo", "next"), limit_s=5)
    time.sleep(0.5)
    answers = [worker.wait(), worker.wait()]
    assert [answer and answer.value for answer in answers] == [
        Failure(Status.TIMEOUT, "no answer within 0.05 s"),
        "next",
    ]


def test_a_request_too_large_for_the_pipe_does_not_hold_the_parent(worker: Worker) -> None:
    worker.call(("echo", 0))
    worker.post(("sleep", 0.3, "first"))
    started = time.monotonic()
    worker.post(("echo", "x" * (4 << 20)))
    assert time.monotonic() - started < 0.25
    answers = [worker.wait(), worker.wait()]
    assert [len(answer.value) for answer in answers if answer] == [5, 4 << 20]


def test_an_error_leaves_nothing_posted(worker: Worker) -> None:
    worker.post(("user",))
    worker.post(("echo", "forgotten"))
    with pytest.raises(UserError):
        worker.wait()
    assert worker.call(("echo", "next")) == "next"


def test_a_call_among_posted_requests_is_a_bug(worker: Worker) -> None:
    worker.post(("echo", 0))
    with pytest.raises(RuntimeError, match="posted requests"):
        worker.call(("echo", 1))


def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, signal
            from tests.tuner.workplaces import Actor
            from tuner.worker import Worker
            if __name__ == "__main__":
                print(Worker(Actor).call(("pid",)), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )
    child = int(done.stdout)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]:
            break
        time.sleep(0.02)
    assert time.monotonic() < deadline
