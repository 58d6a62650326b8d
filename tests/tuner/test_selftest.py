"""The selftest itself: by emulation from end to end, and the GPU's path over the fake CuPy."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.tuner.fake_cupy import Gpu
from tests.tuner.toy import ENVIRONMENT, InstantCompiler, Posting
from tuner import judge
from tuner.backends.cuda import _GUARD_BYTES
from tuner.candidates import Compiler
from tuner.compile import ARCHITECTURES, compile_kernel
from tuner.devices import find
from tuner.errors import UserError
from tuner.judge import CudaWorkplace, Job
from tuner.progress import Silent
from tuner.selftest.faults import COOPERATIVE_BLOCKS, FAULTS, RIGHT, SHARED_LIMIT_BYTES, Fault
from tuner.selftest.run import run_selftest, show
from tuner.selftest.trials import KERNEL, PROBLEM, Bench, Outcome
from tuner.store import Store
from tuner.task import Poster, ProblemResult, Settings
from tuner.tune import tune
from tuner.types import Binary, Config, Device, Failure, Status

T4 = find("Tesla T4")
BY_NAME: Mapping[str, Fault] = {fault.name: fault for fault in FAULTS}
LIMIT_S = 1.5


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What `mnist-tune selftest --device cpu --json` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run_selftest(device="cpu", limit_s=LIMIT_S, as_json=True)
    found: dict[str, Any] = json.loads(printed.getvalue())
    assert (code, found["passed"]) == (0, True), found
    return found


def test_every_fault_is_tried_or_said_not_to_be(document: dict[str, Any]) -> None:
    assert [row["fault"] for row in document["faults"]] == [fault.name for fault in FAULTS if not fault.needs_gpu]
    assert document["not_run"] == [
        {"fault": "slow", "does": "takes milliseconds", "why": "nothing is timed without a GPU"}
    ]


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("none", "ok", ""),
        ("large_shared", "ok", ""),
        ("hang", "timeout", "still running after 1.5 s"),
        ("out_of_bounds", "runtime", "of buffer y (20011 elements)"),
        ("illegal_address", "runtime", "out-of-bounds"),
        ("trap", "runtime", "__trap()"),
        ("nan", "wrong", "1 of 20011 elements are not finite or were never written, first at (17)"),
        ("outlier", "wrong", "an element's error"),
        ("partial", "wrong", "43 of 20011 elements are not finite or were never written, first at (19968)"),
        ("stale", "wrong", "a second launch on the same inputs differs"),
        ("read_outside", "runtime", "of buffer x (20011 elements)"),
        ("changed_input", "wrong", "x: an input was changed"),
        ("counter", "wrong", "a counter is not zero"),
        ("race", "wrong", "relative error"),
        ("order", "wrong", "a second launch on the same inputs differs"),
        ("shared_limit", "resources", "307200 bytes of shared memory in a block, the limit is 65536"),
        ("threads_limit", "resources", "2048 threads in a block, the limit is 1024"),
        ("cooperative_limit", "resources", "a cooperative grid of 1048576 blocks"),
        ("compile_error", "compile", "this fault is one for the compiler"),
        ("printf_flood", "ok", ""),
    ],
)
def test_each_has_its_status_and_the_right_one_after_it_passes(
    document: dict[str, Any], fault: str, status: str, words: str
) -> None:
    (row,) = (row for row in document["faults"] if row["fault"] == fault)
    assert (row["status"], row["complaint"]) == (status, None)
    assert words in row["message"]
    assert row["next"]["status"] == "ok"


def test_a_hang_costs_its_time_limit_by_emulation(document: dict[str, Any]) -> None:
    (row,) = (row for row in document["faults"] if row["fault"] == "hang")
    assert LIMIT_S <= row["seconds"] <= LIMIT_S + 5


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("fault", ["hang", "order", "slow", "printf_flood"])
def test_the_source_compiles(fault: str, arch: str) -> None:
    assert isinstance(compile_kernel(KERNEL, PROBLEM, Config.of(FAULT=fault), arch), Binary)


def test_what_is_over_a_limit_is_so_on_every_known_device() -> None:
    from tuner.devices import KNOWN

    for device in KNOWN.values():
        assert device.shared_per_block < SHARED_LIMIT_BYTES
        assert device.blocks_per_sm * device.sm_count < COOPERATIVE_BLOCKS
        large = KERNEL.launch(PROBLEM, Config.of(FAULT="large_shared")).shared_bytes
        assert 48 << 10 < large <= device.shared_per_block


# --- the GPU's path, with the kernel written out in NumPy


def right(x: Any, y: Any, arrived: Any) -> None:
    y[...] = 2 * x + np.float32(1)


def spoiled(spoil: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    def compute(x: Any, y: Any, arrived: Any) -> None:
        right(x, y, arrived)
        spoil(x, y, arrived)

    return compute


def put(position: int, value: float) -> Callable[[Any, Any, Any], None]:
    def spoil(x: Any, y: Any, arrived: Any) -> None:
        y[position] = value

    return spoiled(spoil)


def add(position: int, value: float) -> Callable[[Any, Any, Any], None]:
    def spoil(x: Any, y: Any, arrived: Any) -> None:
        y[position] += np.float32(value)

    return spoiled(spoil)


def beyond(array: Any) -> Any:
    """The bytes of the buffer that `array` lies in, up to its end."""
    return array.base if array.base.dtype == np.uint8 else array.base.base


def partial_write(x: Any, y: Any, arrived: Any) -> None:
    whole = len(x) - len(x) % 64
    y[:whole] = 2 * x[:whole] + np.float32(1)


def stale(x: Any, y: Any, arrived: Any) -> None:
    y[...] = np.fmax(2 * x + np.float32(1), y)


class Turns:
    """Gives other bits at each launch."""

    turn = 0

    def __call__(self, x: Any, y: Any, arrived: Any) -> None:
        right(x, y, arrived)
        self.turn += 1
        y[3] = np.nextafter(y[3], np.float32(np.inf if self.turn % 2 else -np.inf))


def changed_input(x: Any, y: Any, arrived: Any) -> None:
    right(x, y, arrived)
    x[-1] += 1


def counting(x: Any, y: Any, arrived: Any) -> None:
    right(x, y, arrived)
    arrived[0] = 1


def out_of_bounds(x: Any, y: Any, arrived: Any) -> None:
    right(x, y, arrived)
    beyond(y)[-_GUARD_BYTES:][:32] = 0


def read_outside(x: Any, y: Any, arrived: Any) -> None:
    right(x, y, arrived)
    y[-64:] += 0 * beyond(x)[-_GUARD_BYTES:][:256].view(np.float32)


LAUNCHES: dict[str, Callable[[Any, Any, Any], None]] = {
    "nan": put(17, np.nan),
    "outlier": add(17, 1.5e-4),
    "partial": partial_write,
    "stale": stale,
    "order": Turns(),
    "race": put(12, 1.0),
    "changed_input": changed_input,
    "counter": counting,
    "out_of_bounds": out_of_bounds,
    "read_outside": read_outside,
}


class FakeChild(Posting):
    """The workplace of the child that owns the GPU, in this process; a hang is told as `Worker` tells it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.gpu = Gpu().install(patch)
        patch.setattr(judge, "resolve", lambda _: T4)
        self._workplace = CudaWorkplace("cuda:0")
        self.lost = 0

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        fault = request.config.choice("FAULT") if isinstance(request, Job) else RIGHT
        if fault == "hang":
            return Failure(Status.TIMEOUT, "no answer in time")
        self.gpu.compute = LAUNCHES.get(fault, right)
        self.gpu.sync_error = "cudaErrorIllegalAddress" if fault in {"illegal_address", "trap"} else ""
        self.gpu.launches.clear()
        answer = self._workplace.handle(request)
        if self._workplace.lost:
            self.lost += 1
            self._workplace = CudaWorkplace("cuda:0")
        return answer


