"""The race: who counts, who does not, and what is said."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.trainer.fakes import Dies, Fake, Hangs, Refuses, RefusesLater, Slow, TellsItsCaches, WrongRate
from trainer import race as race_module
from trainer.contenders import PYTORCH, Eager, Reference, Task
from trainer.data import SAMPLE, load, permutations, scaled
from trainer.lanes import LaneError, LocalLane
from trainer.mlp import Network, fresh_weights
from trainer.process_lane import CACHES, ProcessLane
from trainer.race import Race, race, thinned
from trainer.race_table import headline, ratios, render_race
from trainer.schedule import Schedule
from tuner.errors import UserError
from tuner.store import ContenderRow, RaceRow, Store
from tuner.types import Device, Environment

SCHEDULE = Schedule(steps=40, repeats=3, warmup=20, lead_in=10)
ONES = np.ones(SCHEDULE.total, np.float32)

DEVICE = Device(
    name="Test GPU",
    arch="sm_75",
    sm_count=40,
    shared_per_block=65536,
    shared_per_sm=65536,
    registers_per_sm=65536,
    threads_per_sm=1024,
    blocks_per_sm=16,
    l2_bytes=4 << 20,
    memory_bytes=16 << 30,
    memory_bandwidth=320e9,
    l2_bandwidth=1.2e12,
    tensor_flops=65e12,
    clock_hz=1.59e9,
)
ENVIRONMENT = Environment(host="here", system="Linux", python="3.11")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products this small are slower on many threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def task() -> Task:
    dataset = load(SAMPLE)
    return Task(
        weights=fresh_weights(Network(width=16, layers=2), seed=1),
        images=scaled(dataset.train_images),
        labels=dataset.train_labels,
        order=permutations(len(dataset.train_images), 32, SCHEDULE.total, seed=2),
        lr=0.05,
        steps_per_call=10,
        device="cpu",
        test_images=scaled(dataset.test_images),
        test_labels=dataset.test_labels,
    )


@pytest.fixture
def flat(monkeypatch) -> None:
    """PyTorch's own losses are 1 throughout, as the fakes' are."""
    monkeypatch.setattr(race_module, "_yardstick", lambda *_: (ONES, ONES))


def stored(result: Race) -> RaceRow:
    return result.row(device=DEVICE, environment=ENVIRONMENT, seed=2, command="mnist-tune train")


def shown(row: RaceRow, details: dict[str, str] | None = None) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(render_race(row, details))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_pairs_medians_and_the_strongest(task, flat):
    result = race(Fake, {"slow": Slow, "quick": partial_us(20.0)}, task, schedule=SCHEDULE, isolated=False)
    row = stored(result)
    assert [contender.name for contender in row.contenders] == ["tuned", "slow", "quick"]
    assert row.strongest == "quick"
    # Fakes slow down by 1% of the first with each timed run: 2 for the start and warm-up, then lead-in and sample.
    assert row.ours.samples == pytest.approx((10.4, 10.6, 10.8), rel=0.01)
    assert row.ours.us_per_step == pytest.approx(10.6, rel=0.01)
    assert ratios(row, "slow") == pytest.approx((4.0, 4.0, 4.0), rel=0.01)
    assert row.contender("slow").peak_bytes == 3 << 20
    assert row.contender("slow").start_s >= 0
    assert (row.width, row.layers, row.batch, row.steps, row.lr) == (16, 2, 32, SCHEDULE.total, 0.05)
    assert (
        f"2.00x as fast as the strongest of the 2 PyTorch forms that raced ({len(PYTORCH)} exist): "
        "quick, 21.20 us; median of 3 pairs" in headline(row)
    )
    assert result.details["quick"].startswith("a fake; losses of steps")


def partial_us(value: float) -> type[Fake]:
    return type("Fake", (Fake,), {"us": value})


def test_turns_are_taken_and_the_order_is_reversed_each_time(task, flat):
    turns: list[str] = []

    def noting(name: str) -> type[Fake]:
        def timed(self: Fake, first_step: int, steps: int) -> float:
            turns.append(name)
            return Fake.timed(self, first_step, steps)

        return type(name, (Fake,), {"timed": timed})

    race(noting("A"), {"b": noting("B"), "c": noting("C")}, task, schedule=SCHEDULE, isolated=False)
    samples = "".join(turns[6:])
    assert "".join(turns[:6]) == "ABC" + "ABC", "all start, then all warm up"
    assert samples == "AABBCC" + "CCBBAA" + "AABBCC"


def test_a_failure_is_a_result_and_the_race_goes_on(task, flat):
    contenders = {"refuses": Refuses, "later": RefusesLater, "slow": Slow}
    row = stored(race(Fake, contenders, task, schedule=SCHEDULE, isolated=False))
    assert row.strongest == "slow"
    assert row.contender("refuses").error == "start: RuntimeError: no kernel image is available"
    assert row.contender("refuses").us_per_step is None
    assert row.contender("later").error == "run: MemoryError"
    text = shown(row)
    assert "refuses: start: RuntimeError: no kernel image is available" in text
    assert "4.00x as fast as" in text


def test_without_a_pytorch_contender_there_is_no_headline(task, flat):
    for contenders in ({}, {"refuses": Refuses}):
        row = stored(race(Fake, contenders, task, schedule=SCHEDULE, isolated=False))
        assert row.strongest == ""
        assert row.speedup is None
        assert "no PyTorch contender has a time, so there is no comparison" in headline(row)


def test_without_ours_there_is_no_headline_either(task, flat):
    row = stored(race(Refuses, {"slow": Slow}, task, schedule=SCHEDULE, isolated=False))
    assert "Our own step has no time, so there is no comparison (start: RuntimeError" in headline(row)
    assert row.contender("slow").us_per_step is not None


def test_slower_is_said_as_plainly(task, flat):
    row = stored(race(Slow, {"fake": Fake}, task, schedule=SCHEDULE, isolated=False))
    assert f"slower (0.25x) than the only PyTorch form that raced ({len(PYTORCH)} exist): fake" in headline(row)


def test_who_learns_something_else_has_no_time(task):
    contenders = {"eager": Eager, "wrong": WrongRate}
    result = race(PYTORCH["library"], contenders, task, schedule=SCHEDULE, isolated=False)
    row = stored(result)
    assert row.strongest == "eager"
    assert row.ours.error is None
    assert row.contender("wrong").us_per_step is None
    assert row.contender("wrong").error.startswith("wrong: losses of steps")
    assert len(row.contender("wrong").samples) == 3
    # 170 steps teach something: more than the one in ten of chance.
    assert row.ours.accuracy > 0.2
    assert row.ours.accuracy == pytest.approx(row.contender("eager").accuracy, abs=0.02)
    assert row.ours.losses[0][0] == 0
    assert row.ours.losses[-1][0] == SCHEDULE.total - 1


def test_ours_may_be_the_wrong_one(task):
    row = stored(race(WrongRate, {"eager": Eager}, task, schedule=SCHEDULE, isolated=False))
    assert "so there is no comparison (wrong: losses of steps" in headline(row)


def test_a_slow_contender_may_run_fewer_steps(task, flat):
    schedule = replace(SCHEDULE, longest_sample_s=0.0009)
    result = race(Fake, {"slow": Slow}, task, schedule=schedule, isolated=False)
    # 40 us a step: 22 steps in 900 us, that is two calls of 10.
    assert "20 steps per sample instead of 40" in result.details["slow"]
    assert "instead" not in result.details["tuned"]
    slow = stored(result).contender("slow")
    assert slow.us_per_step == pytest.approx(42.4, rel=0.01)
    assert slow.accuracy is None
    assert stored(result).ours.accuracy is not None


def test_a_reference_that_fails_is_said(task, monkeypatch):
    def refuse(self: Reference, task: Task) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Reference, "prepare", refuse)
    result = race(Fake, {"slow": Slow}, task, schedule=SCHEDULE, isolated=False)
    assert (
        "losses not compared, since PyTorch's fp32 run failed (RuntimeError: out of memory)" in result.details["slow"]
    )


def test_a_task_that_is_too_short(task):
    with pytest.raises(UserError, match="makes 170 steps and the task has batches for 100"):
        race(Fake, {}, replace(task, order=task.order[:100]), schedule=SCHEDULE)


def test_a_schedule_is_rounded_to_whole_calls():
    schedule = Schedule(steps=45, repeats=2, warmup=5, lead_in=0).rounded(20)
    assert (schedule.steps, schedule.warmup, schedule.lead_in) == (60, 40, 0)
    assert schedule.total == 40 + 2 * 60


def test_processes_of_their_own(task, flat):
    """Fakes, so that the processes start fast; one dies and says why."""
    result = race(Fake, {"slow": Slow, "dies": Dies}, task, schedule=SCHEDULE, console=Console(file=io.StringIO()))
    row = stored(result)
    assert row.strongest == "slow"
    assert ratios(row, "slow") == pytest.approx((4.0, 4.0, 4.0), rel=0.01)
    assert row.contender("dies").error == ("start: its process died (exit code 11): Segmentation fault, all is lost")


def test_a_process_that_hangs_is_killed(task, tmp_path):
    task.save(tmp_path)
    lane = ProcessLane(Hangs, tmp_path, timeout_s=3.0)
    with pytest.raises(LaneError, match="no answer within 3 s"):
        lane.start()
    lane.close()
    lane.close()


def test_cold_caches_are_empty_folders_of_its_own(task, tmp_path):
    task.save(tmp_path)
    told = []
    for _ in range(2):
        lane = ProcessLane(TellsItsCaches, tmp_path, timeout_s=60.0, cold=True)
        lane.start()
        told += lane.finish().notes.split()
        lane.close()
    assert len(set(told)) == 2 * len(CACHES)
    assert all(path.startswith(str(tmp_path)) for path in told)


def test_a_lane_that_has_not_started(task, tmp_path):
    for lane in (LocalLane(Fake, task), ProcessLane(Fake, tmp_path, 1.0)):
        with pytest.raises(LaneError, match="it has not started"):
            lane.run(10)
        lane.close()


def test_the_table(task, flat):
    result = race(Fake, {"slow": Slow, "refuses": Refuses}, task, schedule=SCHEDULE, isolated=False)
    text = shown(stored(result), dict(result.details))
    header = next(line for line in text.splitlines() if "us/step" in line)
    for column in ("contender", "spread", "vs ours", "start s", "peak MiB", "accuracy"):
        assert column in header
    lines = [line for line in text.splitlines() if line.startswith("│")]
    assert [line.split()[1] for line in lines] == ["tuned", "slow", "refuses"]
    assert "4.00x" in lines[1]
    assert "Race on Test GPU, 170 steps, lr 0.05" in text
    assert "slow: a fake; losses of steps" in text


def test_a_race_goes_through_the_store(task, flat, tmp_path):
    row = stored(race(Fake, {"slow": Slow, "refuses": Refuses}, task, schedule=SCHEDULE, isolated=False))
    with Store.open(tmp_path / "test.db") as store:
        store.record_race(row)
        (found,) = store.races()
    assert found == row
    assert headline(found) == headline(row)


def test_a_name_with_brackets_is_no_markup():
    odd = ContenderRow("[red]", 1.0, (1.0,), 0.0)
    row = RaceRow(DEVICE, ENVIRONMENT, 8, 1, 32, 10, 0.1, 0, "", "[red]", (odd,))
    assert "[red]" in shown(row)


def test_losses_are_thinned_to_means():
    assert thinned(np.arange(10, dtype=np.float32), points=4) == ((2, 1.0), (5, 4.0), (8, 7.0), (9, 9.0))
    assert thinned(np.ones(3, np.float32)) == ((0, 1.0), (1, 1.0), (2, 1.0))
    assert len(thinned(np.ones(26_000, np.float32))) == 200
