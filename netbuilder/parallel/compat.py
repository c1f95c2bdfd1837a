"""Names of other libraries for data parallelism, for scripts that use them.

The wrappers are those of MXNet's gluon-cv; use ``DataParallel``. ``DistOpt`` is SINGA's; use ``Parallelize``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from netbuilder.distributed.process_group import ProcessGroup
from netbuilder.distributed.rendezvous import Rendezvous
from netbuilder.distributed.stores import Store, TcpStore
from netbuilder.distributed.stores.server_process import serve_in_process
from netbuilder.distributed.strategies import (
    HalfPrecision,
    PartialSynchronization,
    Plain,
    Strategy,
    Threshold,
    TopK,
)
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.call_arguments import is_array, map_leaves, split_sizes
from netbuilder.parallel.data_parallel import DataParallel, Output
from netbuilder.parallel.parallelize import Parallelize
from netbuilder.parallel.shares import share_sizes
from netbuilder.proto import NetError, ShapeError, UsageError
from netbuilder.proto.errors import counted

__all__ = [
    "DataParallelCriterion",
    "DataParallelModel",
    "DistOpt",
    "NcclIdHolder",
    "parallel_backward",
    "split_and_load",
    "split_load_kwargs",
]

_ELEMENTS = 2097152


class _Criterion:
    """The loss function of a wrapper, which it gets from the first DataParallelCriterion that is called."""

    module: Callable[..., Any] | None = None

    def __call__(self, helper: ModelHelper, outputs: Any, *targets: Any, **named: Any) -> Any:
        assert self.module is not None
        first = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        return self.module(helper, *first, *targets, **named)


class DataParallelModel:
    """A ``DataParallel`` whose losses come from a ``DataParallelCriterion``.

    Args:
        module: the model, see ``DataParallel``.
        ctx_list: the devices; None: the call is passed through to one device.
        sync: see ``DataParallel``.
        optimizer: adds the updates that ``step`` makes; without it there is no training.
        options: further arguments of ``DataParallel``.

    Raises:
        NetError, DeviceError, TypeError: see ``DataParallel``.
    """

    def __init__(
        self,
        module: Any,
        ctx_list: Iterable[Any] | None = None,
        sync: bool = False,
        *,
        optimizer: Callable[[ModelHelper], Any] | None = None,
        **options: Any,
    ) -> None:
        if refused := sorted({"loss", "gather"} & set(options)):
            raise NetError(f"DataParallelModel: {refused} cannot be given; use DataParallel, which has them")
        self.wrapper = DataParallel(
            module,
            ctx_list,
            **{"join_threads": True, **options},
            loss=_Criterion(),
            optimizer=optimizer,
            sync=sync,
            name=_name(module),
        )

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the outputs, for each device that has samples a tuple; see ``DataParallel``."""
        return self.wrapper(*inputs, **named)

    def step(self, batch_size: float | None = None) -> None:
        """Update the parameters by the gradients of all calls of ``parallel_backward`` since the last step.

        Args:
            batch_size: if losses are numbers for each sample, the sum of their gradients is divided by it; None: by the
                number of samples. Losses of one number are means already.

        Raises:
            UsageError, NetError, OperatorError: see ``DataParallel.step``.
        """
        self.wrapper.step(batch_size)

    def __repr__(self) -> str:
        return repr(self.wrapper).replace("DataParallel", "DataParallelModel", 1)


