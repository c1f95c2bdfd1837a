"""Operator: the base class of all operators; specs of values; reading an operator from an OperatorDef."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from google.protobuf.message import DecodeError

from netbuilder.ops.core.shape_rules import ShapeRules, shape_rules
from netbuilder.ops.core.signatures import Signature, parsed
from netbuilder.ops.core.specs import STRING, TensorSpec, spec_of
from netbuilder.proto import ArgumentError, NetDef, NetError, OperatorDef, ShapeError, TensorProto
from netbuilder.proto.arguments import argument_value, make_op
from netbuilder.proto.errors import counted
from netbuilder.proto.late_dataclass import dataclass

if TYPE_CHECKING:
    from netbuilder.ops.core.contexts import GradientContext

__all__ = [
    "ANY_NUMBER",
    "STRING",
    "BatchMean",
    "Exchange",
    "InBatch",
    "NetNames",
    "Operator",
    "TensorSpec",
    "arity",
    "check_arity",
    "decode",
    "encode",
    "require",
    "spec_of",
]

NetNames = Literal["around", "ends", "inputs", "own", "scoped"]
"""How the nets among an operator's arguments name blobs, see ``Operator.net_names``."""


class Exchange(enum.Enum):
    """Whether an operator exchanges values between devices; a plan may run an exchange in a lane of its own."""

    NEVER = "it works on values of its own device"
    BETWEEN_DEVICES = "it copies, adds or concatenates values: an exchange if they belong to several devices"
    ALWAYS = "a collective over devices"
    BETWEEN_PROCESSES = "a collective over processes: they all run the same ones, in the order of the net"


@dataclass(frozen=True)
class BatchMean:
    """That an output is a mean over samples: which one, and what it is divided by (see ``MeanDivisor``).

    Args:
        of: "sum", "labels", "rows" or "elements"; "": there is a divisor for each element of the output.
        inputs: indices of the inputs that determine the divisor.
        output: index of the output.
        axis, axes: for "rows" and for "elements".
        by_values: the divisor depends on the elements of the inputs; otherwise only on their extents.
        least, offset: the divisor is the greater of its value and ``least``, plus ``offset``.
    """

    of: str
    inputs: tuple[int, ...]
    output: int = 0
    axis: int = 1
    axes: tuple[int, ...] = ()
    by_values: bool = False
    least: float = 0.0
    offset: float = 0.0


class InBatch(enum.Flag):
    """What an operator makes of the samples of a batch, for ``graph.batch_means``."""

    UNKNOWN = 0
    LINEAR = enum.auto()  #: it is linear in all inputs together, so it makes means of means over the samples
    ROW_BY_ROW = enum.auto()  #: row i of the outputs is computed from rows i of the inputs
    SUM = enum.auto()  #: without ``axes``, it sums over the samples
    OVER_SAMPLES = enum.auto()  #: without ``axes``, it makes of the samples neither a mean nor a sum, but a maximum
    SAME_ROWS = enum.auto()  #: the outputs have as many rows as the inputs, even if it is ``dynamic``
    NOT_ADDITIVE = enum.auto()  #: the numbers of rows of the shares do not add up to that of the batch
    EXTENTS_ONLY = enum.auto()  #: it reads the shapes of its inputs and no elements


@functools.cache
def arity(names: Sequence[str]) -> tuple[int, int]:
    """Return the smallest and the largest number of blobs that a signature allows."""
    least = sum(1 for n in names if n[-1] not in "?*")
    most = ANY_NUMBER if names and names[-1][-1] in "*+" else len(names)
    return least, most


class _Stated:
    """A class attribute that follows from the signature; it is computed when it is first read."""

    def __init__(self, of: Callable[[Signature], Any]) -> None:
        self._of = of

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, op: Any, cls: type[Operator]) -> Any:
        value = self._of(parsed(cls.signature))
        setattr(next(c for c in cls.__mro__ if "signature" in c.__dict__), self._name, value)
        return value


_STATED = {
    "inputs": _Stated(lambda stated: tuple(blob.name for blob in stated.inputs)),
    "outputs": _Stated(lambda stated: tuple(blob.name for blob in stated.outputs)),
    "n_in": _Stated(lambda stated: arity(tuple(blob.name for blob in stated.inputs))[0]),
    "n_out": _Stated(lambda stated: arity(tuple(blob.name for blob in stated.outputs))[0]),
}


