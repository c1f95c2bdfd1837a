"""Net: a NetDef under construction, with a method for every operator."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from netbuilder.graph import gradients, observability
from netbuilder.graph.blob import BlobReference, GradientSlice, ScopedName, as_names, blob_name
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.context_stack import under_builder
from netbuilder.graph.html_tables import net_html
from netbuilder.graph.listing import shown, shown_name
from netbuilder.graph.memory_budget import set_stored_budget
from netbuilder.graph.net_blobs import NetBlobs
from netbuilder.graph.net_copy import RemapFunction, copy_net, copy_part, prefixed
from netbuilder.graph.net_names import net_names
from netbuilder.graph.operators import arguments_by_position, build_operator, constant_operator
from netbuilder.graph.scope import SEPARATOR
from netbuilder.graph.source import user_source
from netbuilder.graph.suggestions import LacksError, why_missing
from netbuilder.ops.control.python_op import python_arguments
from netbuilder.ops.core.precision import (
    DETERMINISTIC_ARGUMENT,
    PRECISION_ARGUMENT,
    TF32_ARGUMENT,
    check_precision,
    check_switch,
)
from netbuilder.ops.core.registry import is_registered, operator_types
from netbuilder.proto import PROTO_CUDA, ArgumentError, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import set_argument
from netbuilder.proto.call_checks import checked, is_whole
from netbuilder.proto.errors import counted
from netbuilder.proto.numbers import INT32_MAX, UINT32_MAX, check_whole_numbers

if TYPE_CHECKING:
    from netbuilder.graph.operator_methods import OperatorMethods as _OperatorMethods
else:
    _OperatorMethods = object

__all__ = ["Net", "operator_watchers"]


PROTO_MKLDNN = 2
PROTO_IDEEP = 5

operator_watchers: list[Callable[[OperatorDef], Any]] = []
"""Functions called with each operator that is added through a net's method; the immediate mode runs it."""

_MOST_OUTPUTS = 1 << 20


