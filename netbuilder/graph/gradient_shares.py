"""The shares that the readers of one value contribute to its gradient, and the operators that add them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from netbuilder.graph.blob import concat_names
from netbuilder.ops.core.contexts import Sparse
from netbuilder.ops.core.renaming import rename_in_group, rename_output
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, GradientError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["ONLY_SUM_TAG", "SUM_TAG", "Share", "add_up", "gradient_blobs", "is_backward", "same_device"]

_DEVICE_NAMES: dict[int, str] = {PROTO_CPU: "CPU", PROTO_CUDA: "GPU"}

SUM_TAG = "is_auto_gen_sum_ops:1"
"""In ``device_option.extra_info`` of the operators that add up shares, as Caffe2 marks them."""

NewName = Callable[[str, int], tuple[str, int]]

ONLY_SUM_TAG = "only_keep_is_auto_gen_sum_ops:1"
"""In ``extra_info`` of operators: the sums of their gradients get only SUM_TAG, not the operators' device."""


class Share:
    """The contribution of one reader of a value to the value's gradient.

    Args:
        gradient: where the share is stored.
        device: where it is computed.
        group: the operators that compute it, in order; empty if it is another blob's gradient.
        op, slot: the operator of the group, and its output, that is the share (if sparse: its indices).
        values_op, values_slot: the same for the values of a sparse share.
        shared_name: another output of ``op`` has the same name and is another share of the same value.
    """

    __slots__ = ("device", "gradient", "group", "op", "shared_name", "slot", "values_op", "values_slot")

    def __init__(
        self,
        gradient: str | Sparse,
        device: DeviceOption,
        group: Sequence[OperatorDef] = (),
        op: OperatorDef | None = None,
        slot: int = 0,
        values_op: OperatorDef | None = None,
        values_slot: int = 0,
        shared_name: bool = False,
    ) -> None:
        self.gradient = gradient
        self.device = device
        self.group = group
        self.op = op
        self.slot = slot
        self.values_op = values_op
        self.values_slot = values_slot
        self.shared_name = shared_name

    def rename(self, new: str) -> str:
        """Rename a dense share in its operators; return the new name."""
        assert self.op is not None
        if self.shared_name:
            rename_output(self.op, self.slot, new)
        else:
            rename_in_group(self.group, self.op.output[self.slot], new)
        self.gradient = new
        return new

    def rename_sparse(self, indices: str | None, values: str | None) -> Sparse:
        """Rename a sparse share in its operators (None: keep the name); return the new names."""
        assert isinstance(self.gradient, Sparse)
        if indices is not None:
            rename_in_group(self.group, self.gradient.indices, indices)
        if values is not None:
            rename_in_group(self.group, self.gradient.values, values)
        self.gradient = Sparse(indices or self.gradient.indices, values or self.gradient.values)
        return self.gradient


def same_device(a: DeviceOption, b: DeviceOption) -> bool:
    """Whether operators on ``a`` and ``b`` share memory: both on CPUs of one host, or on one GPU."""
    if a.node_name != b.node_name:
        return False
    if a.device_type == PROTO_CPU or b.device_type == PROTO_CPU:
        return a.device_type == b.device_type
    return a.device_type == b.device_type and a.device_id == b.device_id


def add_up(
    blob: str, shares: list[Share], default_name: str, debug_info: str, new_name: NewName
) -> tuple[list[OperatorDef], str | Sparse]:
    """Return the operators that add up the shares of a value's gradient, and where the sum is.

    The shares are renamed in the operators that compute them, so that none overwrites another.

    Args:
        blob: the value's name.
        shares: at least two, in the order in which they were computed.
        default_name: name of the sum if no share has an operator whose output gives one.
        debug_info: source line of the returned operators.
        new_name: returns a new name for a share, and the next count, given its present name and the count.

    Raises:
        GradientError: the shares are on different devices.
    """
    first = shares[0].device
    for share in shares[1:]:
        if not same_device(first, share.device):
            raise GradientError(
                f"blob {blob!r}: its gradient is a sum over different devices, {_device_text(first)} and "
                f"{_device_text(share.device)}; copy the blob to the other device before using it there "
                "(CopyCPUToGPU, CopyGPUToCPU, Copy)"
            )
    made: list[OperatorDef]
    result: str | Sparse
    if all(isinstance(share.gradient, Sparse) for share in shares):
        made, result = _join_sparse(shares, default_name, new_name)
    else:
        dense = _densified(blob, shares, default_name, new_name)
        made = [op for op, share in dense if op is not None]
        sums, result = _sum_dense([share for _, share in dense], default_name, new_name)
        made += sums
    without_device = any(ONLY_SUM_TAG in share.device.extra_info for share in shares)
    for op in made:
        if not without_device and not op.HasField("device_option"):
            op.device_option.CopyFrom(first)
        op.device_option.extra_info.append(SUM_TAG)
        if debug_info:
            op.debug_info = debug_info
    return made, result