def _with_signature(document: str, signature: str) -> str:
    """Return the docstring of an operator with the signature after what it says, before the source."""
    text, lines = map(_dedented, (document, signature))
    before, source, after = text.partition("\n\nSource:")
    return f"{before}\n\nSignature:\n    {lines.strip()}{source}{after}"


def _dedented(text: str) -> str:
    """Return a text without the indentation that its last line is; faster than ``inspect.cleandoc``, at import."""
    indentation = text[text.rfind("\n") :]
    return text.rstrip().replace(indentation, "\n") if "\n" in text and not indentation.strip() else text


class Operator:
    """Base of all operators: a frozen dataclass whose fields are the arguments, with their defaults.

    Class attributes that a subclass sets:

    signature: names, shapes and types of inputs and outputs, as ``ops.core.signatures`` describes; ``inputs`` and
        ``outputs``, the names with their ``?``, ``*`` or ``+``, and ``infer`` follow from it, and ``help`` shows it.
    gradient_of: the operator whose gradient this one computes; ``register`` finds it by the name, ``<type>Gradient``.
    inplace: which output may be the same blob as which input: pairs (input index, output index),
        or ``"one-to-one"`` for "output i and input i, any i".
    must_inplace: pairs (input index, output index) that have to be the same blob.
    remedies: what the error about the shape or type of an input advises, by the name of the input.
    dynamic: the output shapes depend on data, or on Python; the operator runs outside plans, between two of them.
    in_batch: what the operator makes of the samples of a batch. ``InBatch.UNKNOWN``: nothing is known; the outputs are
        values of samples, as many as the inputs have (``dynamic``: chosen ones), and what reads a mean is not one.
    rows_chosen_by: index of the input, a mask or lengths, whose sum is the number of rows of output 0.
    waits: it may wait for other operators, nets or threads (a queue); in a net with several workers, operators that do
        not depend on it run in the meantime.
    may_be_empty: indices of inputs whose blobs may have no value; the kernel gets an empty float32 vector for one.
    stateful: it does more than compute outputs from inputs (random numbers, counters, files), so it is never
        removed, shared or run twice.
    effects: what it does besides computing its outputs, in words that follow "which": "touches files"; "": nothing that
        leaves the memory of its workspace and the log, and it ends by itself, without waiting. None: see
        ``outside_effects``.
    draws: it draws random numbers, from the stream in its argument ``random_stream`` (see ``random_streams``).
    outputs_on_host: the outputs are in the host's memory even if the operator runs on a GPU.
    inputs_on_host: indices of the inputs that the plain kernel reads in the host's memory; True: all.
    colocate_outputs_with: for an operator on a GPU that works on several devices: the outputs are on the device of the
        input with this index, or, with ``"one-to-one"``, output i on that of input i, of as many inputs, the last ones.
    flops_per_element: floating-point operations for each element of the first input; None: as ``flops`` counts them.
    exchanges: whether the operator exchanges values between devices.
    open_arguments: prefixes of the names of further arguments, which the kernel reads from the
        OperatorDef; ``""`` allows any.
    blob_arguments: the arguments that contain names of blobs; passes that rename blobs rename them there too. Such an
        operator has the names of its inputs and outputs in ``input_names`` and ``output_names``.
    net_names: how the nets and arguments name blobs. "around": as the net that contains the operator does (If); "ends":
        its inputs and outputs by the names that these have around it, all else by names of their own
        (RecurrentNetwork); "inputs": its inputs alone (RecurrentNetworkGradient); "own": all by names of their own,
        which arguments relate to inputs and outputs (ParallelDo); "scoped": the same, and their blobs are stored under
        a scope, so that their names are never changed (Do).
    repeats_nets: such nets read what they have written in an earlier run during the same run of the operator.
    certain_nets: for "around", the arguments of which one net runs at least once in each run of the operator.
    """

    signature: ClassVar[str] = ""
    gradient_of: ClassVar[type[Operator] | None] = None
    inputs: ClassVar[tuple[str, ...]] = cast(Any, _STATED["inputs"])
    outputs: ClassVar[tuple[str, ...]] = cast(Any, _STATED["outputs"])
    inplace: ClassVar[tuple[tuple[int, int], ...] | Literal["one-to-one"]] = ()
    must_inplace: ClassVar[tuple[tuple[int, int], ...]] = ()
    remedies: ClassVar[dict[str, str]] = {}
    dynamic: ClassVar[bool] = False
    in_batch: ClassVar[InBatch] = InBatch.UNKNOWN
    rows_chosen_by: ClassVar[int | None] = None
    stateful: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    effects: ClassVar[str | None] = None
    draws: ClassVar[bool] = False
    may_be_empty: ClassVar[tuple[int, ...]] = ()
    outputs_on_host: ClassVar[bool] = False
    inputs_on_host: ClassVar[tuple[int, ...] | Literal[True]] = ()
    colocate_outputs_with: ClassVar[int | Literal["one-to-one"] | None] = None
    flops_per_element: ClassVar[int | None] = None
    exchanges: ClassVar[Exchange] = Exchange.NEVER
    open_arguments: ClassVar[tuple[str, ...]] = ()
    blob_arguments: ClassVar[tuple[str, ...]] = ()
    net_names: ClassVar[NetNames] = "own"
    repeats_nets: ClassVar[bool] = False
    certain_nets: ClassVar[tuple[str, ...]] = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    copy_arguments: ClassVar[bool] = True  # the gradient operators get the arguments of the forward one

    # Set by `decode` and `with_arity`; without them, the numbers of required inputs and outputs.
    n_in: int = cast(Any, _STATED["n_in"])
    n_out: int = cast(Any, _STATED["n_out"])
    input_names: ClassVar[tuple[str, ...]] = ()
    output_names: ClassVar[tuple[str, ...]] = ()
    _readers: ClassVar[dict[str, Reader]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "signature" in cls.__dict__:
            for name, stated in _STATED.items():
                setattr(cls, name, stated)
        if cls.__dict__.get("__doc__") and cls.signature:
            cls.__doc__ = _with_signature(cls.__doc__ or "", cls.signature)

    @property
    def type(self) -> str:
        return type(self).__name__

    @property
    def shown_as(self) -> str:
        """What a profile calls it: the type, and more where that says little."""
        return self.type

    @property
    def has_side_effects(self) -> bool:
        """Whether a second run on the same inputs would do more than make the same outputs again."""
        return self.stateful and not self.draws

    @classmethod
    def outside_effects(cls) -> str:
        """Return what it does besides computing its outputs and changing its workspace, see ``effects``; "": nothing.

        A stateful operator that says nothing is not known to be harmless.
        """
        if cls.effects is not None:
            return cls.effects
        if cls.waits:
            return "may wait for another net or thread"
        if cls.exchanges is Exchange.BETWEEN_PROCESSES:
            return "exchanges values with other processes"
        return "is not known to stay within its workspace" if cls.stateful and not cls.draws else ""

    def with_arity(self, n_in: int, n_out: int) -> Any:
        """Set the numbers of inputs and outputs; return this operator."""
        object.__setattr__(self, "n_in", n_in)
        object.__setattr__(self, "n_out", n_out)
        return self

    def with_names(self, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        """Set the names of the blobs (see ``blob_arguments``); return this operator."""
        object.__setattr__(self, "input_names", tuple(inputs))
        object.__setattr__(self, "output_names", tuple(outputs))
        return self

    @classmethod
    def named_inputs(cls, op: OperatorDef) -> Sequence[str]:
        """Return the inputs that nets and arguments name, if ``net_names`` says that they name inputs."""
        return op.input

    def static_for(self, *inputs: TensorSpec) -> bool:
        """Whether the output shapes follow from these specs, including the ``known`` elements of inputs."""
        return not self.dynamic

    def check(self) -> None:
        """Raise ArgumentError if an argument is out of range; called once, by ``decode``."""

    def check_inputs(self, *inputs: TensorSpec) -> None:
        """Raise ShapeError if specs that are as the signature states do not fit together, or with the arguments.

        The default checks a gradient operator whose forward operator has an ``infer`` of its own: the outputs of that,
        and their gradients, must have the shapes that it gives.
        """
        forward = type(self).gradient_of
        if forward is None or forward.infer is Operator.infer or forward.dynamic:
            return
        given = {name.rstrip("?*+"): spec for name, spec in zip(type(self).inputs, inputs)}
        known = {field.name: getattr(self, field.name, None) for field in dataclasses.fields(forward)}
        needed = [name for name in forward.inputs if name[-1] != "?"]
        if any(name not in given for name in needed) or None in known.values():
            return
        op = forward(**known).with_arity(len(needed), len(forward.outputs))
        for name, spec in zip(forward.outputs, op.infer(*[given[name] for name in needed])):
            for each in (name.rstrip("?*+"), f"d{name.rstrip('?*+')}"):
                if each in given and given[each].shape != spec.shape:
                    shape = f"the shape of {name}, {spec.shape}" if each[0] == "d" else f"shape {spec.shape}"
                    raise ShapeError(f"{self.type}: {each} must have {shape}, got {given[each].shape}")

    def input_location(self, index: int) -> Literal["here", "host", "any"]:
        """Return where the plain kernel reads an input.

        "here": on the operator's device; "host": in the host's memory (the default for ``inputs_on_host``); "any": the
        kernel does not read the input, or uses only its shape, so it need not be copied.
        """
        return "host" if self.inputs_on_host is True or index in self.inputs_on_host else "here"

    @classmethod
    def shape_rules(cls) -> ShapeRules:
        """Return what the signature says of shapes and types."""
        return shape_rules(cls.signature, cls.gradient_of.signature if cls.gradient_of else None)

    def check_specs(self, *inputs: Any) -> None:
        """Raise ShapeError unless inputs, or their specs, are as the signature states and pass ``check_inputs``.

        For kernels of ``dynamic`` operators, whose inputs nothing else checks.
        """
        self.shape_rules().check(self, inputs)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the plain specs of the ``n_out`` outputs; as the signature states, unless a class computes them.

        Raises:
            ShapeError: the specs of the inputs are not valid for the operator.
            NotImplementedError: the signature does not say the outputs' extents or types, or they depend on data.
        """
        return self.shape_rules().infer(self, inputs)

    def infer_partial(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]
    ) -> tuple[Sequence[TensorSpec | None], Sequence[TensorSpec | None]]:
        """Infer specs where some are unknown (None), from the others.

        The default infers the outputs if all inputs are known. Sum, for example, also infers an input from the others.
        """
        known = [spec for spec in inputs if spec is not None]
        if len(known) < len(inputs) or not self.static_for(*known):
            return inputs, outputs
        return inputs, self.infer(*known)

    def gradient(self, g: GradientContext) -> list[OperatorDef]:
        """Return the operators that compute the gradients of the inputs.

        Raises:
            NotImplementedError: the operator has no gradient (the default).
        """
        raise NotImplementedError(f"{self.type} has no gradient")

    def batch_mean(self) -> BatchMean | None:
        """Return how an output is a mean over all samples, or over all elements, of the inputs; None: none is.

        Data-parallel nets divide such a mean by the sum of the divisors of all shares of a batch.
        """
        return None

    def flops(self, *inputs: TensorSpec) -> int:
        """Return the floating-point operations of one run.

        The default counts ``flops_per_element``, or else one for each element of the outputs, if it can.
        """
        if self.flops_per_element is not None:
            return self.flops_per_element * inputs[0].size if self.flops_per_element else 0
        if not self.static_for(*inputs):
            return 0
        try:
            return sum(spec.size for spec in self.infer(*inputs))
        except NotImplementedError:
            return 0


ANY_NUMBER = 1_000_000
"""Stands for "any number of blobs": more than an operator can have."""


def check_arity(cls: type[Operator], op: OperatorDef) -> None:
    """Raise NetError if ``op`` has too few or too many inputs or outputs, or a forbidden in-place pair."""
    inputs, outputs = op.input[:], op.output[:]
    for verb, what, blobs, names in (
        ("takes", "input", inputs, cls.inputs),
        ("makes", "output", outputs, cls.outputs),
    ):
        least, most = arity(names)
        if not least <= len(blobs) <= most:
            if least == most:
                rule = counted(least, what)
            else:
                rule = f"{least} to {counted(most, what)}" if most < ANY_NUMBER else f"at least {counted(least, what)}"
            listed = f" ({', '.join(names)})" if names else ""
            raise NetError(
                f"{op.type} {verb} {rule}{listed}, got {len(blobs)}: {blobs}; "
                f"help(netbuilder.ops.core.registry.find({op.type!r})) shows its schema"
            )
    if cls.inplace != "one-to-one" and not set(inputs).isdisjoint(outputs):
        for j, blob in enumerate(outputs):
            for i, source in enumerate(inputs):
                if blob == source and (i, j) not in cls.inplace and (i, j) not in cls.must_inplace:
                    if any(inputs[k] == blob for k, o in cls.inplace if o == j and k < len(inputs)):
                        continue
                    over = [k for k, o in (*cls.inplace, *cls.must_inplace) if o == j and k < len(inputs)]
                    may = f", only input {', '.join(map(str, over))}" if over else ", nor another input"
                    raise NetError(f"{op.type}: output {j} ({blob!r}) may not overwrite input {i}{may}; "
                                   "use another output name")  # fmt: skip
    for i, j in cls.must_inplace:
        if i < len(inputs) and j < len(outputs) and inputs[i] != outputs[j]:
            raise NetError(f"{op.type}: output {j} must overwrite input {i} ({inputs[i]!r}), got {outputs[j]!r}")


Reader = Callable[[Any], Any]


def _as_bool(value: Any) -> bool:
    return bool(value)


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _list_of(element: Reader) -> Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if value is None:
            return ()
        return tuple(element(v) for v in (value if isinstance(value, (list, tuple)) else [value]))

    return read


def _number(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, (int, float)):
            number = kind(value)
            if kind is float or -(2**63) <= number < 2**63:
                return number
        raise TypeError

    return read


# By the text of the annotation (modules use postponed evaluation), "| None" stripped.
_READERS: dict[str, Reader] = {
    "int": _number(int),
    "float": _number(float),
    "bool": _as_bool,
    "str": _as_text,
    "bytes": lambda v: v if isinstance(v, bytes) else str(v).encode(),
    "tuple[int, ...]": _list_of(_number(int)),
    "tuple[float, ...]": _list_of(_number(float)),
    "tuple[bool, ...]": _list_of(_as_bool),
    "tuple[str, ...]": _list_of(_as_text),
    "tuple[bytes, ...]": _list_of(lambda v: v if isinstance(v, bytes) else str(v).encode()),
    "NetDef": lambda v: _message(v, NetDef),
    "TensorProto": lambda v: _message(v, TensorProto),
    "Any": lambda v: v,
}


def _message(value: Any, cls: type) -> Any:
    if isinstance(value, cls):
        return value
    if isinstance(value, bytes):  # Caffe2 scripts also pass nets as their bytes
        message = cls()
        message.ParseFromString(value)
        return message
    raise TypeError


def argument_fields(cls: type[Operator]) -> dict[str, Reader]:
    """Return for each argument of an operator class the function that reads it (cached on the class)."""
    readers = cls.__dict__.get("_readers")
    if readers is None:
        readers = {}
        for field in dataclasses.fields(cls):
            text = str(field.type if isinstance(field.type, str) else getattr(field.type, "__name__", field.type))
            text = text.replace(" | None", "")
            if text not in _READERS:
                raise TypeError(f"{cls.__name__}.{field.name}: no reader for arguments of type {field.type!r}")
            readers[field.name] = _READERS[text]
        cls._readers = readers
    return readers


def decode(cls: type[Operator], op: OperatorDef, *, strict: bool = False) -> Operator:
    """Return the operator that ``op`` describes.

    Args:
        cls: the operator's class.
        op: the message; arguments that the class does not know are ignored unless ``strict``.
        strict: raise for unknown arguments, as builders do.

    Raises:
        ArgumentError: an argument has the wrong type or is out of range.
        NetError: too few or too many inputs or outputs, or a forbidden in-place pair.
    """
    check_arity(cls, op)
    readers = argument_fields(cls)
    values: dict[str, Any] = {}
    for argument in op.arg:
        name = argument.name
        reader = readers.get(name)
        if reader is None:
            if strict and not name.startswith(cls.open_arguments):
                raise ArgumentError(f"{op.type}: unknown argument {name!r}; it takes {sorted(readers)}")
            continue
        if name in values:
            continue
        value = argument_value(argument)
        if value is None and reader is not None and not isinstance(reader, type) and name in readers:
            if "tuple" not in str(_annotation(cls, name)):
                continue
        try:
            values[name] = reader(value)
        except (TypeError, ValueError, OverflowError, DecodeError):
            raise ArgumentError(
                f"{op.type}: argument {name!r} must be {_annotation(cls, name)}, got {value!r}"
            ) from None
    operator = cls(**values)
    operator.with_arity(len(op.input), len(op.output))
    if cls.blob_arguments:
        operator.with_names(op.input, op.output)
    operator.check()
    return operator


def _annotation(cls: type[Operator], name: str) -> Any:
    return next(f.type for f in dataclasses.fields(cls) if f.name == name)


def require(condition: bool, op: Operator, text: str) -> None:
    """Raise ShapeError with the operator's type and ``text`` unless ``condition`` holds."""
    if not condition:
        raise ShapeError(f"{op.type}: {text}")


def encode(op: Operator, inputs: Sequence[str], outputs: Sequence[str], **fields: Any) -> OperatorDef:
    """Return the OperatorDef of an operator; arguments that equal their defaults are left out."""
    args = {}
    for field in dataclasses.fields(op):
        value = getattr(op, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if value is not None and value != default:
            args[field.name] = value
    return make_op(op.type, inputs, outputs, **fields, **args)