class DataParallelCriterion:
    """The loss function of a ``DataParallelModel``.

    Args:
        module: called with a ModelHelper, the outputs of the model and the targets; returns a blob of one number, a
            mean over samples, or of a number for each sample, or a list of them, see ``DataParallel``.
        ctx_list: the devices of the model; they are taken from its outputs.
        sync: ignored; that of the model counts.

    Raises:
        TypeError: ``module`` is not a function.
    """

    def __init__(self, module: Callable[..., Any], ctx_list: Iterable[Any] | None = None, sync: bool = False) -> None:
        if not callable(module):
            raise TypeError(f"DataParallelCriterion: module must be a function, got {module!r}")
        self.module = module

    def __call__(self, inputs: Any, *targets: Any, **named: Any) -> Any:
        """Return the losses of the devices that have samples, for the outputs of a model's last call.

        Raises:
            NetError: ``inputs`` are not outputs of a DataParallelModel, or its nets have another loss.
        """
        found = _wrappers(inputs)
        criterion = found[0]._definition.loss if len(found) == 1 else None
        if not isinstance(criterion, _Criterion):
            raise NetError(f"DataParallelCriterion: give it what a DataParallelModel returned, got {inputs!r}")
        if criterion.module not in (None, self.module):
            raise NetError(
                f"{self!r}: the model is trained with the loss {_name(criterion.module)!r} already; make another model"
            )
        criterion.module = self.module
        return found[0].loss(*targets, **named)

    def __repr__(self) -> str:
        return f"DataParallelCriterion({_name(self.module)})"


def _name(module: Any) -> str | None:
    return None if isinstance(module, ModelHelper) else getattr(module, "__name__", type(module).__name__)


def _wrappers(values: Any) -> list[DataParallel]:
    """Return the wrappers, each once, whose outputs are in a nested structure."""
    found: dict[int, DataParallel] = {}

    def note(leaf: Any, path: str) -> None:
        if isinstance(leaf, Output):
            found[id(leaf.wrapper)] = leaf.wrapper

    map_leaves(note, values, "")
    return list(found.values())


