"""Engine: the interface of a library or a kind of device that plans compute with; and the registry of engines.

An engine has kernels, fusions of neighboring operators, buffers, and layouts of its own. The array engines (NumPy for
the host, CuPy for GPUs) store plain row-major values and are always used for their devices; library engines, such as
oneDNN, are used where they are available and a net's options allow them.

Another package adds an engine through an entry point in the group ``netbuilder.engines`` that names an ``Engine``
class.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from netbuilder.data.forking import loading
from netbuilder.engines.captures import CapturedCalls
from netbuilder.engines.fusion import Fusion, Unstored
from netbuilder.engines.joined_updates import JoinedUpdates, UpdateForm
from netbuilder.engines.open_choice import OpenChoice
from netbuilder.ops.core.contexts import PlanContext, Prepared
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import prepare_table
from netbuilder.proto import PROTO_CPU, DeviceError

__all__ = [
    "ENTRY_POINTS",
    "HOST",
    "Engine",
    "Location",
    "array_engine",
    "engine_names",
    "find_engine",
    "found_engines",
    "layout_engine",
    "library_engines",
    "release_kernels",
    "sources",
]

ENTRY_POINTS = "netbuilder.engines"
"""The group of entry points in which other packages name their engines."""

Location = tuple[int, int]
"""Where a buffer is stored: (PROTO_CPU, 0) for the host's memory, (PROTO_CUDA, id) for a GPU's."""

HOST: Location = (0, 0)


class Engine:
    """A library, or a kind of device, that plans compute with.

    Attributes:
        name: as in ``Workspace(engines=...)``, in an operator's ``engine`` and in layouts.
        priority: of the kernels in ``kernels``; oneDNN's have 10, those of NumPy less.
        device_types: the kinds of devices (PROTO_CPU, PROTO_CUDA) that its kernels, fusions and layouts are for.
        precisions: in which it can store activations, see ``ops.core.precision``.
    """

    name: ClassVar[str]
    priority: ClassVar[int] = 20
    device_types: ClassVar[tuple[int, ...]] = (PROTO_CPU,)
    precisions: ClassVar[tuple[str, ...]] = ("float32",)

    def available(self) -> bool:
        """Whether the engine can be used in this process."""
        return True

    def why_unavailable(self) -> str:
        """Return what is missing and how to install it; called only if the engine is not available."""
        return ""

    def describe(self) -> str:
        """Return the library with its version, and what it uses of this machine; called only if it is available."""
        return self.name

    def kernels(self) -> Mapping[str, Callable[..., Prepared | None]]:
        """Return, by operator type, the functions ``make(op, ctx, *specs)`` that prepare kernels for its devices.

        Called only if the engine is available. A function returns None if its kernel does not apply. A kernel for a GPU
        is bound and called on that GPU, and gets arrays of CuPy; what it starts belongs on the stream that is current
        when it is called.
        """
        return {}

    def register_kernels(self) -> None:
        """Register prepared kernels for all operators registered so far; called before each compilation."""
        if self.available():
            for device_type in self.device_types:
                prepare_table(self.kernels(), device=device_type, engine=self.name, priority=self.priority)

    def check_precision(self, precision: str) -> None:
        """Warn if the engine cannot store activations in a precision (see ``ops.core.precision``), or not faster."""
        return  # nothing to warn of

    def update_form(self, op: Operator, *specs: TensorSpec) -> UpdateForm | None:
        """Return how an operator can be part of a joined update; None: it cannot (the default).

        It must be elementwise but for its numbers, with as many outputs as ``op`` has.
        """
        return None

    def join_updates(self, ctx: PlanContext, updates: JoinedUpdates) -> Prepared | None:
        """Return a kernel that does the work of many updates; None: they run one by one.

        All operators of ``updates`` have a form, see ``update_form``.
        """
        return None

    def is_elementwise(self, op: Operator, *specs: TensorSpec) -> bool:
        """Whether an operator can be part of ``join_elementwise``."""
        return False

    def join_elementwise(self, ctx: PlanContext, chain: JoinedUpdates) -> Prepared | None:
        """Return a kernel that does the work of the operators of a chain; None: they run one by one.

        The operators are elementwise, see ``is_elementwise``, and their results have one shape. Inputs of other shapes
        are broadcast to it.
        """
        return None

    def fusions(self) -> Sequence[Fusion]:
        """Return the fusions that the engine has kernels for; the first that applies is used."""
        return ()

    def unstored(self) -> Sequence[Unstored]:
        """Return the rules for values that the engine's kernels compute as they read them."""
        return ()

    def best_image_order(
        self, convolutions: Sequence[tuple[Operator, Sequence[TensorSpec]]], threads: int, precision: str
    ) -> str | None:
        """Return in which order images should be stored, for convolutions with constant weights; None: no opinion."""
        return None

    def take_open_choices(self) -> list[OpenChoice]:
        """Return the choices between kernels that were made unmeasured since the last call, to be measured later."""
        return []

    def finish_kernels(self) -> bool:
        """Build what kernels chosen since the last call, by this thread, lack, where ``PlanContext.builds_later``.

        Returns:
            Whether they lacked anything: then kernels are chosen again, which finds what was built.
        """
        return False

    def thread_setter(self, threads: int) -> Callable[[], object] | None:
        """Return a call that a thread makes before it runs kernels, to set how many threads they may use."""
        return None

    def release_kernels(self) -> None:
        """Free cached kernels that no plan uses."""
        return  # nothing is kept

    @property
    def owns_threads(self) -> bool:
        """Whether kernels have a pool of threads, with which NumPy's BLAS must not compete."""
        return False

    def new_buffer(self, spec: TensorSpec, location: Location) -> Any:
        """Return zeroed memory for a value in one of the engine's layouts; of an array engine, for a plain value.

        The memory is flat uint8 of ``spec.nbytes`` for a value with a layout, else an array of its shape and dtype; on
        a GPU it is an array of CuPy.
        An engine whose kernels read and write plain values only needs neither this nor ``prepare_reorder``.
        """
        raise NotImplementedError(f"engine {self.name} has no buffers for values in the layout of {spec}")

    def prepare_reorder(self, ctx: Any, source: TensorSpec, target: TensorSpec, location: Location) -> Prepared:
        """Return the prepared copy of a value from one layout to another; shape and dtype are the same."""
        raise NotImplementedError(f"engine {self.name} has no copies from {source} to {target}")

    def convert(self, source: Any, out: Any, *, add: bool = False) -> bool:
        """Convert a flat array on the host to the type of another one, rounded to nearest, ties to even.

        Args:
            source: float32, float16, or uint16 for the bits of bfloat16.
            out: of the same size; one of these types; may not overlap ``source``.
            add: add to ``out``, which is float32, instead of overwriting it.

        Returns:
            Whether it was done; False (the default): NumPy is to do it.
        """
        return False

    # What array engines have besides memory, for devices other than the host.

    def adopt(self, value: Any) -> Any:
        """Return a copy of an array on one of the engine's devices that another library made, on any stream.

        Raises:
            DeviceError: such devices cannot be used in this process.
        """
        raise NotImplementedError(f"engine {self.name}: adopts no arrays")

    def noting_numbers(self) -> AbstractContextManager[list[Any]]:
        """Inside, what the host computes for each run of the calls is noted; the list has it afterwards."""
        return nullcontext([])

    def capture(
        self, number: int, calls: Sequence[Callable[[], object]], numbers: Sequence[Any]
    ) -> CapturedCalls | None:
        """Capture calls that have run once, on the current device of this number, for launches.

        Args:
            number: of the device.
            calls: the calls, in order.
            numbers: what ``noting_numbers`` has noted of them.

        Returns:
            None: another thread captures, or waits for the whole device; the calls are to be run.

        Raises:
            CaptureError: one of them cannot be captured.
        """
        raise NotImplementedError(f"engine {self.name}: captures no calls")

    def raise_noted(self, number: int) -> None:
        """Raise the error that kernels have noted on a device since the last call, if any; waits for the device."""
        return  # they raise their errors at once

    def checked_range(self, run: Any, values: Any, lowest: int, extent: int, error: Callable[[int], Exception]) -> Any:
        """See ``RunContext.checked_range``."""
        raise NotImplementedError(f"engine {self.name}: its kernels check integers themselves")

    def update_rows(self, run: Any, op: Operator, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """See ``RunContext.update_rows``; False: the plain kernel does it (the default)."""
        return False

    def normalized_images(self, op: Operator, pixels: Any, dtype: str) -> Any:
        """See ``RunContext.normalized_images``."""
        raise NotImplementedError(f"engine {self.name}: images are normalized by the host")

    def add_in_order(self, matrix: Any, rows: Any, values: Any) -> None:
        """Add ``values[i]`` to row ``rows[i]`` of a matrix, in place, in the order of i.

        Args:
            matrix: (R, width), of a floating type, contiguous.
            rows: numbers of rows, in range.
            values: (number of rows, width), of the matrix's type.
        """
        raise NotImplementedError(f"engine {self.name}: its plain kernels add in order")


# netbuilder's engines, in order of preference. A module is imported when its engine is first needed.
_OWN: Mapping[str, str] = {
    "NUMPY": "netbuilder.engines.array_engines:NumPyEngine",
    "CUPY": "netbuilder.engines.cuda.array_engine:CuPyEngine",
    "CUDA": "netbuilder.engines.cuda.engine:CudaEngine",
    "ONEDNN": "netbuilder.engines.onednn.engine:OneDnnEngine",
    "LLVM": "netbuilder.engines.llvm.engine:LlvmEngine",
    "CUDNN": "netbuilder.engines.cudnn.engine:CudnnEngine",
}
_ARRAY_ENGINES = ("NUMPY", "CUPY")
found_engines: dict[str, Engine] = {}


@functools.cache
def sources() -> Mapping[str, importlib.metadata.EntryPoint | str]:
    """Return the source of each engine's class, by name: an entry point, or "module:class"."""
    others = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {**_OWN, **{point.name: point for point in others if point.name not in _OWN}}


def engine_names() -> tuple[str, ...]:
    """Return the names of all library engines, available or not."""
    return tuple(name for name in sources() if name not in _ARRAY_ENGINES)


def find_engine(name: str) -> Engine:
    """Return an engine by its name.

    Raises:
        DeviceError: there is no engine of this name, or its entry point cannot be loaded or is no ``Engine``.
    """
    engine = found_engines.get(name)
    if engine is None:
        with loading:
            engine = found_engines.setdefault(name, _load(name))
    return engine


def _load(name: str) -> Engine:
    source = sources().get(name)
    if source is None:
        raise DeviceError(f"no engine is called {name!r}; there are {', '.join(sources())}")
    if isinstance(source, str):
        module, _, attribute = source.partition(":")
        found = getattr(importlib.import_module(module), attribute)
    else:
        try:
            found = source.load()
        except (ImportError, AttributeError) as error:
            raise DeviceError(
                f"engine {name!r}, which the entry point {name} = {source.value} of another package names, cannot be "
                f"loaded: {type(error).__name__}: {error}; repair or remove that package, or allow only other engines: "
                "Workspace(engines=...)"
            ) from error
    if not (isinstance(found, type) and issubclass(found, Engine) and found.name == name):
        raise DeviceError(
            f"entry point {name!r} of group {ENTRY_POINTS} must name a class of Engine whose name is {name!r}, "
            f"got {found!r}"
        )
    return found()


def library_engines(allowed: Callable[[str], bool], device_type: int | None = None) -> list[Engine]:
    """Return the library engines that are allowed and available.

    Args:
        allowed: whether an engine may be used, by its name.
        device_type: only those for this kind of device (PROTO_CPU, PROTO_CUDA); None: all.
    """
    engines = (find_engine(name) for name in engine_names() if allowed(name))
    return [engine for engine in engines if device_type in (None, *engine.device_types) and engine.available()]


def release_kernels() -> None:
    """Free cached kernels that no plan uses, of all engines used so far."""
    for engine in list(found_engines.values()):
        if engine.available():
            engine.release_kernels()


def array_engine(location: Location) -> Engine:
    """Return the engine that stores plain values at a location."""
    return find_engine("NUMPY" if location[0] == HOST[0] else "CUPY")


def layout_engine(spec: TensorSpec, location: Location) -> Engine:
    """Return the engine of a value's layout; for a plain value, the array engine of its location."""
    return array_engine(location) if spec.layout is None else find_engine(spec.layout.engine)
