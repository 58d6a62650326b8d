"""Building, caching and launching emulated kernels, and the runner that verification uses."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tuner import emulation
from tuner.backends.emulate import EmulationRunner
from tuner.emulation import Buffer, EmulationBuildError, EmulationFault
from tuner.emulation.compiler import compiler
from tuner.emulation.library import Library
from tuner.errors import UserError
from tuner.kernel import Argument, Array, Kernel, Role, Scalar, Work
from tuner.space import Space
from tuner.types import Config, Device, Failure, Launch, Problem, Status, Value

SCALE = """
    // y = factor x for n numbers.
    #include "scale.cuh"
    extern "C" __global__ void __launch_bounds__(THREADS)
    scale(const float* __restrict__ x, float* y, int n, float factor) {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = times(factor, x[i]);
    }
"""
HEADER = "__device__ __forceinline__ float times(float a, float b) { return a * b; }\n"
LAUNCH = Launch((4, 1, 1), (64, 1, 1))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scale.cu"
    path.write_text(textwrap.dedent(SCALE))
    (tmp_path / "scale.cuh").write_text(HEADER)
    return path


def arguments(n: int = 250) -> list[Any]:
    return [
        Buffer(np.arange(n, dtype=np.float32), name="x"),
        Buffer((n,), np.float32, name="y"),
        np.int32(n),
        np.float32(3),
    ]


def test_a_launch_computes(source: Path) -> None:
    args = arguments()
    emulation.build(source, "scale", {"THREADS": 64}).launch(LAUNCH, args)
    np.testing.assert_array_equal(args[1].array, 3 * np.arange(250, dtype=np.float32))


def test_a_bound_launch_sees_new_contents(source: Path) -> None:
    args = arguments()
    run = emulation.build(source, "scale", {"THREADS": 64}).bind(LAUNCH, args)
    for value in (1.0, 2.0):
        args[0].array[:] = value
        run()
        assert (args[1].array == 3 * value).all()


def test_the_cache_is_keyed_by_source_headers_and_macros(source: Path) -> None:
    first = emulation.build(source, "scale", {"THREADS": 64})
    assert emulation.build(source, "scale", {"THREADS": 64}).path == first.path
    assert emulation.build(source, "scale", {"THREADS": 32}).path != first.path
    assert emulation.build(source, "scale", {"THREADS": 64}, checked=True).path != first.path
    (source.parent / "scale.cuh").write_text(HEADER.replace("a * b", "a + b"))
    changed = emulation.build(source, "scale", {"THREADS": 64})
    assert changed.path != first.path
    args = arguments()
    changed.launch(LAUNCH, args)
    np.testing.assert_array_equal(args[1].array, 3 + np.arange(250, dtype=np.float32))


def test_macros_do_not_reach_into_the_headers(source: Path) -> None:
    args = arguments()
    macros: Mapping[str, Value] = {"THREADS": 64, "M": 16, "N": 8, "K": 3, "T": "float", "B": 1}
    emulation.build(source, "scale", macros).launch(LAUNCH, args)
    assert args[1].array[1] == 3


def test_several_processes_build_into_one_cache(source: Path, tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from tuner import emulation
        emulation.build(Path({str(source)!r}), "scale", {{"THREADS": 64}})
    """
    folder = tmp_path / "cache" / "emulation"
    folder.mkdir(parents=True)
    shutil.copy(Library.load().path, folder)  # saves the time to build it again
    environment = {**os.environ, "MNIST_TUNE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: subprocess.run(command, env=environment, check=False).returncode, range(3)))
    assert results == [0, 0, 0]
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) == 2, "a runtime and a kernel, and no leftovers"


def test_several_threads_launch(source: Path) -> None:
    module = emulation.build(source, "scale", {"THREADS": 64})

    def one(_: int) -> bool:
        args = arguments()
        for _ in range(20):
            module.launch(LAUNCH, args)
        return bool((args[1].array == 3 * np.arange(250)).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(one, range(8)))


def test_a_forked_child_launches(source: Path) -> None:
    module = emulation.build(source, "scale", {"THREADS": 64})
    args = arguments()
    module.launch(LAUNCH, args, threads=2)
    child = os.fork()
    if child == 0:
        args[0].array[:] = 5
        module.launch(LAUNCH, args, threads=2)
        os._exit(0 if (args[1].array == 15).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_compilers_first_error_is_the_message(source: Path) -> None:
    source.write_text(source.read_text().replace("times(", "thymes("))
    with pytest.raises(EmulationBuildError, match=r"^scale.cu:7:\d+: error: .thymes. was not declared"):
        emulation.build(source, "scale", {"THREADS": 64})


def test_a_function_that_is_not_emulated_is_a_build_error(source: Path) -> None:
    source.write_text(
        source.read_text()
        .replace("times(", "somewhere(")
        .replace('extern "C"', 'float somewhere(float, float); extern "C"', 1)
    )
    with pytest.raises(EmulationBuildError, match="undefined reference to `somewhere"):
        emulation.build(source, "scale", {"THREADS": 64})


def test_without_a_compiler_the_user_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^g\+\+ was not found.*apt install g\+\+"):
        compiler()


def test_a_missing_source_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        emulation.build(tmp_path / "none.cu", "none", {})


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, np.float32(1), "number 0 is a pointer of 8 bytes, not float32"),
        (2, np.int64(250), "number 2 is an integer of 4 bytes, not int64"),
        (2, 250, "number 2 is an integer of 4 bytes, not int"),
        (3, np.float64(3), "number 3 is a floating-point number of 4 bytes, not float64"),
        (3, np.int32(3), "number 3 is a floating-point number of 4 bytes, not int32"),
        (3, None, "number 3 is a floating-point number of 4 bytes, not NoneType"),
    ],
)
def test_arguments_must_be_the_parameters(source: Path, position: int, value: Any, message: str) -> None:
    args = arguments()
    args[position] = value
    with pytest.raises(EmulationFault, match=f"^argument: {message}"):
        emulation.build(source, "scale", {"THREADS": 64}).launch(LAUNCH, args)
    with pytest.raises(EmulationFault, match=r"^argument: 3 given, 4 needed"):
        emulation.build(source, "scale", {"THREADS": 64}).launch(LAUNCH, args[:3])


