"""Runs a compiled kernel on the GPU, through CuPy.

This lives in the child process that owns the GPU (`tuner.worker`): a bad candidate may leave the CUDA context beyond
repair, which `CudaRunner.lost` then says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.backends.clusters import admit_cluster
from tuner.backends.cublas import Cublas, CublasError
from tuner.backends.overlap import LaunchError, launch_overlapping
from tuner.flags import any_of
from tuner.kernel import Argument, Array, Kernel, Product, Role
from tuner.types import Binary, Config, Device, Failure, Launch, Problem, Status

_OPT_IN_BYTES = 48 << 10
"""Dynamic shared memory above this must be asked for, on every architecture."""

_MAX_THREADS = 1024
"""Per block, on every architecture."""

_GUARD_BYTES = 64 << 10
"""Before and after each array while a kernel is checked: more than a tile that starts at the last row reaches beyond
it. A multiple of 512, the alignment that CuPy's allocator gives."""

_POISON = 0xFF
"""Its repetition is NaN in fp16, bf16, fp32 and fp64, and -1 in the integers."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel that is loaded and ready to start."""

    function: Any
    """A `cupy.RawKernel`."""
    launch: Launch
    products: tuple[Product, ...] = ()
    """What `blas` makes of the arguments before."""
    blas: Cublas | None = None

    def __call__(self, values: tuple[Any, ...]) -> None:
        """Enqueue one launch on CuPy's current stream; `values` are arrays and NumPy scalars in the kernel's order.

        Raises:
            LaunchError: the driver refuses a launch that overlaps (CuPy raises its own errors for the others).
            CublasError: cuBLAS refuses a product.
        """
        if self.blas is not None and self.products:
            self.blas.use_current_stream()
            for product in self.products:
                self.blas.multiply(product.gemm, values[product.a], values[product.b], values[product.c])
        if self.launch.overlap:
            launch_overlapping(self.function.kernel.ptr, self.launch, values)
        else:
            self.function(self.launch.grid, self.launch.block, values, shared_mem=self.launch.shared_bytes)


class CudaRunner:
    """Runs kernels on one GPU; makes it the current one of this process. Implements `tuner.backends.Runner`."""

    name = "cuda"

    def __init__(self, device: Device, index: int = 0) -> None:
        import cupy

        cupy.cuda.Device(index).use()
        self.device = device
        self._blas: Cublas | None = None
        self._latest: tuple[object, Prepared] | None = None
        self.load_s = 0.0
        """Seconds spent in loading modules, all together."""
        self.lost = False
        """True after an error that the CUDA context does not survive: this process can run nothing more."""

    def rng(self, seed: int) -> Any:
        import cupy

        # CuPy's default generator takes tens of milliseconds to set up its states; Philox has next to none.
        return cupy.random.Generator(cupy.random.Philox4x3210(seed))

    def blas(self) -> Cublas:
        """This runner's cuBLAS, made when it is first asked for (which takes a while).

        Raises:
            ImportError: it is not installed.
            CublasError: it cannot be initialised.
        """
        if self._blas is None:
            self._blas = Cublas()
        return self._blas

    def warm_up(self, arguments: Sequence[Argument]) -> None:
        """Do once what `execute` does around a launch, so that CuPy's own kernels are compiled."""
        guarded = _guard(arguments)
        _breach(guarded)
        for area in guarded.values():
            area.breached()

    def execute(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Config,
        binary: Binary | None,
        arguments: Sequence[Argument],
        *,
        order: int = 0,
    ) -> Mapping[str, Any] | Failure:
        """One launch between guard zones: a write outside of an array is a failure too.

        The zones hold NaN, so that a read outside of an input spoils the output.
        """
        if binary is None:
            raise ValueError("the GPU runs a compiled binary, and was given none")
        import cupy

        prepared = self.prepare(kernel, problem, config, binary)
        if isinstance(prepared, Failure):
            return prepared
        try:
            guarded = _guard(arguments)
            values = tuple(_passed(item, guarded) for item in arguments)
            cupy.cuda.get_current_stream().synchronize()
        except cupy.cuda.memory.OutOfMemoryError as error:
            return Failure(Status.RESOURCES, str(error))
        failure = self._attempt(lambda: prepared(values))
        if failure is not None:
            return failure
        breached = _breach(guarded)
        if breached is not None:
            return Failure(Status.RUNTIME, f"{breached}: wrote outside of the array")
        return {name: area.array for name, area in guarded.items()}

    def prepare(self, kernel: Kernel, problem: Problem, config: Config, binary: Binary) -> Prepared | Failure:
        """Load `binary` and check that its launch fits the device. The latest one stays loaded: a candidate is launched
        for two checks, then timed.
        """
        key = (kernel.name, problem, config, binary)
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        started = time.perf_counter()
        prepared = self._loaded(kernel.form(config), problem, config, binary)
        self.load_s += time.perf_counter() - started
        if isinstance(prepared, Prepared):
            self._latest = key, prepared
        return prepared

    def _loaded(self, kernel: Kernel, problem: Problem, config: Config, binary: Binary) -> Prepared | Failure:
        import cupy

        launch, products = kernel.launch(problem, config), kernel.products(problem)
        excess = oversize(launch, binary, self.device)
        if excess is not None:
            return Failure(Status.RESOURCES, excess)
        try:
            # The driver's cooperative launch is for grids without clusters; those are counted below instead.
            cooperative = launch.cooperative and launch.cluster == 1
            module = cupy.RawModule(path=str(binary.path), enable_cooperative_groups=cooperative)
            function = module.get_function(binary.entry)
            if launch.shared_bytes > _OPT_IN_BYTES:
                function.max_dynamic_shared_size_bytes = launch.shared_bytes
            per_sm = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                function.kernel.ptr, launch.threads, launch.shared_bytes
            )
            if per_sm < 1:
                return Failure(Status.RESOURCES, "not even one block fits on an SM")
            if launch.cluster > 1:
                needed = launch.blocks // launch.cluster if launch.cooperative else 1
                room_for = admit_cluster(function.kernel.ptr, launch)
                if room_for < needed:
                    together = f"{needed} clusters of {launch.cluster} blocks at once"
                    return Failure(Status.RESOURCES, f"{together}, but this GPU has room for {room_for}")
        except (cupy.cuda.driver.CUDADriverError, LaunchError) as error:
            return _launch_failure(error)
        # CuPy would shrink the grid without a word, and the kernel would compute a part of the output.
        if launch.cooperative and launch.blocks > per_sm * self.device.sm_count:
            room = f"{per_sm} on each of {self.device.sm_count} SMs"
            return Failure(Status.RESOURCES, f"a cooperative grid of {launch.blocks} blocks, but room for only {room}")
        try:
            return Prepared(function, launch, products, self.blas() if products else None)
        except ImportError as error:
            return Failure(Status.LAUNCH, f"cuBLAS is not installed: {error}")
        except CublasError as error:
            return Failure(Status.LAUNCH, str(error))

    def _attempt(self, start: Any) -> Failure | None:
        """Start something and wait for it. An error while waiting has broken the context."""
        import cupy

        try:
            start()
        except (
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.runtime.CUDARuntimeError,
            LaunchError,
            CublasError,
        ) as error:
            return _launch_failure(error)
        try:
            cupy.cuda.get_current_stream().synchronize()
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            self.lost = True
            return Failure(Status.RUNTIME, str(error))
        return None


