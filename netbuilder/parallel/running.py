"""Running a parallel model: initialization, creation, iterations; its learning rates and checkpoint blobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from netbuilder.distributed.agreement import require_equal_nets
from netbuilder.distributed.common_worlds import barrier_net, create_worlds, makers_of
from netbuilder.engines.arrays import gpu_count
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.replicas import Replicas
from netbuilder.graph.scope import SEPARATOR
from netbuilder.model import ModelHelper
from netbuilder.optimizers.moving_average import AVERAGE_SHARE
from netbuilder.parallel.accumulate import created_nets, net_names, run_iterations
from netbuilder.parallel.block_exchange import in_flight, settle
from netbuilder.parallel.blocks import block_nets_of, run_blocks
from netbuilder.parallel.bucket_choice import run_first_steps
from netbuilder.parallel.owned_updates import own_part
from netbuilder.parallel.same_state import begin_together, made_equal
from netbuilder.parallel.shares import SHARE_WEIGHT
from netbuilder.proto import PROTO_CUDA, ArgumentError, DeviceError, NetDef, NetError
from netbuilder.proto.call_checks import checked, is_whole
from netbuilder.runtime import Workspace
from netbuilder.runtime.execute import default
from netbuilder.runtime.plan.options import FindNan

__all__ = [
    "CreateNet",
    "GetCheckpointParams",
    "GetLearningRateBlobNames",
    "RunInitNet",
    "RunNet",
    "require_devices",
    "stripBlobName",
]


@checked()
def RunInitNet(model: ModelHelper, *, overwrite: bool = False, workspace: Workspace | None = None) -> None:
    """Run the init net once, and create the main net.

    Several processes compare their nets first. What was fed before for the shares of a batch (``feed_shares``) is
    preserved, unless ``overwrite`` is set.

    Args:
        model: made by ``Parallelize``.
        overwrite: run the init net even if the model is for evaluation and existing parameters are overwritten, and
            replace an existing main net.
        workspace: workspace to use; None: the current default one.

    Raises:
        NetError: the model is not data-parallel; the main net exists already; or, for a model without updates,
            its init net would overwrite blobs.
        DeviceError: a GPU, or a kernel for it, is missing.
        DistributedError: processes have built different nets; all of them raise it.
    """
    record = Replicas.load(model.net.Proto())
    workspace = workspace or default.workspace()
    init_net = model.param_init_net.Proto()
    if not record.gradients and not overwrite:
        _refuse_overwriting(model, init_net, workspace)
    require_devices(record, model.net.Proto())
    if record.world.common:
        require_equal_nets(model, workspace)
    if net_names(model.net.Name(), record)[0] in workspace.nets() and not overwrite:
        raise NetError(
            f"net {model.net.Name()!r} exists already in the workspace, and its init net would restart the training; "
            "give overwrite=True to restart it"
        )
    settle(model, workspace)
    fed = {} if overwrite else _fed_for_shares(record, workspace)
    workspace.run_net_once(own_part(init_net, record.world.rank))
    made_equal(record, map(record.devices.short_name, _outputs(init_net)), workspace)  # it copies the first replica's
    if record.block is not None:
        workspace.run_net_once(block_nets_of(model).init)
    for blob, value in fed.items():
        workspace.feed(blob, value)
    _create_nets(model, overwrite, False, workspace)


def _fed_for_shares(record: Replicas, workspace: Workspace) -> dict[str, Any]:
    """Return the weights and divisors of the shares of a batch that were fed before."""
    if not record.weighted_shares:
        return {}
    blobs = [blob for name in (SHARE_WEIGHT, *record.step_divisors) for blob in record.devices.copies(name)]
    return {blob: workspace.fetch(blob) for blob in blobs if workspace.has(blob) and not workspace.get(blob).is_empty}


@checked()
def CreateNet(
    model: ModelHelper,
    overwrite: bool = False,
    *,
    check: bool | Literal["warn"] = False,
    workspace: Workspace | None = None,
) -> None:
    """Create the main net in the workspace; with ``accumulate_steps`` its parts, as separate nets.

    With block-wise updates (``Parallelize_BMUF``) their nets are created, too, and with several processes the net of
    their barrier; the processes compare their nets first, so all of them call it.

    Args:
        model: made by ``Parallelize``.
        overwrite: replace an existing net of this name.
        check: check the net first: raise an error for findings, or, with "warn", give a warning for each; see
            ``Workspace.check_net``.
        workspace: workspace to use; None: the current default one.

    Raises:
        NetError: the model is not data-parallel, a net of this name exists, or ``check`` found something.
        DeviceError: a GPU, or a kernel for it, is missing.
        DistributedError: processes have built different nets; all of them raise it.
    """
    record = Replicas.load(model.net.Proto())
    require_devices(record, model.net.Proto())
    workspace = workspace or default.workspace()
    if record.world.common:
        require_equal_nets(model, workspace)
    _create_nets(model, overwrite, check, workspace)


def _create_nets(model: ModelHelper, overwrite: bool, check: bool | Literal["warn"], workspace: Workspace) -> None:
    net = model.net.Proto()
    record = Replicas.load(net)
    workspace.check_net(net, check)
    for part in created_nets(own_part(net, record.world.rank), record):
        workspace.create_net(
            part, overwrite, observable_default=model.net.observes, shares_counter=model.net.shares_counters
        )
    if record.world.common:
        if not record.trains:
            create_worlds(makers_of(model.param_init_net.Proto(), record.world), workspace)
        workspace.create_net(barrier_net(net.name, record.world), overwrite)
    if record.block is not None:
        nets = block_nets_of(model)
        for net_of_blocks in nets.created():
            workspace.create_net(net_of_blocks, overwrite)


def RunNet(
    model: ModelHelper,
    num_iterations: int = 1,
    *,
    wait: bool = True,
    find_nan: FindNan = False,
    workspace: Workspace | None = None,
) -> None:
    """Run ``num_iterations`` iterations of the main net, which was created before.

    With ``accumulate_steps`` an iteration is one micro-batch; the update runs after the last micro-batch of each step.
    With block-wise updates, the replicas are brought together after the last iteration, or after each
    ``block_iterations`` updates. With several processes, all of them call it equally often; each call begins when all
    have, unless the update of a block is in flight (``block_overlap``). Parameters, moments and iteration counters that
    were fed, loaded or initialized since the last run must be the same in all replicas and processes, unless the
    updates are block-wise.

    Args:
        model: made by ``Parallelize``.
        num_iterations: number of iterations.
        wait: wait until all GPUs have finished, see ``Workspace.run_net``.
        find_nan: raise an error at the first operator whose result is NaN or infinite, see there.
        workspace: workspace to use; None: the current default one.

    Raises:
        NotFiniteError: ``find_nan`` has found something.
        NetError: the model is not data-parallel, its net was not created, an operator failed, replicas begin with
            different parameters, or the block that this call is would end before the last micro-batch of a step.
        DistributedError: processes begin with different parameters; all of them raise it.
    """
    if not isinstance(model, ModelHelper) or not isinstance(workspace, Workspace | None):
        raise ArgumentError(f"RunNet needs a ModelHelper, and a Workspace or None, got {model!r} and {workspace!r}")
    record = Replicas.load(model.net.Proto())
    if type(num_iterations) is not int and not is_whole(num_iterations) or num_iterations < 0:
        raise NetError(f"RunNet: num_iterations must be a non-negative integer, got {num_iterations!r}")
    workspace, count = workspace or default.workspace(), num_iterations.__index__()
    if (main := net_names(model.net.Name(), record)[0]) not in workspace.nets():
        known = ", ".join(map(repr, workspace.nets())) or "none"
        raise NetError(
            f"RunNet: no net {main!r} in the workspace; create it first, by RunInitNet or CreateNet with the same "
            f"workspace= as here (created: {known})"
        )
    if not in_flight(record, workspace):  # the barrier would wait for the exchange, in the same lane
        begin_together(model, record, workspace)
    if record.block is not None:
        run_blocks(model, record, count, workspace=workspace, wait=wait, find_nan=find_nan)
        return
    if record.bucket_size and record.world.common and not find_nan:
        count -= run_first_steps(model, record, count, workspace)
    run_iterations(model.net.Name(), record, count, workspace=workspace, wait=wait, find_nan=find_nan)


@checked()
def GetLearningRateBlobNames(model: ModelHelper) -> list[str]:
    """Return the blobs of the learning rates: on the CPU one for all replicas, on GPUs one each.

    Raises:
        NetError: the model is not data-parallel, or no operator in it computes a learning rate.
    """
    net = model.net.Proto()
    Replicas.load(net)
    rates = (op for op in net.op if op.type == "LearningRate" and op.name != AVERAGE_SHARE)
    names = list(dict.fromkeys(op.output[0] for op in rates))
    if not names:
        raise NetError(
            f"model {model.name!r}: its main net has no LearningRate operator; build an optimizer that adds one"
        )
    return names


@checked()
def GetCheckpointParams(model: ModelHelper) -> set[BlobReference]:
    """Return the blobs that training needs from a checkpoint: those of the first replica and those outside replicas.

    These are parameters, computed parameters, and the blobs that the init net fills and the main net changes in each
    step, such as momenta and iteration counters. With block-wise updates they are those of all replicas, which differ,
    the global parameters and their momenta, and what rounding has kept. Residuals of sums of gradients over processes
    are not among them: those of one process are not those of another, and they begin at zero when training resumes.

    Raises:
        NetError: the model is not data-parallel.
    """
    main = model.net.Proto()
    record = Replicas.load(main)
    count = 1 if record.block is None else len(record)
    scopes = record.devices.scopes[:count]
    found = {scope + name for scope in scopes for name in (*record.parameters, *record.computed)}
    found.update(record.outside, record.block_state, record.block_residuals, record.block_sent)
    found.update([record.bucket_size] if record.bucket_size else [])
    made = {blob for op in model.param_init_net.Proto().op for blob in op.output}
    for op in main.op:
        found.update(blob for blob in op.output if blob in made and (record.devices.replica_of(blob) or 0) < count)
    return {
        BlobReference(blob) for blob in found.difference(record.accumulated, record.accumulated_rows, record.residuals)
    }


def stripBlobName(param: object) -> str:
    """Return a blob's name without the outermost scope; for a sparse gradient "indices:values".

    >>> stripBlobName("gpu_0/layer/w")
    'layer/w'

    Raises:
        NetError: the name has no scope.
    """
    if isinstance(param, GradientSlice):
        return f"{stripBlobName(param.indices)}:{stripBlobName(param.values)}"
    first, separator, rest = str(param).partition(SEPARATOR)
    if not separator:
        raise NetError(f"blob {first!r} has no scope to strip: its name has no {SEPARATOR!r}")
    return rest


def _refuse_overwriting(model: ModelHelper, init_net: NetDef, workspace: Workspace) -> None:
    existing = [blob for blob in _outputs(init_net) if workspace.has(blob)]
    if existing:
        raise NetError(
            f"model {model.name!r} is for evaluation, but its init net would overwrite {existing[:4]}"
            f"{' and more' if len(existing) > 4 else ''}, which exist in the workspace; build it with "
            "ModelHelper(init_params=False), or give overwrite=True"
        )


def _outputs(net: NetDef) -> Iterable[str]:
    return dict.fromkeys(blob for op in net.op for blob in op.output)


def require_devices(record: Replicas, net: NetDef) -> None:
    """Raise DeviceError if a GPU of the record is missing."""
    if record.devices.device_type != PROTO_CUDA:
        return
    present = gpu_count()
    if missing := [number for number in record.devices.ids if number >= present]:
        available = f"this machine has {list(range(present))}" if present else "this machine has no usable GPU"
        raise DeviceError(
            f"net {net.name!r} needs the GPUs {list(record.devices.ids)}, but {available}; missing: {missing}; "
            f"install NVIDIA's driver and CuPy ({how_to_install()}), name other devices, or build with "
            "Parallelize_CPU"
        )