class Net(NetBlobs, _OperatorMethods):
    """A net of operators. Every operator is a method: ``net.Relu("x", "y")`` appends one.

    The method takes the input blobs (reference, string or list), the outputs (names; or how many;
    or None for one named after the net and the operator) and the operator's arguments as
    keywords, as well as ``name``, ``control_input``, ``device_option``, ``arg``, ``engine`` and
    ``debug_info`` (see ``CreateOperator``). It returns a reference, or a tuple of references. Strings
    get the current name scope. An input that no operator of the net writes becomes an external input.

    Args:
        name_or_proto: the net's name, made unique in this process with "_1", "_2", ...; or a
            message to copy.
        inplace: use the message itself instead of a copy.

    >>> net = Net("example")
    >>> net.Relu(net.FC(["x", "w", "b"], "h"), "h")
    BlobReference("h")
    >>> net.external_inputs
    [BlobReference("x"), BlobReference("w"), BlobReference("b")]
    """

    initializes: Net | None = None
    """The main net of the model whose init net this is; None for copies of an init net."""

    protects_all = False
    """Whether this init net, of a model for evaluation, must not overwrite any blob; False: no trained blob."""

    shares_counters = False
    """Whether nets that train different parameters may increment the same iteration counter, as in Caffe2."""

    updates_as_in_caffe2 = False
    """Whether optimizers count iterations and clip gradients as Caffe2's do: the first iteration is number 1, not 0,
    and a norm that is too large scales the rate, not the gradients."""

    observes: str = observability.ACTIVATIONS
    """Which blobs of the net are observable if it does not store that, see ``set_observable``."""

    _must_fill = True  # whether a Python function must set a value for each output
    _unnamed = False  # whether the empty string is a valid name of a blob
    _build = staticmethod(build_operator)  # makes and checks an operator

    def __init__(self, name_or_proto: str | NetDef, inplace: bool = False) -> None:
        if isinstance(name_or_proto, NetDef):
            net = name_or_proto
            if not inplace:
                net = NetDef()
                net.CopyFrom(name_or_proto)
            net.name = net_names.take(under_builder(net.name))
        elif isinstance(name_or_proto, str):
            if lines := name_or_proto.count("\n"):
                raise NetError(
                    f"Net: a net's name must be one line, got {lines + 1}, beginning with "
                    f"{shown_name(name_or_proto)!r}; the name of a net is net.Name(), and str(net) what print shows"
                )
            net = NetDef(name=net_names.take(under_builder(name_or_proto)))
        else:
            raise TypeError(f"Net: name_or_proto must be a string or a NetDef, got {name_or_proto!r}")
        super().__init__(net)
        self._attributes: dict[str, list[Any]] = {}

    # -- the message ------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Net {self._net.name!r}, {counted(len(self._net.op), 'operator')}>"

    def __str__(self) -> str:
        """The name, and below it the operators; formatted, as in ``f"{net}"``, a net is its name only."""
        return shown(self._net)

    @property
    def op_len(self) -> int:
        """Number of operators."""
        return len(self._net.op)

    @checked("net_type", "num_workers")
    def set_type(self, net_type: str, num_workers: int | None = None) -> None:
        """Set the executor of the net, "simple", "dag" or "async_scheduling", and its maximum number of threads.

        The type is checked when the net is created in a workspace.
        """
        if not isinstance(net_type, str):
            raise NetError(f"net {self}: net_type must be a string such as 'simple' or 'dag', got {net_type!r}")
        if num_workers is not None:
            if not is_whole(num_workers) or not 1 <= num_workers <= INT32_MAX:
                raise NetError(f"net {self}: num_workers must be a positive integer, got {num_workers!r}")
            self._net.num_workers = num_workers
        self._net.type = net_type

    @checked()
    def set_activation_dtype(self, dtype: str) -> None:
        """Set the type in which plans of this net store activations: "float32", or rounded to "bfloat16" or "float16".

        The setting is an argument of the net. Parameters, their gradients, statistics and losses are float32
        with each type, as are all values that are fetched or saved. float16 is for GPUs; in training, its gradients
        must be scaled, as ``Parallelize(dtype="float16")`` does.

        Raises:
            NetError: ``dtype`` is none of them.
        """
        set_argument(self._net, PRECISION_ARGUMENT, check_precision(dtype, f"net {self}"))

    @checked()
    def set_allow_tf32(self, allow: bool) -> None:
        """Set whether GPUs may use TF32 for products of float32 values: factors are rounded to 10 bits, sums are not.

        The setting is an argument of the net. Without it they may not. Where there is no TF32, on CPUs and on GPUs
        before Ampere, it changes nothing.

        Raises:
            NetError: ``allow`` is not a bool.
        """
        set_argument(self._net, TF32_ARGUMENT, int(check_switch(allow, TF32_ARGUMENT, f"net {self}")))

    @checked()
    def set_deterministic(self, deterministic: bool) -> None:
        """Set whether two runs of the net must be equal to the bit, on the same devices and with the same threads.

        The setting is an argument of the net. Then nothing is added in an order that changes from run to run (atomic
        sums of rows on GPUs, such plans of cuDNN, NCCL's sums over the GPUs of a process), and no kernel is chosen by
        measuring. Operators that add processes in any order are refused when the net is created.

        Raises:
            NetError: ``deterministic`` is not a bool.
        """
        value = check_switch(deterministic, DETERMINISTIC_ARGUMENT, f"net {self}")
        set_argument(self._net, DETERMINISTIC_ARGUMENT, int(value))

    @checked()
    def set_observable(self, kind: str, blobs: Iterable[Any] = ()) -> None:
        """Set which blobs can be fetched after a run of the net: the fewer, the less memory a run takes.

        The setting is an argument of the net, and stored with it; ``Workspace.create_net(observable=...)`` replaces it.

        Args:
            kind: "all"; "activations", all but the gradients that only operators of the backward pass read; or
                "outputs", external inputs (parameters, moments, statistics) and outputs, losses, metrics and learning
                rates.
            blobs: further blobs that can be fetched.

        Raises:
            NetError: ``kind`` is another one, or ``blobs`` is a single string.
        """
        observability.set_stored(self._net, kind, blobs)

    def set_memory_budget(self, budget: Any) -> None:
        """Set the memory that a run of the net may take; values are computed again to keep to it.

        The setting is an argument of the net, and stored with it; ``Workspace.create_net(memory_budget=...)`` replaces
        it. With a budget only "outputs" are observable (see ``set_observable``), unless the net stores another kind.

        Args:
            budget: a number of bytes; a text such as "4GiB"; or a fraction of what a run would take, such as 0.6.

        Raises:
            NetError: ``budget`` is none of these.
        """
        set_stored_budget(self._net, budget)

    def _repr_html_(self) -> str:
        """The drawing of the net and a table of its operators, for notebooks."""
        return net_html(self._net)

    @checked()
    def AddArgument(self, arg_name: str, arg_value: Any) -> None:
        """Set an argument of the net itself; it replaces one of the same name."""
        set_argument(self._net, arg_name, arg_value)

    @staticmethod
    def current_prefix() -> str:
        """Return the name of the current builder, the prefix of the nets made in it; "" outside of builders."""
        return under_builder("")

    @checked()
    def add_attribute(self, name: str, obj: Any) -> None:
        """Attach an object to the net under a name, after earlier ones of this name; copies do not have it."""
        self._attributes.setdefault(name, []).append(obj)

    @checked()
    def get_attributes(self, name: str) -> list[Any]:
        """Return the objects attached under ``name``."""
        return list(self._attributes.get(name, ()))

    # -- operators --------------------------------------------------------------------------

    if not TYPE_CHECKING:  # a type checker knows the operators, and their arguments, from a stub

        def __getattr__(self, op_type: str) -> Callable[..., Any]:
            if is_registered(op_type):
                return partial(self._add, op_type)
            if op_type.startswith("_"):
                raise AttributeError(f"Net has no attribute {op_type!r}")
            text = f"net {self._net.name!r}: {op_type!r} is neither an operator nor a method"
            other = "; IsOperator(name) tells whether an operator exists"
            raise LacksError(text, lambda: why_missing(op_type, dir(type(self))) or other)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *operator_types()]

    def _add(
        self, op_type: str, inputs: Any = (), outputs: Any = None, debug_info: Any = None, *more: Any, **kwargs: Any
    ) -> Any:
        if more or debug_info is not None and not isinstance(debug_info, str):
            raise arguments_by_position(op_type, (debug_info, *more))
        read = as_names(inputs, unnamed=self._unnamed)
        blobs, ops = self._blobs, self._net.op
        blobs.refresh()
        if outputs is None:
            written = [ScopedName(blobs.next_name(op_type, None))]
        elif type(outputs) is int:
            if not 0 <= outputs <= _MOST_OUTPUTS:
                raise NetError(f"net {self}: {op_type} cannot have {outputs} outputs; give names, or their number")
            written = [ScopedName(blobs.next_name(op_type, i)) for i in range(outputs)]
        else:
            written = as_names(outputs, unnamed=self._unnamed)
        op = ops.add()
        try:
            self._build(op_type, read, written, user_source(2) if debug_info is None else debug_info, op, **kwargs)
        except BaseException:
            del ops[-1]
            raise
        blobs.add_operator(read, written)
        for watch in operator_watchers:
            watch(op)
        if len(written) == 1:
            return BlobReference(written[0], self)
        return tuple(BlobReference(name, self) for name in written) if written else None

    def Const(self, array: Any, blob_out: Any = None, dtype: Any = None) -> BlobReference:
        """Append an operator that writes the constant ``array``.

        Args:
            array: numbers, bools or strings. Floating-point values become float32.
            blob_out: name of the blob; None: one named after the net and the operator.
            dtype: NumPy type to convert ``array`` to first.
        """
        op_type, args = constant_operator(array, dtype)
        written = self._add(op_type, [], 1 if blob_out is None else blob_out, **args)
        return written[0] if isinstance(written, tuple) else written

    @checked()
    def Python(
        self,
        f: Any,
        grad_f: Any = None,
        python_func_type: Any = None,
        pass_workspace: bool = False,
        grad_output_indices: Sequence[int] | None = None,
        grad_input_indices: Sequence[int] | None = None,
    ) -> Callable[..., Any]:
        """Return a function that appends an operator which runs Python code: ``net.Python(f)(inputs, outputs)``.

        Args:
            f: called with the list of inputs and the list of outputs, each a ``PythonTensor`` with ``data``,
                ``reshape(shape)`` and ``feed(array)``; or (make, args, kwargs), where ``make`` returns it and is
                called once for each operator of each created net.
            grad_f: the same for the gradient; its inputs are the forward inputs, the forward outputs and the
                gradients of the outputs, its outputs the gradients of the inputs.
            python_func_type: a class whose objects have ``forward`` and ``backward``, made from ``f``.
            pass_workspace: pass the workspace to both functions as the third argument.
            grad_output_indices: outputs whose gradients ``grad_f`` takes; None: all.
            grad_input_indices: inputs whose gradients ``grad_f`` computes; None: all.
        """
        if python_func_type is not None and not callable(python_func_type):
            raise ArgumentError(f"net {self}: python_func_type must be a class, got {python_func_type!r}")
        arguments: dict[str, Any] = {
            "grad_output_indices": list(() if grad_output_indices is None else grad_output_indices),
            "grad_input_indices": list(() if grad_input_indices is None else grad_input_indices),
            **python_arguments(f, grad_f, python_func_type, pass_workspace, must_fill=self._must_fill),
        }
        return partial(self._add, "Python", **arguments)

    def LogInfo(self, *msg_or_blobs: Any) -> None:
        """Append operators that write blobs, or messages, to the standard output (see ``Print``).

        Args:
            msg_or_blobs: references of blobs; anything else is a message, stored as text in a blob ``<net>/log``.
        """
        for item in msg_or_blobs:
            if not isinstance(item, BlobReference):
                item = self.GivenTensorStringFill([], self.NextName("log"), shape=[], values=[str(item)])
            self.Print(item, [])

    @checked()
    def extend_ops(self, new_ops: Iterable[OperatorDef]) -> None:
        """Append copies of operators; inputs that nothing defines become external inputs of the net."""
        self._blobs.refresh()
        for op in new_ops:
            self._net.op.add().CopyFrom(op)  # extend would parse it, and refuse deep nets
            self._blobs.add_operator(op.input[:], op.output[:])

    def fill_ops(self, fills: Iterable[Callable[[OperatorDef], Any]]) -> None:
        """Append operators, each of which a function fills in, as ``extend_ops`` appends copies."""
        self._blobs.refresh()
        for fill in fills:
            op = self._net.op.add()
            fill(op)
            self._blobs.add_operator(op.input[:], op.output[:])

    @checked()
    def replace_message(self, proto: NetDef) -> None:
        """Replace the contents of the net's message by ``proto``, the result of a pass; the object stays the same."""
        self._net.CopyFrom(proto)
        self._blobs.invalidate()

    @checked()
    def insert_op_at_idx(self, op: OperatorDef, op_idx: int) -> None:
        """Insert a copy of ``op`` before operator ``op_idx``; the cost is linear in the size of the net."""
        if not 0 <= op_idx <= len(self._net.op):
            raise NetError(
                f"net {self}: op_idx must be in [0, {len(self._net.op)}], the number of operators, got {op_idx}"
            )
        self._net.op.insert(op_idx, op)
        self._blobs.invalidate()

    # -- copies -----------------------------------------------------------------------------

    @checked()
    def Clone(
        self,
        name: str,
        blob_remap: Mapping[Any, Any] | None = None,
        op_id_mask: Iterable[int] | None = None,
        remap_funcs: Mapping[str, RemapFunction] | None = None,
        *,
        update_external_list: bool = False,
    ) -> Net:
        """Return a copy of the net.

        Args:
            name: name of the copy; made unique.
            blob_remap: old blob -> new blob, applied to control inputs and subgraphs too.
            op_id_mask: indices of the operators to copy; None: all.
            remap_funcs: operator type -> function of (operator, prefix, blob_remap) that changes each
                copied operator of this type.
            update_external_list: compute the external inputs and outputs anew from the copied operators.
        """
        names = {blob_name(old): blob_name(new) for old, new in (blob_remap or {}).items()}
        proto = copy_net(
            self._net,
            names=names,
            op_ids=op_id_mask,
            remap_funcs=remap_funcs,
            prefix=name + SEPARATOR if name else "",
            update_external=update_external_list,
        )
        return self._copied(proto, name)

    @checked()
    def ClonePartial(
        self,
        name: str,
        inputs: Mapping[Any, Any] | Iterable[Any] | str,
        outputs: Mapping[Any, Any] | Iterable[Any] | str,
        remap_funcs: Mapping[str, RemapFunction] | None = None,
    ) -> tuple[Net, list[BlobReference]]:
        """Return a net of the operators that make ``outputs`` from ``inputs``, and references to its outputs.

        Blobs that these operators write get ``name`` as their scope; blobs read from outside keep their names.

        Args:
            inputs: blobs, or a mapping blob -> name in the copy.
            outputs: blobs, or a mapping blob -> name in the copy.
        """
        prefix = name + SEPARATOR if name else ""
        requested = _renaming(outputs, keep=False)
        part = copy_part(self._net, _renaming(inputs, keep=True), requested, prefix=prefix, remap_funcs=remap_funcs)
        copy = self._copied(part, name)
        return copy, copy.external_outputs

    def _copied(self, proto: NetDef, name: str) -> Net:
        proto.name = name
        return type(self)(proto, inplace=True)

    @checked("net", "device_option")
    def AppendNet(
        self, net: Net | NetDef, device_option: DeviceOption | None = None, *, scope: str | None = None
    ) -> Net:
        """Append the operators of ``net``; its external inputs and outputs become this net's; return this net.

        Args:
            device_option: device of the appended operators, those of subgraphs included.
            scope: name scope for all blobs of ``net``; blobs that have it already are not changed.

        Raises:
            TypeError: ``net`` or ``device_option`` is of another type.
        """
        if not isinstance(net, (Net, NetDef)):
            raise TypeError(f"net {self}: AppendNet: net must be a Net or NetDef, got {net!r}")
        if device_option is not None and not isinstance(device_option, DeviceOption):
            raise TypeError(f"net {self}: AppendNet: device_option must be a DeviceOption, got {device_option!r}")
        proto = net if isinstance(net, NetDef) else net.Proto()
        if scope or device_option is not None:
            proto = prefixed(proto, scope) if scope else copy_net(proto)
            if device_option is not None:
                place_operators(proto, device_option)
        self._blobs.refresh()
        for name in proto.external_input:
            if name not in self._blobs:
                self._blobs.add_external(name)
        self.extend_ops(list(proto.op) if proto is self._net else proto.op)
        results = set(self._net.external_output)
        self._net.external_output.extend(name for name in proto.external_output if name not in results)
        return self

    # -- gradients --------------------------------------------------------------------------

    @checked("ys", "callbacks")
    def AddGradientOperators(
        self,
        ys: Iterable[Any] | Mapping[Any, Any],
        skip: int = 0,
        *,
        callbacks: Sequence[gradients.Callback] = (),
    ) -> dict[BlobReference, BlobReference | GradientSlice]:
        """Append the operators that compute the gradients of ``ys``; return where each blob's gradient is.

        Args:
            ys: the losses, each seeded with ones; or a mapping loss -> its gradient (None: ones).
            skip: number of operators at the start of the net that are not differentiated.
            callbacks: functions called with (net, operator), in this order, after each operator is appended;
                they may append operators themselves. They are called for the gradient nets of ParallelDo, too.

        Returns:
            For each blob with a gradient, a reference to it, or a GradientSlice where it is sparse.

        Raises:
            GradientError: an operator on the path to a loss has no gradient; a blob that a gradient needs was
                overwritten; gradients were added before. The net is unchanged.
            TypeError: ``ys`` is neither a list nor a mapping, or ``callbacks`` is not a list of functions.
        """
        return gradients.add_gradient_operators(self, ys, skip, callbacks)

    def repeated_rows(self, gradient: GradientSlice) -> str:
        """Return how optimizers aggregate rows of equal index by default: "sum", or "none" (not at all)."""
        return "sum"

    def DeduplicateGradientSlices(self, g: GradientSlice, aggregator: str = "sum") -> GradientSlice:
        """Append operators that aggregate the rows of equal index in a sparse gradient; return the result.

        Args:
            g: indices and values.
            aggregator: "sum" or "mean" of the rows.
        """
        if aggregator not in ("sum", "mean"):
            raise NetError(f"DeduplicateGradientSlices: aggregator must be 'sum' or 'mean', got {aggregator!r}")
        unique, remapping = self._add("Unique", [g.indices], 2, engine="SparseHash")
        aggregate = "UnsortedSegmentSum" if aggregator == "sum" else "UnsortedSegmentMean"
        values = self._add(aggregate, [g.values, remapping], 1)
        return GradientSlice(indices=unique, values=values)

    # -- devices ----------------------------------------------------------------------------

    @checked()
    def RunAllOnGPU(self, gpu_id: int = 0, use_cudnn: bool = False) -> None:
        """Set the device of the whole net to a GPU, and with ``use_cudnn`` the engine of all operators to cuDNN.

        Operators with a device of their own keep it.
        """
        check_whole_numbers(f"net {self}", 0, INT32_MAX, gpu_id=gpu_id)
        self._net.device_option.CopyFrom(DeviceOption(device_type=PROTO_CUDA, device_id=gpu_id))
        if use_cudnn:
            for op in self._net.op:
                op.engine = "CUDNN"

    def RunAllOnMKL(self) -> None:
        """Set the device of the whole net to MKL-DNN, whose operators run on the CPU."""
        self._net.device_option.CopyFrom(DeviceOption(device_type=PROTO_MKLDNN))

    def RunAllOnIDEEP(self) -> None:
        """Set the device of the whole net to iDeep, whose operators run on the CPU."""
        self._net.device_option.CopyFrom(DeviceOption(device_type=PROTO_IDEEP))

    @checked()
    def set_rand_seed(self, seed: int = 100, sequence_seed: bool = True, seed_on_op_def: bool = False) -> None:
        """Set the random seed of every operator, in its device option.

        Args:
            seed: seed of the first operator.
            sequence_seed: operator i gets ``seed + i``; otherwise all get ``seed``.
            seed_on_op_def: compute the seed from ``seed`` and the operator's type, inputs and outputs, so that
                inserting an operator before it does not change it; excludes ``sequence_seed``.

        Raises:
            NetError: ``sequence_seed`` and ``seed_on_op_def`` are both set.

        >>> net = Net("seeded")
        >>> _ = net.UniformFill([], "a"), net.UniformFill([], "b")
        >>> net.set_rand_seed(7)
        >>> [op.device_option.random_seed for op in net.Proto().op]
        [7, 8]
        """
        if sequence_seed and seed_on_op_def:
            raise NetError(f"net {self}: set_rand_seed: give sequence_seed or seed_on_op_def, not both")
        check_whole_numbers(f"net {self}: set_rand_seed", 0, UINT32_MAX - len(self._net.op), seed=seed)
        _seed_operators(self._net, seed, in_sequence=sequence_seed, by_operator=seed_on_op_def)


def _seed_operators(net: NetDef, seed: int, *, in_sequence: bool = True, by_operator: bool = False) -> None:
    for index, op in enumerate(net.op):
        if by_operator:
            text = "|".join([op.type, *op.input, "", *op.output, str(seed)])
            op.device_option.random_seed = zlib.crc32(text.encode())
        else:
            op.device_option.random_seed = seed + index if in_sequence else seed


def _renaming(blobs: Mapping[Any, Any] | Iterable[Any], *, keep: bool) -> dict[str, str]:
    if isinstance(blobs, Mapping):
        return {blob_name(old): blob_name(new) for old, new in blobs.items()}
    if isinstance(blobs, (str, BlobReference)):
        blobs = [blobs]
    return {blob_name(blob): blob_name(blob) if keep else "" for blob in blobs}
