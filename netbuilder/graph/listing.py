"""Nets as readable text: one line for each operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.graph.message import message_of
from netbuilder.proto import DeviceOption, NetDef, OperatorDef
from netbuilder.proto.arguments import arguments

__all__ = [
    "argument_items",
    "call_text",
    "common_prefix",
    "device_text",
    "factored",
    "listing",
    "net_arguments",
    "shown",
    "shown_name",
    "value_text",
]


_OF_HELPERS = {
    ("order", "'NCHW'"),
    ("use_cudnn", "1"),
    ("exhaustive_search", "0"),
    ("cudnn_exhaustive_search", "0"),
    ("engine", "'CUDNN'"),
}
"""Arguments that helpers give operators, whether they have such or not, unless told otherwise."""


def listing(net: Any, *, devices: bool = True, lines: bool = False, helpers: bool = True) -> str:
    """Return a net's operators, one per line: outputs, type, inputs and arguments.

    The subgraphs of an operator, such as the step net of a recurrent one, follow it, indented.

    Args:
        net: a Net or NetDef.
        devices: show the device of each operator that has one.
        lines: show the line of the program that made the operator.
        helpers: show arguments that helpers give by default, such as ``order='NCHW'``.

    >>> from netbuilder.graph import Net
    >>> net = Net("listed")
    >>> _ = net.Softmax("scores", "probabilities", axis=1)
    >>> print(listing(net))
    # net: listed
    probabilities = Softmax(scores, axis=1)
    """
    message = message_of(net)
    rows = [f"# net: {message.name}"]
    for op in message.op:
        items = [item for item in argument_items(op) if helpers or item not in _OF_HELPERS]
        texts = [*op.input, *(f"{name}={value}" for name, value in items if devices or name != "device_option")]
        made = f"  # {op.debug_info}" if lines and op.debug_info else ""
        rows.append(call_text(op.type, texts, list(op.output)) + made)
        for name, subgraph in net_arguments(op):
            _, *others = listing(subgraph, devices=devices, lines=lines, helpers=helpers).split("\n")
            rows += [f"    # {name}: {subgraph.name}", *(f"    {row}" for row in others)]
    return "\n".join(rows)


def shown(net: NetDef) -> str:
    """Return what ``print`` shows of a net: its name, and its operators, without what helpers give all of them.

    >>> print(shown(NetDef(name="example", op=[OperatorDef(type="Relu", input=["x"], output=["y"])])))
    example
        y = Relu(x)
    """
    _, *rows = listing(net, helpers=False).split("\n")
    return "\n    ".join([net.name, *rows])


def shown_name(text: str) -> str:
    """Return the name of a net, given that or what ``print`` shows of the net, which ``str(net)`` is.

    >>> shown_name("example"), shown_name("example\\n    y = Relu(x)")
    ('example', 'example')
    """
    return text.partition("\n")[0]


def net_arguments(op: OperatorDef) -> list[tuple[str, NetDef]]:
    """Return (argument name, net) for each subgraph of an operator; an argument may have several nets."""
    found: list[tuple[str, NetDef]] = []
    for argument in op.arg:
        nets = [argument.n] if argument.HasField("n") else argument.nets
        found += [(argument.name, net) for net in nets]
    return found


def argument_items(op: OperatorDef) -> list[tuple[str, str]]:
    """Return (name, text) for an operator's arguments, its engine and its device."""
    # An argument without a value is an empty list, for example the shape of a scalar.
    items = [(name, "[]" if value is None else value_text(value)) for name, value in arguments(op).items()]
    if op.engine:
        items.append(("engine", repr(op.engine)))
    place = device_text(op.device_option)
    return items if place is None else [*items, ("device_option", place)]


def value_text(value: Any) -> str:
    """Return an argument's value as text; for a net its name."""
    if isinstance(value, bytes):
        try:
            return repr(value.decode())
        except UnicodeDecodeError:
            return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(value_text, value)) + "]"
    if hasattr(value, "op"):
        return f"<net {value.name}>"
    return repr(value)


def device_text(device: DeviceOption) -> str | None:
    """Return a device as text; None for the default, CPU 0."""
    if not device.device_type and not device.device_id and not device.node_name:
        return None
    return f"DeviceOption({device.device_type}, {device.device_id}, {device.node_name!r})"


def call_text(op: str, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None,
              factor_prefixes: bool = False) -> str:  # fmt: skip
    """Return ``outputs = op(inputs)``.

    >>> call_text("Add", ["q/a", "q/b"], ["c"], factor_prefixes=True)
    'c = Add(q/[a, b])'
    """
    text = f"{op}({factored(inputs or [], factor_prefixes)})"
    return f"{factored(outputs, factor_prefixes)} = {text}" if outputs else text


def common_prefix(names: Sequence[str]) -> str:
    """Return the longest common prefix of the names."""
    if not names:
        return ""
    low, high = min(names), max(names)
    length = next((i for i, letter in enumerate(low) if letter != high[i : i + 1]), len(low))
    return low[:length]


def factored(names: Sequence[str], do_it: bool) -> str:
    """Return names separated by commas; with ``do_it``, their common scope is written once, before brackets."""
    prefix = common_prefix(list(names)) if do_it and len(names) > 1 else ""
    prefix = prefix[: prefix.rfind("/") + 1]
    rest = ", ".join(name[len(prefix) :] for name in names)
    return f"{prefix}[{rest}]" if prefix else rest