def oversize(launch: Launch, binary: Binary, device: Device) -> str | None:
    """Which limit of `device` one block of `launch` exceeds; None where it fits."""
    if launch.threads > _MAX_THREADS:
        return f"{launch.threads} threads in a block, the limit is {_MAX_THREADS}"
    shared = launch.shared_bytes + binary.static_shared_bytes
    if shared > device.shared_per_block:
        return f"{shared} bytes of shared memory in a block, the limit is {device.shared_per_block}"
    registers = binary.registers * launch.threads
    if registers > device.registers_per_sm:
        return f"{registers} registers in a block, the limit is {device.registers_per_sm}"
    return None


def _launch_failure(error: Exception) -> Failure:
    """What a refused load or launch means; the context survives these."""
    text = str(error)
    scarce = ("OUT_OF_RESOURCES", "OutOfResources", "TOO_LARGE", "TooLarge", "OUT_OF_MEMORY", "MemoryAllocation")
    return Failure(Status.RESOURCES if any(word in text for word in scarce) else Status.LAUNCH, text)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A copy of an array between two poisoned zones."""

    buffer: Any
    array: Any

    @classmethod
    def copy_of(cls, argument: Array) -> _Guarded:
        import cupy

        source = argument.data
        end = _GUARD_BYTES + source.nbytes
        # Room for the zone after the array, which ends where it ends, aligned or not.
        buffer = cupy.full(end + _GUARD_BYTES, _POISON, dtype=cupy.uint8)
        array = buffer[_GUARD_BYTES:end].view(source.dtype).reshape(source.shape)
        if argument.role not in {Role.OUT, Role.SCRATCH}:
            array[...] = source
        return cls(buffer, array)

    @property
    def zones(self) -> tuple[Any, Any]:
        return self.buffer[:_GUARD_BYTES], self.buffer[_GUARD_BYTES + self.array.nbytes :]

    def breached(self) -> bool:
        return any(bool(any_of(zone != _POISON)) for zone in self.zones)


def _breach(guarded: Mapping[str, _Guarded]) -> str | None:
    """The first array whose zones were written to; one look at all of them where none was, as there is none mostly."""
    import cupy

    zones = [zone for area in guarded.values() for zone in area.zones]
    if not zones or not bool(any_of(cupy.concatenate(zones) != _POISON)):
        return None
    return next(name for name, area in guarded.items() if area.breached())


def _guard(arguments: Sequence[Argument]) -> dict[str, _Guarded]:
    """Guarded copies of the arrays; one without data is a null pointer, and the kernel does without it."""
    arrays = [item for item in arguments if isinstance(item, Array) and item.data is not None]
    return {item.name: _Guarded.copy_of(item) for item in arrays}


def _passed(argument: Argument, guarded: Mapping[str, _Guarded]) -> Any:
    if isinstance(argument, Array):
        return guarded[argument.name].array if argument.data is not None else None
    return argument.value
