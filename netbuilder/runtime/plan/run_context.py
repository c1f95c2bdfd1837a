"""The run context: what a plain kernel is given besides its inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from netbuilder.engines import random
from netbuilder.engines.arrays import array_module
from netbuilder.engines.described_gpu import described_gpu
from netbuilder.engines.engine import array_engine
from netbuilder.engines.gpu import gpu, to_host
from netbuilder.ops.core.contexts import AddInOrder
from netbuilder.ops.core.operator_event import OnOperator
from netbuilder.ops.core.random_streams import first_sample_of, replica_of, stream_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.replication import Replication
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, NetDef, NetError, OperatorDef

__all__ = ["KernelContext"]


class KernelContext:
    """See ``netbuilder.ops.core.contexts.RunContext``.

    Raises:
        DeviceError: the operator's GPU does not exist.

    Args:
        op_def: the operator, as in the net.
        workspace: the workspace that the net runs in, or None where no kernel needs one.
        device: device type and id; None: those of ``op_def``.
        seed: of the random stream.
        scope: the device scope of the operator's replica, for an operator that does not name its random stream (see
            ``ops.core.random_streams``).
        replica: the number of that replica, likewise; its samples follow those of earlier replicas.
        step: the time step, for an operator of a step net.
        compile_net: returns a call that runs a net in the same workspace, see ``RunContext.compile``.
        clock: has the iteration, on which random numbers depend.
        on_operator: is called after each operator of a step net; None: nobody observes them.
        located: adds the operator's position to an error; None: it is not known.
        atomic_sums: whether the order in which rows are added on a GPU may change from run to run.
    """

    def __init__(
        self,
        op_def: OperatorDef,
        workspace: Any = None,
        *,
        device: tuple[int, int] | None = None,
        seed: int = 0,
        scope: str = "",
        replica: int = 0,
        step: int | None = None,
        compile_net: Callable[[NetDef, Replication | None], Callable[[], None]] | None = None,
        clock: Any = None,
        on_operator: OnOperator | None = None,
        located: Callable[[Exception], Exception] | None = None,
        atomic_sums: bool = True,
    ) -> None:
        option = op_def.device_option
        device_type, number = (option.device_type, option.device_id) if device is None else device
        self.is_gpu = device_type == PROTO_CUDA
        on_present = self.is_gpu and described_gpu() is None  # kernels for a described GPU are never called
        self.xp: Any = gpu(number).xp if on_present else array_module(PROTO_CPU if self.is_gpu else device_type)
        self.op_def = op_def
        # A weak reference: the workspace owns the net, which owns this context.
        self._workspace = None if workspace is None else weakref.ref(workspace)
        self._clock = clock
        self._seed = option.random_seed if option.HasField("random_seed") else seed
        own = replica_of(op_def)
        self._replica = replica if own is None else own
        self._first_sample = first_sample_of(op_def)
        self._step = step
        self._compile_net = compile_net
        self._workspace_seed = seed
        self._scope = scope
        self.device = (device_type, number)
        self.on_operator = on_operator
        self.add_in_order: AddInOrder | None = None if atomic_sums else array_engine(self.device).add_in_order
        self.located: Callable[[Exception], Exception] = located if located is not None else lambda error: error

    @property
    def workspace(self) -> Any:
        """The workspace that the net runs in; None where there is none."""
        return None if self._workspace is None else self._workspace()

    def inner(self, op_def: OperatorDef, step: int) -> KernelContext:
        """Return the context of an operator of this operator's step net, in a time step."""
        return KernelContext(
            op_def,
            self.workspace,
            device=self.device,
            seed=self._workspace_seed,
            scope=self._scope,
            replica=self._replica,
            step=step,
            compile_net=self._compile_net,
            clock=self._clock,
            on_operator=self.on_operator,
            located=self.located,
            atomic_sums=self.add_in_order is None,
        )

    def _key(self) -> int:
        return random.stream_key(self._seed, self._stream, self._clock.iteration if self._clock is not None else 0)

    @cached_property
    def _stream(self) -> str:
        """The name of the random stream."""
        if is_registered(self.op_def.type) and not find(self.op_def.type).draws:
            raise NetError(
                f"operator {self.op_def.type!r} draws random numbers, but its class does not declare it; set "
                "draws = True there, so that builders name its random stream"
            )
        stream = stream_of(self.op_def, self._scope)
        return stream if self._step is None else f"{stream} in step {self._step}"

    def _start(self, shape: Sequence[int], per_sample: bool) -> int:
        size = 1
        for extent in shape:
            size *= int(extent)
        if per_sample and self._first_sample is not None and shape and shape[0]:
            return self._first_sample * (size // int(shape[0]))
        return self._replica * size if per_sample else 0

    def position(self, shape: Sequence[int], *, per_sample: bool = False) -> tuple[int, int]:
        return self._key(), self._start(shape, per_sample)

    def uniform(self, shape: Sequence[int], *, per_sample: bool = False) -> Any:
        return random.uniform(self.xp, self._key(), shape, start=self._start(shape, per_sample))

    def normal(self, shape: Sequence[int], *, per_sample: bool = False) -> Any:
        return random.normal(self.xp, self._key(), shape, start=self._start(shape, per_sample))

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return to_host(array)

    def derived(self, function: Callable[[int], float], counter: Any, dtype: Any = None) -> float:
        return function(int(to_host(counter).item()))

    def checked_range(self, values: Any, lowest: int, extent: int, error: Callable[[int], Exception]) -> Any:
        return array_engine(self.device).checked_range(self, values, lowest, extent, error)

    def update_rows(self, op: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        return array_engine(self.device).update_rows(self, op, inputs, outputs)

    def normalized_images(self, op: Any, pixels: Any, dtype: str) -> Any:
        return array_engine(self.device).normalized_images(op, pixels, dtype)

    def compile(self, net: NetDef, replication: Replication | None = None) -> Callable[[], None]:
        if self._compile_net is None:
            raise NotImplementedError("this caller cannot run an operator's subgraphs")
        return self._compile_net(net, replication)