def test_a_buffers_array_outlives_the_buffer() -> None:
    array = Buffer(np.arange(5.0), name="gone").array
    assert array.tolist() == [0, 1, 2, 3, 4]


def test_a_fresh_buffer_is_nan() -> None:
    assert np.isnan(Buffer((3, 4), np.float16).array).all()
    assert Buffer((0, 4), np.float32).array.shape == (0, 4)
    with pytest.raises(TypeError, match="dtype"):
        Buffer((3, 4))


def test_a_fault_travels_between_processes() -> None:
    fault = pickle.loads(pickle.dumps(EmulationFault(["race: a", "poison: b"])))
    assert fault.reports == ["race: a", "poison: b"]
    assert fault.kinds == ["race", "poison"]


def test_other_processors() -> None:
    """What processors other than x86-64 use: ucontext for fibers, and half conversion without instructions."""
    script = """
        import pytest
        from tuner.emulation import builder, library
        library.RUNTIME_FLAGS = ("-O0", "-ftls-model=initial-exec", "-DMNT_EMULATION_UCONTEXT")
        library.machine_flags = builder.machine_flags = list
        names = "half or warps or endless or grid_sync or spin"
        files = ["tests/tuner/test_emulation_values.py", "tests/tuner/test_emulation_faults.py"]
        raise SystemExit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", names, *files]))
    """
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]


class Scale(Kernel):
    """y = 3 x, and a counter that is left alone; declared by hand for the runner."""

    name = "scale"
    dims = ("n",)
    kept: ClassVar[dict[str, Path]] = {}

    @property
    def source(self) -> Path:  # type: ignore[override]
        return self.kept["source"]

    def space(self, problem: Problem, device: Device) -> Space:
        raise AssertionError("what is emulated here has been chosen")

    def defines(self, problem: Problem, config: Config) -> dict[str, Value]:
        return dict(config)

    def launch(self, problem: Problem, config: Config) -> Launch:
        threads = config.integer("THREADS")
        return Launch((-(-problem["n"] // threads), 1, 1), (threads, 1, 1))

    def arguments(self, problem: Problem, config: Config, rng: Any) -> Sequence[Argument]:
        n = problem["n"]
        return [
            Array("x", rng.normal(size=n).astype(np.float32), Role.IN),
            Array("y", np.zeros(n, np.float32), Role.OUT),
            Scalar("n", np.int32(n)),
            Scalar("factor", np.float32(3)),
        ]

    def reference(self, problem: Problem, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": 3 * inputs["x"]}

    def tolerance(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"y": 1e-6}

    def work(self, problem: Problem, config: Config) -> Work:
        raise AssertionError("an emulated time is predicted by nobody")


def execute(runner: EmulationRunner, source: Path, **changes: Any) -> Mapping[str, Any] | Failure:
    Scale.kept = {"source": source}
    kernel, problem, config = Scale(), Problem.of("scale", {"n": 250}), Config.of({"THREADS": 64, **changes})
    args = kernel.arguments(problem, config, runner.rng(0))
    before = [argument.data.copy() for argument in args if isinstance(argument, Array)]
    result = runner.execute(kernel, problem, config, None, args)
    after = [argument.data for argument in args if isinstance(argument, Array)]
    assert all((a == b).all() for a, b in zip(before, after, strict=True)), "it works on copies"
    return result


@pytest.mark.parametrize("checked", [False, True])
def test_the_runner_returns_every_array(source: Path, checked: bool) -> None:
    result = execute(EmulationRunner(checked=checked), source)
    assert not isinstance(result, Failure)
    assert sorted(result) == ["x", "y"]
    np.testing.assert_array_equal(result["y"], 3 * result["x"])


def test_outputs_hold_nan_before_the_launch(source: Path) -> None:
    source.write_text(source.read_text().replace("if (i < n)", "if (i < n - 1)"))
    result = execute(EmulationRunner(), source)
    assert not isinstance(result, Failure)
    assert np.isnan(result["y"][-1])


@pytest.mark.parametrize(
    ("old", "new", "status", "message"),
    [
        ("times(", "thymes(", Status.COMPILE, "error: "),
        ("if (i < n)", "", Status.RUNTIME, "out-of-bounds: "),
        ("if (i < n)", "while (factor > 0) if (i < n)", Status.TIMEOUT, "timeout: "),
        ("int n, float factor", "float factor, int n", Status.LAUNCH, "argument: "),
    ],
)
def test_the_runner_hands_faults_on_as_failures(source: Path, old: str, new: str, status: Status, message: str) -> None:
    source.write_text(source.read_text().replace(old, new))
    result = execute(EmulationRunner(time_limit=0.3), source)
    assert isinstance(result, Failure)
    assert result.status is status
    assert message in result.message
