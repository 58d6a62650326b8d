"""The command line as a user meets it: what it refuses and how it says so, what it prints where, how it stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cli
from tests.commands import mnist_tune, start, wait_until_gone
from tests.trainer.plans import T4, add
from trainer.data import SAMPLE
from tuner.store import Store

CHEAP = "softmax_cross_entropy 8x10"
SEARCH = ("search", "--shapes", CHEAP, "--trials", "3", "--device", "cpu")
TRAIN = ("train", "--width", "16", "--layers", "1", "--steps", "3", "--device", "cpu", "--data", SAMPLE)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a row."""
    import kernels

    file = tmp_path_factory.mktemp("filled") / "tuning.db"
    kernel = kernels.softmax_cross_entropy
    with Store.open(file) as store:
        add(store, kernel, kernel.problem(64, 10), kernel.space(kernel.problem(64, 10), T4).default(), 2.0)
    return file


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copyfile(filled, tmp_path / "tuning.db"))


def refused(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """Check that `done` said one sentence with `words` and nothing else on stderr, and ended with code 2."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("mnist-tune: ")
    for word in words:
        assert word in lines[0]
    return lines[0]


class TestOneSentence:
    """What issue 2 lists as bad inputs, each through a real process."""

    @pytest.mark.parametrize("width", ["0", "-1", "abc"])
    @pytest.mark.parametrize("command", ["search --shapes mlp --widths", "train --width"])
    def test_a_width(self, command: str, width: str, store: Path) -> None:
        before = store.read_bytes()
        sentence = refused(mnist_tune(*command.split(), width, "--db", store), "width")
        assert width in sentence or width == "abc"
        assert store.read_bytes() == before

    def test_a_shape(self, store: Path) -> None:
        before = store.read_bytes()
        done = mnist_tune("search", "--shapes", "32x0x5", "--db", store)
        refused(done, "The shape 32x0x5 has a size outside 1 to 1048576; give sizes of at least 1.")
        assert store.read_bytes() == before

    @pytest.mark.parametrize("command", [SEARCH, TRAIN, ("report",), ("explain", "32x16x10")], ids=lambda c: c[0])
    def test_a_store_that_is_not_a_database(self, command: tuple[str, ...], tmp_path: Path) -> None:
        file = tmp_path / "letter.txt"
        file.write_text("Dear reader, " * 100)
        refused(mnist_tune(*command, "--db", file), f"{file} is not a SQLite database; name another file with --db")
        assert file.read_text() == "Dear reader, " * 100

    @pytest.mark.parametrize("command", [SEARCH, TRAIN], ids=lambda command: command[0])
    def test_a_read_only_store(self, command: tuple[str, ...], store: Path) -> None:
        before = store.read_bytes()
        store.chmod(0o444)
        done = mnist_tune(*command, "--db", store)
        refused(done, f"The store {store} is read-only; copy it to a folder that can be written")
        assert done.stdout == "", "said before any work is done"
        assert store.read_bytes() == before

    @pytest.mark.parametrize("command", [SEARCH, TRAIN, ("report",), ("explain", "32x16x10")], ids=lambda c: c[0])
    def test_a_store_from_a_newer_version(self, command: tuple[str, ...], store: Path) -> None:
        with closing(sqlite3.connect(store)) as connection, connection:
            connection.execute("UPDATE mnist_tune_version SET version_num = '9999'")
        before = store.read_bytes()
        refused(mnist_tune(*command, "--db", store), "has version 9999", "upgrade mnist-tune")
        assert store.read_bytes() == before

    def test_an_empty_data_folder(self, tmp_path: Path, store: Path) -> None:
        folder = tmp_path / "data"
        folder.mkdir()
        done = mnist_tune("train", "--width", "16", "--data", folder, "--db", store)
        refused(done, f"The data folder {folder} has no train-images-idx3-ubyte.gz", "put the four IDX files there.")

    @pytest.mark.parametrize("command", [SEARCH[:5], TRAIN[:7], ("explain", "32x16x10")], ids=lambda c: c[0])
    def test_a_device_that_is_not_there(self, command: tuple[str, ...], store: Path) -> None:
        # True where there is no GPU at all, too.
        done = mnist_tune(*command, "--device", "cuda:7", "--db", store, CUDA_VISIBLE_DEVICES="")
        refused(done, "There is no device cuda:7: no GPU is visible; name one that is, or use --device cpu.")

    @pytest.mark.parametrize("command", [SEARCH, TRAIN], ids=lambda command: command[0])
    def test_no_gpp(self, command: tuple[str, ...], tmp_path: Path, store: Path) -> None:
        # Neither a compiler nor anything that one has compiled before.
        done = mnist_tune(*command, "--db", store, PATH=tmp_path, MNIST_TUNE_CACHE=tmp_path / "cache")
        refused(done, "g++ was not found", "install it with: apt install g++")
        with Store.open(store) as opened:
            assert len(opened.observations()) == 1
            assert opened.races() == []

    @pytest.mark.parametrize("command", [SEARCH, TRAIN], ids=lambda command: command[0])
    def test_an_unwritable_cache(self, command: tuple[str, ...], tmp_path: Path, store: Path) -> None:
        # Below a regular file nobody can make a folder, not even root.
        (tmp_path / "file").touch()
        cache = tmp_path / "file" / "cache"
        done = mnist_tune(*command, "--db", store, MNIST_TUNE_CACHE=cache)
        refused(done, f"The cache folder {cache}", "set MNIST_TUNE_CACHE to a folder that can.")
        with Store.open(store) as opened:
            assert len(opened.observations()) == 1


RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("search --trials 0", "--trials 0 tries nothing"),
        ("search --trials many", "--trials"),
        ("search --timeout nan", "--timeout nan leaves no time"),
        ("search --timeout -1", "--timeout -1 leaves no time"),
        ("search --seed -1", "--seed -1 is out of range"),
        ("search --sampler guess", "'guess' is not one of"),
        ("search --arch turing", "--arch turing is not an architecture; write it as sm_75."),
        ("search --device cpu --arch sm_999", "does not compile for sm_999; it knows sm_75, "),
        ("search --device cpu --predict-for voodoo", "No GPU called 'voodoo' is known"),
        ("search --device tpu", "--device tpu is not understood"),
        ("search --shapes ''", "The shape '' is not batch x in x out"),
        ("search --shapes 32x784", "The shape '32x784' is not batch x in x out"),
        ("search --shapes 9x9x99999999999", "has a size outside 1 to 1048576"),
        ("search --shapes é", "'é' is neither mlp, nor a shape"),
        ("search --widths 128,,256", "The width '' is not a whole number"),
        ("search --layers 0", "The number of hidden layers is 0"),
        ("search --batch 0", "The batch is 0"),
        ("train --steps 1 --epochs 1", "Give --epochs or --steps, not both."),
        ("train --steps 0", "--steps 0 trains nothing"),
        ("train --width 8 --widths 8,16", "Give --width or --widths, not both."),
        ("train --widths 8,wide", "The width 'wide' is not a whole number"),
        ("train --starts 0", "--starts 0 starts nothing"),
        ("train --out nowhere/at/all.json", "The folder of --out nowhere/at/all.json does not exist"),
        ("train --device cpu --width 16 --steps 99999999999", "99999999999 steps are more than one run can make"),
        ("train --lr nan", "--lr nan is not a learning rate"),
        ("train --lr -0.1", "--lr -0.1 is not a learning rate"),
        ("train --seed -1", "--seed -1 is out of range"),
        ("train --layers 99", "The number of hidden layers is 99"),
        ("train --contenders nobody", "There is no contender 'nobody'"),
        ("train --contenders ''", "There is no contender ''"),
        ("report --json --md", "Choose --json or --md"),
        ("report --html {folder}", "cannot be written (Is a directory)"),
        ("report --device voodoo", "The store has no device 'voodoo'"),
        ("explain", "Missing argument"),
        ("explain 32x16x10 again", "unexpected extra argument"),
        ("fly", "No such command 'fly'"),
        ("report --fast", "No such option: --fast"),
    ],
)
def test_other_arguments_that_make_no_sense(arguments: str, words: str, store: Path) -> None:
    parts = [part.format(folder=store.parent).replace("''", "") for part in arguments.split()]
    database = [] if parts[0] == "fly" else ["--db", str(store)]
    before = store.read_bytes()
    done = RUNNER.invoke(cli.app, [*parts, *database])
    refused(subprocess.CompletedProcess(parts, done.exit_code, done.stdout, done.stderr), words)
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    "database", ["{}/no/such/folder.db", "{}", "~no-such-user/x.db", "foo://bar", "://", "a" * 300]
)
def test_databases_that_cannot_be(database: str, tmp_path: Path) -> None:
    done = RUNNER.invoke(cli.app, ["report", "--db", database.format(tmp_path)])
    refused(subprocess.CompletedProcess([], done.exit_code, done.stdout, done.stderr))


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000], ids=["name", "path"])
def test_a_data_folder_whose_name_is_too_long(name: str, store: Path) -> None:
    done = RUNNER.invoke(cli.app, ["train", "--device", "cpu", "--data", name, "--db", str(store)])
    refused(subprocess.CompletedProcess([], done.exit_code, done.stdout, done.stderr), "(File name too long)")


def test_help_is_no_error_and_no_command_is() -> None:
    done = RUNNER.invoke(cli.app, ["--help"])
    assert done.exit_code == 0
    assert all(command in done.stdout for command in ("search", "train", "report", "explain", "doctor"))
    done = RUNNER.invoke(cli.app, [])
    assert done.exit_code == 2
    assert "search" in done.stdout + done.stderr


def test_a_bug_is_not_dressed_up_as_a_users_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("trainer.report.run_report", broken)
    assert isinstance(RUNNER.invoke(cli.app, ["report", "--db", str(store)]).exception, ZeroDivisionError)


def test_search_train_report_and_explain_follow_each_other(tmp_path: Path) -> None:
    file, page = tmp_path / "tuning.db", tmp_path / "report.html"
    problems = tmp_path / "problems.txt"
    problems.write_text("# the loss alone\nsoftmax_cross_entropy 32x10\n")
    environment = {"MNIST_TUNE_DB": file}
    searched = mnist_tune("search", "--shapes", problems, "--trials", "3", "--device", "cpu", "--json", **environment)
    assert (searched.returncode, searched.stderr) == (0, "")
    [problem] = json.loads(searched.stdout)["problems"]
    assert (problem["kernel"], problem["new"]) == ("softmax_cross_entropy", 3)

    trained = mnist_tune(*TRAIN, "--json", **environment)
    assert (trained.returncode, trained.stderr) == (0, "")
    document = json.loads(trained.stdout)
    rungs = {line["problem"]: line["rung"] for line in document["plan"]}
    assert rungs.pop("softmax_cross_entropy 32x10") == "predicted"
    assert set(rungs.values()) == {"default"}
    assert document["command"].startswith("mnist-tune train") or document["command"].startswith("-c train")

    reported = mnist_tune("report", "--json", "--html", page, **environment)
    assert (reported.returncode, reported.stderr) == (0, "")
    assert "Tesla T4" in json.dumps(json.loads(reported.stdout))
    assert page.read_text().startswith("<!doctype html>") or page.read_text().startswith("<!DOCTYPE html>")

    explained = mnist_tune("explain", "softmax_cross_entropy 32x10", "--device", "T4", "--json", **environment)
    assert (explained.returncode, explained.stderr) == (0, "")
    assert json.loads(explained.stdout)[0]["config"] == problem["config"]


@pytest.mark.parametrize(
    "command", [("report",), ("report", "--json"), SEARCH, TRAIN], ids=lambda command: " ".join(map(str, command[:2]))
)
def test_a_reader_that_leaves_is_no_error(command: tuple[str, ...], store: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*command, "--db", store, options={"stdout": writer})
    os.close(writer)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (141, "")
    assert wait_until_gone(process.pid) == []


def test_a_full_disk_is_one_sentence(store: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = start("report", "--db", store, options={"stdout": full})
    _, complaints = process.communicate(timeout=60)
    refused(subprocess.CompletedProcess([], process.returncode, "", complaints), "The disk is full; free some space")


def test_ctrl_c_ends_a_training_without_a_traceback(store: Path) -> None:
    process = start("train", "--width", "16", "--steps", "500000", "--device", "cpu", "--data", SAMPLE, "--db", store)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("linear_backward"):
            break  # the plan is there, the training begins
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (130, "mnist-tune: stopped.\n")
    assert wait_until_gone(process.pid) == []
    with Store.open(store) as opened:
        assert len(opened.observations()) == 1
        assert opened.races() == []