class DistOpt:
    """SINGA's distributed optimizer: methods that compute gradients, exchange them between processes, and update.

    Nets are built before they run, so a method is called once: it builds the training step of ``model``, and returns
    the record of its replicas. ``RunInitNet`` and ``RunNet`` run it. Each method is ``Parallelize`` with a strategy.

    Args:
        opt: appends the update of all parameters, such as ``lambda model: build_sgd(model, 0.1)``.
        nccl_id: the ``NcclIdHolder`` of the process that has started this one and the others, all on one host; None:
            they find one another by ``rendezvous``.
        local_rank: with ``nccl_id``, the number of this process, from 0 on; it uses the GPU of this number.
        world_size: number of processes; without ``nccl_id`` it is checked, and may be left out.
        buffSize: largest number of elements of small gradients that are exchanged together.
        model: a ModelHelper without backward pass.
        rendezvous: as for ``Parallelize``; None: ``Rendezvous.from_environment()``.
        gpu_num, gpu_per_node: other names of ``local_rank`` and ``world_size``.
        options: further arguments of ``Parallelize``, such as ``devices`` and ``cpu_device``.

    Raises:
        TypeError: ``opt`` is not a function, or ``model`` is missing.
        NetError: an argument is out of range, or does not go with another one.

    >>> from netbuilder.model import brew
    >>> from netbuilder.optimizers import build_sgd
    >>> def loss(model):
    ...     scores = brew.fc(model, "data", "scores", 4, 3)
    ...     return model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])[1]
    >>> place = {"num_shards": 2, "shard_id": 0, "engine": "MPI"}
    >>> model = ModelHelper("net")
    >>> sgd = DistOpt(lambda m: build_sgd(m, 0.1), model=model, rendezvous=place, devices=[0], cpu_device=True)
    >>> sgd.backward_and_sparse_update(loss, spars=0.01, topK=True).residuals
    ('cpu_0/scores_b_grad_residual', 'cpu_0/scores_w_grad_residual')
    """

    def __init__(
        self,
        opt: Callable[[ModelHelper], Any],
        nccl_id: Any = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        buffSize: int = 2 * _ELEMENTS,
        *,
        model: ModelHelper,
        rendezvous: Rendezvous | Mapping[str, Any] | None = None,
        gpu_num: int | None = None,
        gpu_per_node: int | None = None,
        **options: Any,
    ) -> None:
        if not callable(opt):
            raise TypeError(f"DistOpt: opt must be a function that appends the update of a ModelHelper, got {opt!r}")
        if not isinstance(model, ModelHelper):
            raise TypeError(f"DistOpt: model must be a ModelHelper, got {model!r}")
        if refused := sorted({"strategy", "bucket_bytes", "optimizer_builder_fun"} & set(options)):
            raise NetError(f"DistOpt: {refused} are chosen by its own arguments and methods; use Parallelize instead")
        local_rank = _one_of("local_rank", local_rank, "gpu_num", gpu_num)
        world_size = _one_of("world_size", world_size, "gpu_per_node", gpu_per_node)
        if nccl_id is not None:
            if rendezvous is not None:
                raise NetError("DistOpt: nccl_id and rendezvous cannot both be given; leave out one")
            place, more = _place_by_id(nccl_id, local_rank, world_size, on_cpu=bool(options.get("cpu_device")))
            options = more | options
        else:
            if local_rank is not None:
                raise NetError(f"DistOpt: local_rank={local_rank!r} needs nccl_id; or give rendezvous= and devices=")
            place = Rendezvous.from_environment() if rendezvous is None else Rendezvous.of(rendezvous)
            if world_size not in (None, place.num_shards):
                raise NetError(
                    f"DistOpt: world_size must be that of the rendezvous, {place.num_shards}, got {world_size!r}"
                )
        _elements("buffSize", buffSize)
        self.opt, self.model = opt, model
        self.world_size, self.global_rank, self.local_rank = place.num_shards, place.shard_id, place.local_rank
        self._most, self._place, self._options = buffSize, place, options
        self._group: ProcessGroup | None = None

    def rank_in_local(self) -> int:
        """Return the number of this process among those of its host, from 0 on."""
        return self.local_rank

    def rank_in_global(self) -> int:
        """Return the number of this process among all, from 0 on."""
        return self.global_rank

    def all_reduce(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Return the sum of an array over the processes; all of them call it, with arrays of one shape and type."""
        return self._processes().allreduce(tensor)

    synch = all_reduce

    def wait(self) -> None:
        """Wait until all processes call it."""
        self._processes().wait()

    def _processes(self) -> ProcessGroup:
        if self._group is None:
            self._group = ProcessGroup(self._place, name="dist_opt")
        return self._group

    def backward_and_update(self, loss: Callable[[ModelHelper], Any], threshold: int = _ELEMENTS) -> Replicas:
        """Sum gradients as they are: ``Plain``.

        Args:
            loss: appends the forward pass of one replica, and returns its loss, one number and a mean over samples, or
                a list of them.
            threshold: gradients are exchanged together until they have so many elements.

        Raises:
            NetError: ``threshold`` is not positive, the model has a step already, or as for ``Parallelize``.
            TypeError: ``loss`` is not a function, or an argument is of the wrong type.
        """
        return self._build(loss, Plain(), threshold)

    def backward_and_update_half(
        self,
        loss: Callable[[ModelHelper], Any],
        threshold: int = _ELEMENTS,
        clipping: bool = False,
        clip_Value: float = 100,
    ) -> Replicas:
        """Round gradients to float16 on the way: ``HalfPrecision``.

        Args:
            loss, threshold: as for ``backward_and_update``.
            clipping: bound the elements before they are rounded.
            clip_Value: the bound.
        """
        return self._build(loss, HalfPrecision("float16", clip_Value if clipping else None), threshold)

    def backward_and_partial_update(self, loss: Callable[[ModelHelper], Any], threshold: int = _ELEMENTS) -> Replicas:
        """Update with the process's own gradients, and average one chunk of parameters: ``PartialSynchronization``.

        Args:
            loss: as for ``backward_and_update``.
            threshold: elements of a chunk.
        """
        return self._build(loss, PartialSynchronization(threshold), threshold)

    def backward_and_sparse_update(
        self,
        loss: Callable[[ModelHelper], Any],
        threshold: int = _ELEMENTS,
        spars: float = 0.05,
        topK: bool = False,
        corr: bool = True,
    ) -> Replicas:
        """Exchange the largest elements of gradients alone: ``TopK`` or ``Threshold``.

        Args:
            loss, threshold: as for ``backward_and_update``.
            spars: with ``topK`` the fraction of the elements of each gradient, otherwise the least magnitude of those
                that are exchanged.
            topK: see ``spars``.
            corr: keep what was not exchanged for the next step.
        """
        kind: type[TopK] | type[Threshold] = TopK if topK else Threshold
        return self._build(loss, kind(spars, corr), threshold)

    backward_and_spars_update = backward_and_sparse_update  # the name in SINGA's text

    def update(self, param: Any, grad: Any) -> None:
        """Raise UsageError: ``opt`` appends the updates of all parameters when a method builds the step."""
        raise UsageError("DistOpt.update: nets are built before they run; opt appends the updates of all parameters")

    def _build(self, loss: Callable[[ModelHelper], Any], strategy: Strategy, threshold: int) -> Replicas:
        if not callable(loss):
            raise TypeError(
                f"DistOpt: loss must be a function that appends the forward pass and returns the loss, got {loss!r}"
            )
        _elements("threshold", threshold)

        def forward(model: ModelHelper, loss_scale: float) -> list[Any]:
            found = loss(model)
            losses = found if isinstance(found, (list, tuple)) else [found]
            return [model.Scale(each, scale=loss_scale) for each in losses]

        return Parallelize(
            self.model,
            lambda model: None,
            forward,
            optimizer_builder_fun=self.opt,
            rendezvous=self._place,
            strategy=strategy,
            bucket_bytes=4 * min(threshold, self._most),
            **self._options,
        )


class NcclIdHolder:
    """SINGA's id, which a process makes and gives to those that it starts on its host, by which they find one another.

    >>> from multiprocessing import Process
    >>> nccl_id = NcclIdHolder()
    >>> processes = [Process(target=print, args=(rank, 2, nccl_id)) for rank in range(2)]

    Their function makes ``DistOpt(opt, nccl_id, rank, 2, model=model, cpu_device=True)``. Here the id is the address of
    a store, which the process that has made it serves until it ends.

    Raises:
        DistributedError: this host has no free port.
    """

    def __init__(self) -> None:
        secret = secrets.token_hex(32).encode()
        self._address = serve_in_process("127.0.0.1", 0, secret), secret

    def store(self) -> Store:
        """Open the store."""
        port, secret = self._address
        return TcpStore("127.0.0.1", port, secret=secret)


def _one_of(name: str, value: Any, other: str, of_other: Any) -> Any:
    if value is not None and of_other is not None:
        raise NetError(f"DistOpt: {name} and {other} are two names of one argument; give one of them")
    return of_other if value is None else value


def _place_by_id(nccl_id: Any, rank: Any, size: Any, *, on_cpu: bool) -> tuple[Rendezvous, dict[str, Any]]:
    """Return the place of a process whose parent has made an id, and options for its devices."""
    if not isinstance(nccl_id, NcclIdHolder):
        raise TypeError(f"DistOpt: nccl_id must be an NcclIdHolder that the parent process has made, got {nccl_id!r}")
    if rank is None or size is None:
        raise NetError("DistOpt: with nccl_id give local_rank and world_size, the number of this process and of all")
    engine = "MPI" if on_cpu else "NCCL"
    place = Rendezvous(size, rank, engine, store=nccl_id.store(), local_rank=rank, local_size=size)
    if not on_cpu:
        place.see_own_gpus()  # so that the nets of all processes name the same one
    return place, {"devices": [0]}


def _elements(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"DistOpt: {name} must be an integer, got {value!r}")
    if value < 1:
        raise NetError(f"DistOpt: {name} must be a positive number of elements, got {value}")


def parallel_backward(losses: Any, sync: bool = True) -> None:
    """Request the gradients of losses, which ``step()`` computes on all devices at the same time.

    Args:
        losses: what one or several calls of DataParallelCriterion, or of ``DataParallel.loss``, returned.
        sync: ignored: both ways give the same gradients.

    Raises:
        UsageError: there is no such loss, or it is not of the wrapper's last call.
    """
    found = _wrappers(losses)
    if not found:
        raise UsageError(f"parallel_backward: give it losses of a DataParallelCriterion, got {losses!r}")
    for wrapper in found:
        wrapper.backward()


def split_and_load(data: Any, ctx_list: Sequence[Any], batch_axis: int = 0, even_split: bool = True) -> list[Any]:
    """Split an array over devices; calls of the wrappers copy the parts to the devices.

    Args:
        data: array with the samples along ``batch_axis``.
        ctx_list: the devices.
        batch_axis: the axis to split.
        even_split: raise if the parts would differ in size; if not, they differ by one sample at most.

    Returns:
        Views of the array, one for each device; of fewer samples than devices, one for each sample.

    Raises:
        ShapeError: there are no samples, or they cannot be split evenly.

    >>> [part.tolist() for part in split_and_load(np.arange(5), ["cpu(0)", "cpu(1)"], even_split=False)]
    [[0, 1, 2], [3, 4]]
    """
    count, array = len(ctx_list), data if hasattr(data, "__cuda_array_interface__") else np.asarray(data)
    if not count:
        raise NetError("split_and_load: ctx_list must list at least one device, got none")
    samples = array.shape[batch_axis] if -array.ndim <= batch_axis < array.ndim else 0
    if not samples or even_split and samples % count:
        raise ShapeError(
            f"split_and_load: an array of shape {tuple(array.shape)} has {counted(samples, 'sample')} along axis "
            f"{batch_axis}, which cannot be split {'evenly ' if even_split else ''}over {counted(count, 'device')}; "
            f"give {f'a multiple of {count}, or even_split=False' if even_split else 'at least one'}"
        )
    return split_sizes(share_sizes(samples, min(samples, count)), array, batch_axis % array.ndim)


def split_load_kwargs(
    inputs: Sequence[Any], kwargs: Mapping[str, Any], ctx_list: Sequence[Any], batch_axis: int = 0
) -> tuple[tuple[tuple[Any, ...], ...], tuple[dict[str, Any], ...]]:
    """Split the arrays among positional and keyword arguments over devices, in nested tuples, lists and dicts too.

    Args:
        inputs: positional arguments; whatever is not an array is given to each device as it is.
        kwargs: keyword arguments.
        ctx_list: the devices.
        batch_axis: the axis of the samples, of all arrays that have axes.

    Returns:
        For each device that has samples its positional arguments, and its keyword arguments.

    Raises:
        ShapeError: the arrays have different numbers of samples, or none.
    """
    counts: dict[str, int] = {}

    def split(leaf: Any, path: str) -> Any:
        if not is_array(leaf) or not np.ndim(leaf):
            return _Parts([leaf] * len(ctx_list))
        parts = split_and_load(leaf, ctx_list, batch_axis, even_split=False)
        counts[path.strip("_")] = np.shape(leaf)[batch_axis]
        return _Parts(parts)

    args, named = map_leaves(split, tuple(inputs), ""), map_leaves(split, dict(kwargs), "")
    if len(set(counts.values())) > 1:
        raise ShapeError(
            f"split_load_kwargs: all arrays that are split must have the same number of samples, got {counts}"
        )
    chosen = range(min([len(ctx_list), *counts.values()]))
    return (
        tuple(map_leaves(lambda leaf, path, k=k: leaf[k], args, "") for k in chosen),  # type: ignore[misc]
        tuple(map_leaves(lambda leaf, path, k=k: leaf[k], named, "") for k in chosen),  # type: ignore[misc]
    )


class _Parts:
    """The parts of one array, which are a leaf."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def __getitem__(self, device: int) -> Any:
        return self._parts[device]
