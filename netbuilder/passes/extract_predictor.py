"""Extraction of a predictor: the operators of a net between given inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.blob import blob_name
from netbuilder.graph.blob_devices import place_operators
from netbuilder.graph.net import Net
from netbuilder.ops.core.registry import find, is_registered
from netbuilder.ops.core.renaming import blob_names, check_renamable, rename_in_operator, subgraphs
from netbuilder.passes.net_pass import PassContext, PassResult, net_pass
from netbuilder.proto import BlobError, DeviceOption, NetDef, NetError, OperatorDef
from netbuilder.proto.arguments import arguments, made_at, make_op, set_argument
from netbuilder.proto.call_checks import checked
from netbuilder.proto.depth import deep_nets
from netbuilder.proto.suggestions import did_you_mean

__all__ = [
    "READERS",
    "ExtractPredictorNet",
    "extract_predictor",
    "extract_predictor_pass",
    "note_sharded",
    "parameter_sources",
    "remove_sources",
    "sharded_parameters",
]

READERS = frozenset(
    {
        "BatchDequeue",
        "CreateBlobsQueue",
        "CreateDB",
        "DequeueBlobs",
        "DequeueRebatchingQueue",
        "ImageInput",
        "ReadNextBatch",
        "ReadRandomBatch",
        "SafeDequeueBlobs",
        "TensorProtosDBInput",
        "VideoInput",
    }
)
"""Types of operators that read samples from outside; in a predictor their outputs must be inputs."""

_LABELS = ("label", "labels", "target", "targets")

_SOURCES = "parameter_sources"
_NAMES = "parameter_names"
_SHARDED = "sharded_parameters"
_WORLD = "sharded_over"


@net_pass
def extract_predictor_pass(
    net: NetDef,
    context: PassContext,
    *,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    device: DeviceOption | None = None,
    renames: Mapping[str, str] | Callable[[str], str] | None = None,
    disabled: Collection[Any] = (),
) -> PassResult:
    """Extract the part of a net in test mode that computes ``outputs`` from ``inputs``.

    The net is traced back from the last version of each output to the inputs. An input means the version that its first
    reader reads (StopGradient does not count as a reader). A SoftmaxWithLoss of which only the softmax is needed
    becomes a Softmax, which needs no labels, unless the labels are among the inputs. An input that no output needs is
    dropped. The backward step nets of recurrent operators are removed.

    Args:
        inputs: blobs that will be fed.
        outputs: blobs that the predictor computes.
        device: device of all operators; None: unchanged.
        renames: new names of blobs, parameters included; ``parameter_sources`` of the result maps the new names of
            parameters to the old ones.
        disabled: blobs that the outputs must not depend on.

    Returns:
        The net, whose external inputs are the inputs and then the parameters; extra ``parameters``: their names.

    Raises:
        BlobError: no operator reads an input, or none writes an output.
        NetError: a name is given twice or is both input and output; no output depends on an input; an output depends on
            a disabled blob, on a reader or on the backward pass; an operator is in training mode; two blobs would
            get the same name.
        NotImplementedError: blobs are renamed, and an unknown operator has subgraphs.
    """
    given, requested = _names("inputs", inputs), _names("outputs", outputs)
    if both := [blob for blob in requested if blob in given]:
        raise NetError(f"net {net.name!r}: blobs cannot be both input and output of a predictor, got {both}")
    first_read = _first_readers(net, given)
    _check_made(net, requested)
    needed, used, parameters = _slice(net, first_read, requested, {blob_name(b) for b in disabled})
    if not used:
        raise NetError(f"net {net.name!r}: no output depends on an input; inputs {given}, outputs {requested}")
    for index, op in needed:
        _check_mode(net, index, op)
    result = NetDef(name=net.name + "_predict" if net.name else "predict")
    with deep_nets():
        result.op.extend(op for _, op in needed)
    for op in result.op:
        _clear_backward_step(op)
    if device is not None:
        place_operators(result, device)
    ordered = [blob for blob in given if blob in used]
    rename = _renaming(renames)
    _rename(result, rename, [*ordered, *parameters])
    result.external_input.extend(map(rename, [*ordered, *parameters]))
    result.external_output.extend(map(rename, requested))
    names = list(map(rename, parameters))
    if names != parameters:
        set_argument(result, _NAMES, names)
        set_argument(result, _SOURCES, parameters)
    return PassResult(result, {"parameters": names})


@checked("inputs", "outputs")
def extract_predictor(
    net: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    device: DeviceOption | None = None,
    renames: Mapping[str, str] | Callable[[str], str] | None = None,
    disabled: Collection[Any] = (),
    parameters: Iterable[Any] | None = None,
) -> tuple[NetDef, list[str]]:
    """Return the part of a net that computes ``outputs`` from ``inputs``, and the parameters it needs.

    Arguments, results and errors are those of ``extract_predictor_pass``, and:

    Args:
        net: also a model (ModelHelper), whose parameters are known.
        parameters: those of the model; None: those of a model that is given, or not known.

    Raises:
        BlobError: the outputs depend on a blob that is neither an input nor a parameter; or, if the parameters are not
            known, on labels (or the weights of samples, after them) that are not an input: the predictor would keep
            those of the last batch.
    """
    main = getattr(net, "net", None)
    if parameters is None and hasattr(main, "Proto") and hasattr(net, "params"):
        parameters = [*net.params, *net.GetComputedParams("")]
    options: dict[str, Any] = {"device": device, "disabled": disabled}
    proto = main if hasattr(main, "Proto") and hasattr(net, "params") else net
    result = extract_predictor_pass(proto, inputs=inputs, outputs=outputs, **options)
    _check_parameters(result.net, result.extras["parameters"], parameters)
    if renames is not None:
        result = extract_predictor_pass(proto, inputs=inputs, outputs=outputs, renames=renames, **options)
    return result.net, result.extras["parameters"]


def _check_parameters(net: NetDef, kept: Collection[str], parameters: Iterable[Any] | None) -> None:
    """Raise BlobError if what the predictor would keep as parameters is data of the last batch."""
    if parameters is not None:
        known = set(map(blob_name, parameters))
        data = {blob: "no parameter of the model" for blob in kept if blob not in known}
    else:
        data = {blob: f"read as {name!r} by {op.type}" for op in net.op for blob, name in _labels(op) if blob in kept}
    if data:
        blob, why = next(iter(data.items()))
        raise BlobError(
            f"net {net.name!r}: the outputs depend on {blob!r}, {why}, which is not among the inputs either; the "
            f"predictor would keep the value of the last batch: add {blob!r} to inputs, or leave out the outputs that "
            "need it"
        )


def _labels(op: OperatorDef) -> list[tuple[str, str]]:
    """Return the blobs that an operator reads as labels or after them, with the names of these inputs."""
    if not is_registered(op.type):
        return []
    names = [name.rstrip("?*+") for name in find(op.type).inputs]
    first = next((k for k, name in enumerate(names) if name.lower() in _LABELS), len(names))
    return list(zip(op.input[first:], names[first:]))


def _clear_backward_step(op: OperatorDef) -> None:
    """Clear the backward step net of a recurrent operator, as Caffe2 does."""
    if op.type == "RecurrentNetwork":
        for argument in op.arg:
            if argument.name == "backward_step_net":
                argument.ClearField("n")


@checked("input_blobs", "output_blobs")
def ExtractPredictorNet(
    net_proto: Any,
    input_blobs: Sequence[Any],
    output_blobs: Sequence[Any],
    device: DeviceOption | None = None,
    renames: Mapping[str, str] | None = None,
    disabled_inputs: Collection[Any] | None = None,
) -> tuple[Net, list[str]]:
    """Return the result of ``extract_predictor_pass`` as a Net and the list of parameters to save.

    As in Caffe2, each blob that is not an input is a parameter, labels too; ``extract_predictor`` refuses those.

    >>> net = Net("example")
    >>> scores = net.Relu(net.FC(["data", "w", "b"], "scores"), "scores")
    >>> predictor, parameters = ExtractPredictorNet(net.Proto(), ["data"], ["scores"])
    >>> [op.type for op in predictor.Proto().op], parameters
    (['FC', 'Relu'], ['w', 'b'])
    """
    result = extract_predictor_pass(
        net_proto, inputs=input_blobs, outputs=output_blobs, device=device, renames=renames,
        disabled=() if disabled_inputs is None else disabled_inputs,
    )  # fmt: skip
    return Net(result.net, inplace=True), result.extras["parameters"]


def remove_sources(net: NetDef) -> None:
    """Remove what says where the values of parameters are from a net whose init net creates them."""
    others = [argument for argument in net.arg if argument.name not in (_SOURCES, _NAMES, _SHARDED, _WORLD)]
    del net.arg[:]
    net.arg.extend(others)


@checked()
def parameter_sources(net: NetDef) -> dict[str, str]:
    """Return, for each parameter that extraction renamed, the blob with its value in the training workspace."""
    found = arguments(net)
    names, sources = (found.get(key) or [] for key in (_NAMES, _SOURCES))
    return {name.decode(): source.decode() for name, source in zip(names, sources)}


def note_sharded(net: NetDef, rows: Mapping[str, int], world: str) -> None:
    """Note which parameters of a predictor are tables whose rows are divided over processes.

    Args:
        net: the predictor; changed.
        rows: its parameters of that kind -> number of all rows.
        world: blob of a common world of the processes.
    """
    if rows:
        set_argument(net, _SHARDED, [f"{count}:{name}" for name, count in rows.items()])
        set_argument(net, _WORLD, world)


def sharded_parameters(net: NetDef) -> tuple[dict[str, int], str]:
    """Return what ``note_sharded`` has noted."""
    found = arguments(net)
    pairs = (text.decode().partition(":") for text in found.get(_SHARDED) or [])
    return {name: int(count) for count, _, name in pairs}, (found.get(_WORLD) or b"").decode()


def _names(what: str, blobs: Sequence[Any]) -> list[str]:
    if (
        isinstance(blobs, (str, bytes))
        or not isinstance(blobs, Iterable)
        or getattr(blobs, "ndim", 1) == 0
        or not len(list(blobs))
    ):
        raise NetError(f"{what} of a predictor must be a list of at least one blob, got {blobs!r}")
    names = [blob_name(blob) for blob in blobs]
    if len(set(names)) < len(names):
        raise NetError(f"{what} of a predictor must all be different, got {names}")
    return names


def _first_readers(net: NetDef, inputs: Sequence[str]) -> dict[str, int]:
    """Return for each input the index of the first operator that reads it."""
    first: dict[str, int] = {}
    stopped: dict[str, int] = {}
    for index, op in enumerate(net.op):
        into = stopped if op.type == "StopGradient" else first
        for blob in op.input:
            into.setdefault(blob, index)
    readers = {**stopped, **first}
    for blob in inputs:
        if blob not in readers:
            raise BlobError(
                f"net {net.name!r}: no operator reads {blob!r}, so it cannot be an input" + did_you_mean(blob, readers)
            )
    return {blob: readers[blob] for blob in inputs}


def _check_made(net: NetDef, outputs: Sequence[str]) -> None:
    made = {blob for op in net.op for blob in op.output}
    for blob in outputs:
        if blob not in made:
            raise BlobError(
                f"net {net.name!r}: no operator writes {blob!r}, so it cannot be an output" + did_you_mean(blob, made)
            )


def _slice(
    net: NetDef, first_read: Mapping[str, int], outputs: Sequence[str], disabled: Collection[str]
) -> tuple[list[tuple[int, OperatorDef]], set[str], list[str]]:
    """Return the needed operators with their positions, the used inputs, and the parameters in order of use."""
    needed_by: dict[str, str] = {blob: blob for blob in outputs}  # needed blob -> an output that depends on it
    kept: list[tuple[int, OperatorDef]] = []
    outside = set(net.external_input)
    for index in range(len(net.op) - 1, -1, -1):
        op = net.op[index]
        # Operators before an input's first reader compute the input itself, which is fed, so they are not needed.
        made = [blob for blob in dict.fromkeys(op.output) if blob in needed_by and first_read.get(blob, -1) <= index]
        if not made:
            continue
        output = needed_by[made[0]]
        if op.type in READERS:
            raise NetError(
                f"net {net.name!r}: output {output!r} depends on {made[0]!r}, which operator {index} {op.type} reads "
                f"from its source; give {made[0]!r}, or a blob computed from it, as an input"
            )
        if op.is_gradient_op:
            raise NetError(
                f"net {net.name!r}: output {output!r} depends on {made[0]!r}, which operator {index} {op.type} of the "
                "backward pass writes; a predictor contains only the forward pass"
            )
        op = _without_labels(op, made, first_read)
        kept.append((index, op))
        for blob in made:
            del needed_by[blob]
        for blob in _reads(op, outside):
            if blob in disabled:
                raise NetError(
                    f"net {net.name!r}: output {output!r} depends on {blob!r}, which is disabled, "
                    f"through operator {index} {op.type}"
                )
            needed_by.setdefault(blob, output)
    kept.reverse()
    used = {blob for blob in first_read if blob in needed_by}
    order = dict.fromkeys(blob for _, op in kept for blob in _reads(op, outside))
    return kept, used, [blob for blob in order if blob in needed_by and blob not in used]


def _reads(op: OperatorDef, outside: Collection[str]) -> list[str]:
    """Return the blobs that an operator reads, including those that its subgraphs read from ``outside``."""
    reads = list(op.input)
    if op.arg:
        reads += [blob for subgraph in subgraphs(op) for blob in subgraph.external_input if blob in outside]
    return reads


def _without_labels(op: OperatorDef, needed: Collection[str], inputs: Collection[str]) -> OperatorDef:
    if op.type != "SoftmaxWithLoss" or op.output[0] not in needed or len(needed) > 1 or op.input[1] in inputs:
        return op
    axis = arguments(op).get("axis")
    softmax = make_op("Softmax", op.input[:1], op.output[:1], name=op.name, axis=axis)
    if op.HasField("device_option"):
        softmax.device_option.CopyFrom(op.device_option)
    softmax.debug_info = op.debug_info
    return softmax


def _check_mode(net: NetDef, index: int, op: OperatorDef) -> None:
    """Raise NetError if an operator, or one in its subgraphs, is in training mode."""
    default: Any = 1
    if is_registered(op.type):
        fields = dataclasses.fields(find(op.type))
        default = next((field.default for field in fields if field.name == "is_test"), 1)
    if not arguments(op).get("is_test", default):
        raise NetError(
            f"net {net.name!r}, operator {index} {op.type} {list(op.input)} -> {list(op.output)}{made_at(op)}: it is "
            "in training mode (is_test=0); extract from a net built in test mode (is_test=1) with "
            "ModelHelper(init_params=False)"
        )
    for subgraph in subgraphs(op):
        for inner in subgraph.op:
            _check_mode(net, index, inner)


def _renaming(renames: Mapping[str, str] | Callable[[str], str] | None) -> Callable[[str], str]:
    if renames is None:
        return lambda name: name
    if callable(renames):
        return renames
    table = {blob_name(old): blob_name(new) for old, new in renames.items()}
    return lambda name: table.get(name, name)


def _rename(net: NetDef, rename: Callable[[str], str], external: Sequence[str]) -> None:
    blobs = dict.fromkeys([*external, *(blob for op in net.op for blob in blob_names(op))])
    names: dict[str, str] = {}
    for blob in blobs:
        other = names.setdefault(rename(blob), blob)
        if other != blob:
            raise NetError(f"net {net.name!r}: blobs {other!r} and {blob!r} would both be named {rename(blob)!r}")
    if all(new == old for new, old in names.items()):
        return
    check_renamable(net, "extract without renames")
    for op in net.op:
        rename_in_operator(op, rename)