def test_each_fault_has_its_status_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    child = FakeChild(monkeypatch)
    compiler = InstantCompiler(broken=lambda config: config["FAULT"] == "compile_error")
    outcomes = list(Bench(T4, True, child, compiler, 10.0).outcomes(FAULTS))
    assert [(outcome.fault.name, outcome.complaint) for outcome in outcomes] == [(fault.name, None) for fault in FAULTS]
    assert all(outcome.next_us == pytest.approx(2.0) for outcome in outcomes)
    assert child.lost == 2
    assert len(compiler.compiled) == len(FAULTS) + 1


def searched(
    worker: Poster, device: Device, path: Path, pool: AbstractContextManager[Compiler] | None = None
) -> tuple[ProblemResult, dict[str, Status]]:
    """A search of the space that is all faults: its result, and the status that the store has for each."""
    with Store.open(path / "tuning.db") as store:
        (result,) = tune(
            [PROBLEM],
            kernels={KERNEL.name: KERNEL},
            store=store,
            device=device,
            environment=ENVIRONMENT,
            settings=Settings(trials=len(FAULTS), sampler="grid", limit_s=10.0),
            progress=Silent(),
            worker=worker,
            pool=pool,
        )
        rows = [observation.measurement for observation in store.observations(kernel=KERNEL.name)]
    return result, {row.config.choice("FAULT"): row.status for row in rows}