def _device_text(device: DeviceOption) -> str:
    host = f" on {device.node_name}" if device.node_name else ""
    return f"{_DEVICE_NAMES.get(device.device_type, 'device')} {device.device_id}{host}"


def _sum_dense(shares: list[Share], default_name: str, new_name: NewName) -> tuple[list[OperatorDef], str]:
    base = next((share.op.output[share.slot] for share in shares if share.op is not None), default_name)
    stored = {share.gradient for share in shares if share.op is None}
    names: list[str] = []
    keeps, count = base not in stored, 0  # the first computed share keeps its name if it does not overwrite another one
    for share in shares:
        if share.op is None:
            names.append(str(share.gradient))
        elif keeps:
            keeps = False
            names.append(base)
        else:
            name, count = new_name(share.op.output[share.slot], count)
            names.append(share.rename(name))
            base = name if base in stored else base
    if base in names:  # only the first input can be overwritten in place
        at = names.index(base)
        names[0], names[at] = names[at], names[0]
    return [make_op("Sum", names, [base])], base


def _join_sparse(shares: list[Share], default_name: str, new_name: NewName) -> tuple[list[OperatorDef], Sparse]:
    base = _sparse_base(shares, default_name)
    indices, values = [], []
    for gradient in _with_unique_names(shares, new_name):
        indices.append(gradient.indices)
        values.append(gradient.values)
    out = concat_names(base)
    made = [make_op("Concat", indices, list(out[:2]), axis=0), make_op("Concat", values, list(out[2:]), axis=0)]
    return made, Sparse(out[0], out[2])


def _with_unique_names(shares: Sequence[Share], new_name: NewName) -> list[Sparse]:
    """Give the computed indices and values of each sparse share names of their own; return all names."""
    counts = [0, 0]
    renamed: list[Sparse] = []
    for share in shares:
        gradient = share.gradient
        assert isinstance(gradient, Sparse)
        new_indices = new_values = None
        if share.op is not None:
            new_indices, counts[0] = new_name(gradient.indices, counts[0])
        if share.values_op is not None:
            new_values, counts[1] = new_name(gradient.values, counts[1])
        renamed.append(share.rename_sparse(new_indices, new_values))
    return renamed


def _sparse_base(shares: list[Share], default_name: str) -> str:
    for share in shares:
        assert isinstance(share.gradient, Sparse)
        if share.op is not None:
            return share.gradient.indices.removesuffix("_indices")
        if share.values_op is not None:
            return share.gradient.values.removesuffix("_values")
    return default_name


def _densified(
    blob: str, shares: list[Share], default_name: str, new_name: NewName
) -> list[tuple[OperatorDef | None, Share]]:
    """Return all shares as dense ones, each with the operator that converts it if it is sparse."""
    dense: list[tuple[OperatorDef | None, Share]] = []
    sparse = [share for share in shares if isinstance(share.gradient, Sparse)]
    if len(sparse) > 1:  # operators of several lookups write under the same names
        _with_unique_names(sparse, new_name)
    for share in shares:
        gradient = share.gradient
        if not isinstance(gradient, Sparse):
            dense.append((None, share))
            continue
        inputs = [gradient.indices, gradient.values, blob]  # of the replica that the share comes from
        op = make_op("SparseToDense", inputs, [default_name], device_option=share.device)
        dense.append((op, Share(default_name, share.device, [op], op)))
    return dense


def is_backward(op: OperatorDef) -> bool:
    """Whether an operator belongs to a backward pass: it computes gradients, or sums the shares of one."""
    return bool(op.is_gradient_op) or SUM_TAG in op.device_option.extra_info


def gradient_blobs(ops: Iterable[OperatorDef]) -> set[str]:
    """Return the blobs that the operators of a backward pass write: gradients, their shares and sums.

    These operators are marked (``is_gradient_op``, ``SUM_TAG``), in Caffe2's nets too. A blob that another
    operator writes first is not among them.

    Args:
        ops: in the order in which they run.
    """
    first: dict[str, bool] = {}
    for op in ops:
        for name in op.output:
            first.setdefault(name, is_backward(op))
    return {name for name, backward in first.items() if backward}
