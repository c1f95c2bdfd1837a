"""The run context: what plain kernels may use besides their inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from netbuilder.ops.core.random_streams import replica_of, stream_of
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.engines import random
from netbuilder.ops.engines.arrays import array_module
from netbuilder.ops.engines.gpu import gpu, to_host
from netbuilder.proto import PROTO_CUDA, NetDef, NetError, OperatorDef

__all__ = ["KernelContext"]


class KernelContext:
    """See ``netbuilder.ops.core.contexts.RunContext``.

    Raises:
        DeviceError: the operator is to run on a GPU that is not there.

    Args:
        op_def: the operator as it stands in the net.
        device: device type and id; None: those of ``op_def``.
        workspace: the workspace that the net runs in, or None where no kernel needs one.
        seed: of the random stream.
        scope: of the operator's replica, of a net whose operators do not say what they draw (see
            ``ops.core.random_streams``).
        replica: its replica, likewise; its samples follow those of the replicas before.
        compile_net: makes a call that runs a net in the same workspace.
        step: the time step in which the operator runs, of an operator in a step net.
        clock: holds the iteration, by which random operators draw.
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
        compile_net: Callable[[NetDef], Callable[[], None]] | None = None,
        clock: Any = None,
    ) -> None:
        option = op_def.device_option
        device_type, number = (option.device_type, option.device_id) if device is None else device
        self.is_gpu = device_type == PROTO_CUDA
        self.xp: Any = gpu(number).xp if self.is_gpu else array_module(device_type)
        self.op_def = op_def
        self._workspace = None if workspace is None else weakref.ref(workspace)  # which has the net that has this
        self._clock = clock
        self._seed = option.random_seed if option.HasField("random_seed") else seed
        own = replica_of(op_def)
        self._replica = replica if own is None else own
        self._step = step
        self._compile_net = compile_net
        self._workspace_seed = seed
        self._scope = scope
        self.device = (device_type, number)

    @property
    def workspace(self) -> Any:
        """The workspace that the net runs in; None where there is none."""
        return None if self._workspace is None else self._workspace()

    def inner(self, op_def: OperatorDef, step: int) -> KernelContext:
        """Return the context of an operator of a net that this one holds, in a time step."""
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
        )

    def _key(self) -> int:
        return random.stream_key(self._seed, self._stream, self._clock.iteration if self._clock is not None else 0)

    @cached_property
    def _stream(self) -> str:
        """The text that names the random stream."""
        if is_registered(self.op_def.type) and not find(self.op_def.type).draws:
            raise NetError(
                f"operator {self.op_def.type!r} draws random numbers, and its class does not say so; set draws = True "
                "there, so that builders write its random stream"
            )
        stream = stream_of(self.op_def, self._scope)
        return stream if self._step is None else f"{stream} in step {self._step}"

    def _start(self, shape: Sequence[int], per_sample: bool) -> int:
        size = 1
        for extent in shape:
            size *= int(extent)
        return self._replica * size if per_sample else 0

    def position(self, shape: Sequence[int], *, per_sample: bool = False) -> tuple[int, int]:
        return self._key(), self._start(shape, per_sample)

    def uniform(self, shape: Sequence[int], *, per_sample: bool = False) -> Any:
        return random.uniform(self.xp, self._key(), shape, start=self._start(shape, per_sample))

    def normal(self, shape: Sequence[int], *, per_sample: bool = False) -> Any:
        return random.normal(self.xp, self._key(), shape, start=self._start(shape, per_sample))

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return to_host(array)

    def compile(self, net: NetDef) -> Callable[[], None]:
        if self._compile_net is None:
            raise NotImplementedError("this caller cannot run the nets that an operator holds")
        return self._compile_net(net)