def test_a_search_through_all_faults_measures_what_is_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    child = FakeChild(monkeypatch)
    compiler = InstantCompiler(broken=lambda config: config["FAULT"] == "compile_error")
    result, statuses = searched(child, T4, tmp_path, compiler)
    assert {fault.name: statuses[fault.name] in fault.expected for fault in FAULTS} == dict.fromkeys(BY_NAME, True)
    assert result.best is not None
    assert BY_NAME[result.best.config.choice("FAULT")].expected[0] is Status.OK


# --- what it says


def outcome(name: str, status: Status, message: str = "", **more: Any) -> Outcome:
    values: dict[str, Any] = {
        "seconds": 0.1,
        "limit_s": 10.0,
        "next_status": Status.OK,
        "next_message": "",
        "next_us": 2.5,
        "next_seconds": 0.1,
    }
    return Outcome(BY_NAME[name], status, message, **{**values, **more})


@pytest.mark.parametrize(
    ("seen", "complaint"),
    [
        (outcome("nan", Status.WRONG), None),
        (outcome("nan", Status.OK), "is ok, not wrong"),
        (outcome("printf_flood", Status.RUNTIME), "is runtime, not ok or timeout"),
        (outcome("hang", Status.TIMEOUT, seconds=14.9), None),
        (outcome("hang", Status.TIMEOUT, seconds=15.1), "cost 15.1 s, with a time limit of 10 s"),
        (
            outcome("trap", Status.RUNTIME, next_status=Status.LAUNCH, next_message="no GPU"),
            "spoils the right candidate after it: launch, no GPU",
        ),
    ],
)
def test_what_is_not_as_it_must_be_is_a_complaint(seen: Outcome, complaint: str | None) -> None:
    assert seen.complaint == complaint
    assert seen.summary()["complaint"] == complaint


def shown(*outcomes: Outcome, measured: bool = True) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    show(console, outcomes, [BY_NAME["slow"]], measured=measured)
    return console.export_text()


def test_the_table() -> None:
    text = shown(outcome("nan", Status.WRONG, "y: 1 of 20011 elements [17]"), outcome("slow", Status.OK))
    lines = text.splitlines()
    assert lines[0].split() == ["fault", "expected", "got", "s", "next", "us", "message"]
    assert lines[1].split(maxsplit=5) == ["nan", "wrong", "wrong", "0.1", "2.50", "y: 1 of 20011 elements [17]"]
    assert "Not run: slow (takes milliseconds), because nothing is timed without a GPU." in text
    assert "Passed: 2 candidates got their status, and the right one after each was measured." in text


def test_what_failed_is_named() -> None:
    text = shown(outcome("nan", Status.OK), outcome("hang", Status.TIMEOUT), measured=False)
    assert "Failed: nan is ok, not wrong." in text
    assert "Passed" not in text


class Deaf:
    """Judges everything to be right."""

    def call(self, request: Any, *, limit_s: float | None = None) -> Any:
        return Failure(Status.OK, "")


def test_a_tuner_that_lets_everything_pass_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.selftest.run.workplace", lambda *_: (None, None, contextlib.nullcontext(Deaf())))
    console = Console(width=120, record=True, file=io.StringIO())
    code = run_selftest(faults=[BY_NAME[RIGHT], BY_NAME["nan"]], console=console, pool=InstantCompiler())
    assert code == 1
    text = console.export_text()
    assert text.startswith("No GPU is used: by emulation, with a time limit of 10 s.")
    assert "Failed: nan is ok, not wrong." in text


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), 61.0])
def test_a_time_limit_that_makes_no_sense_is_refused(limit: float) -> None:
    with pytest.raises(UserError, match=r"^--limit .* is out of range; give a number of seconds up to 60\.$"):
        run_selftest(device="cpu", limit_s=limit)
