"""The run context: what plain kernels may use besides their inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netbuilder.ops.engines import random
from netbuilder.ops.engines.arrays import array_module
from netbuilder.ops.engines.gpu import gpu, to_host
from netbuilder.proto import PROTO_CUDA, NetDef, OperatorDef

__all__ = ["KernelContext"]


class KernelContext:
    """See ``netbuilder.ops.contexts.RunContext``.

    Raises:
        DeviceError: the operator is to run on a GPU that is not there.

    Args:
        op_def: the operator as it stands in the net.
        device: device type and id; None: those of ``op_def``.
        workspace: the workspace that the net runs in, or None where no kernel needs one.
        seed: of the random stream.
        stream: text that identifies the operator over replicas: its first output without device prefix.
        replica: which replica the operator belongs to; its samples follow those of the replicas before.
        prefix: what the names of this replica's blobs begin with.
        compile_net: makes a call that runs a net in the same workspace.
        clock: holds the iteration, by which random operators draw.
    """

    def __init__(
        self,
        op_def: OperatorDef,
        workspace: Any = None,
        *,
        device: tuple[int, int] | None = None,
        seed: int = 0,
        stream: str = "",
        replica: int = 0,
        prefix: str = "",
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
        self._stream = stream or (op_def.output[0] if op_def.output else op_def.type)
        self._replica = replica
        self._compile_net = compile_net
        self._workspace_seed = seed
        self._prefix = prefix
        self._device = (device_type, number)

    @property
    def workspace(self) -> Any:
        """The workspace that the net runs in; None where there is none."""
        return None if self._workspace is None else self._workspace()

    def inner(self, op_def: OperatorDef, step: int) -> KernelContext:
        """Return the context of an operator of a net that this one holds, in a time step."""
        name = op_def.output[0] if op_def.output else op_def.type
        return KernelContext(
            op_def,
            self.workspace,
            device=self._device,
            seed=self._workspace_seed,
            stream=f"{name.replace(self._prefix, '') if self._prefix else name} in step {step}",
            replica=self._replica,
            prefix=self._prefix,
            compile_net=self._compile_net,
            clock=self._clock,
        )

    def _key(self) -> int:
        return random.stream_key(self._seed, self._stream, self._clock.iteration if self._clock is not None else 0)

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
