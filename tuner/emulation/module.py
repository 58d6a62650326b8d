"""A compiled kernel: checks its arguments, launches it, and turns what the runtime saw into an `EmulationFault`."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tuner.emulation.errors import EmulationFault
from tuner.emulation.library import LaunchRequest, Library, Parameter
from tuner.emulation.memory import Buffer
from tuner.types import Launch

DEFAULT_TIME_LIMIT_S = 60.0

KIND_NAMES = {
    b"p": "a pointer",
    b"f": "a floating-point number",
    b"i": "an integer",
    b"u": "an unsigned integer",
    b"x": "a value",
}
FITTING_KINDS = {b"f": "f", b"i": "iu", b"u": "iub", b"x": "fiub"}
"""NumPy kinds that a parameter's kind takes; the size must be the same too."""


class Module:
    """One kernel of one source, compiled for one configuration. Made by `tuner.emulation.build`."""

    def __init__(self, library: Library, path: Path, entry: str, *, checked: bool) -> None:
        self.library = library
        self.path = path
        self.entry = entry
        self.checked = checked
        loaded = ctypes.CDLL(str(path))
        self.handle: int = library.open(loaded.mnt_kernel_entry, loaded.mnt_kernel_static_shared, entry.encode())
        count = ctypes.c_int()
        loaded.mnt_kernel_parameters.restype = ctypes.POINTER(Parameter)
        described = loaded.mnt_kernel_parameters(ctypes.byref(count))
        self.parameters: list[tuple[bytes, int]] = [(described[i].kind, described[i].bytes) for i in range(count.value)]

    def launch(
        self,
        launch: Launch,
        args: Sequence[Buffer | np.generic | None],
        threads: int = 2,
        seed: int = 0,
        *,
        precise: bool = False,
        time_limit: float = DEFAULT_TIME_LIMIT_S,
    ) -> None:
        """Run one launch to its end.

        Args:
            launch: grid, block, dynamic shared memory, blocks of a cluster; a cooperative one keeps all blocks alive at
                once.
            args: a `Buffer` or None for each pointer, a NumPy scalar of the parameter's own type for anything else.
            threads: OS threads to spread the blocks over (a checked module uses one).
            seed: order in which threads and blocks run: 0 in order, 1 in reverse, any other at random.
            precise: WMMA sums that round as tensor cores have been seen to (toward zero, every 8 products); slower.
            time_limit: seconds after which the launch is stopped and reported.

        Raises:
            EmulationFault: the kernel did something that it must not do, or the arguments are not its parameters'.
        """
        self.bind(launch, args, threads, seed, precise=precise, time_limit=time_limit)()

    def bind(
        self,
        launch: Launch,
        args: Sequence[Buffer | np.generic | None],
        threads: int = 2,
        seed: int = 0,
        *,
        precise: bool = False,
        time_limit: float = DEFAULT_TIME_LIMIT_S,
    ) -> Callable[[], None]:
        """A function that runs this launch each time it is called, for loops: arguments are converted only once.

        It keeps the buffers alive, and raises what `launch` raises.
        """
        values, pointers = self.convert(args)
        request = LaunchRequest(
            module=self.handle,
            arguments=ctypes.cast(pointers, ctypes.c_void_p),
            shared_bytes=launch.shared_bytes,
            time_limit_s=time_limit,
            grid=launch.grid,
            block=launch.block,
            cooperative=launch.cooperative,
            threads=threads,
            seed=seed,
            precise=precise,
            checked=self.checked,
            cluster=launch.cluster,
        )
        reference = ctypes.byref(request)
        kept = (values, pointers, request, list(args))
        run = self.library.launch

        def call() -> None:
            if run(reference):
                raise self.fault(kept[2])

        return call

    def convert(self, args: Sequence[Buffer | np.generic | None]) -> tuple[list[Any], Any]:
        """The arguments as C values, and the array of pointers to them that the kernel's entry takes."""
        if len(args) != len(self.parameters):
            raise EmulationFault([f"argument: {len(args)} given, {len(self.parameters)} needed [{self.entry}]"])
        values: list[Any] = []
        for position, (argument, (kind, size)) in enumerate(zip(args, self.parameters, strict=True)):
            if kind == b"p" and (argument is None or isinstance(argument, Buffer)):
                values.append(ctypes.c_void_p(None if argument is None else argument.address))
                continue
            fits = isinstance(argument, np.generic) and argument.dtype.kind in FITTING_KINDS.get(kind, "")
            if not fits or argument.dtype.itemsize != size:  # type: ignore[union-attr]
                given = argument.dtype if isinstance(argument, np.generic) else type(argument).__name__
                raise EmulationFault(
                    [f"argument: number {position} is {KIND_NAMES[kind]} of {size} bytes, not {given} [{self.entry}]"]
                )
            values.append(ctypes.create_string_buffer(argument.tobytes(), size))  # type: ignore[union-attr]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        return values, pointers

    def fault(self, request: LaunchRequest) -> EmulationFault:
        """The reports of a launch that went wrong, with code addresses replaced by lines."""
        text = ctypes.string_at(request.reports).decode(errors="replace")
        self.library.free_text(request.reports)
        return EmulationFault([re.sub(r"@(0x[0-9a-f]+)", self.line_at, line) for line in text.splitlines()])

    def line_at(self, match: re.Match[str]) -> str:
        """`gemm.cu:42` for an offset in the module's code (binutils, which comes with g++, knows)."""
        addr2line = shutil.which("addr2line")
        if addr2line is None:
            return match.group()
        # A hook's address is the one after the call; the instruction before it belongs to the line.
        offset = hex(int(match.group(1), 16) - 1)
        result = subprocess.run([addr2line, "-e", str(self.path), offset], capture_output=True, text=True, check=False)
        found = result.stdout.split()
        return Path(found[0]).name if found else match.group()
