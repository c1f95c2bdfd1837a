"""Tables and drawings for notebooks, which show what ``_repr_html_`` returns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from netbuilder.graph.drawing.drawing import drawing_of
from netbuilder.graph.drawing.page import page
from netbuilder.graph.listing import argument_items, device_text, net_arguments
from netbuilder.proto import NetDef
from netbuilder.proto.errors import counted

__all__ = ["folded", "net_html", "table"]

_CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0"
_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_MOST = 500
"""Rows of a table; the rest is counted."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; all texts are escaped.

    >>> table(["a", "b"], [[1, "<x>"]]).count("&lt;x&gt;")
    1
    """
    given = [*rows]
    left = len(given) - _MOST
    lines = [_row("th", head), *(_row("td", row) for row in given[:_MOST])]
    if left > 0:
        lines.append(_row("td", [f"... and {left} more"]))
    return f'<table style="font-size:90%">{"".join(lines)}</table>'


def _row(kind: str, cells: Sequence[object]) -> str:
    texts = [f'<{kind} style="{_CELL}">{_escaped(cell)}</{kind}>' for cell in cells]
    return f"<tr>{''.join(texts)}</tr>"


def _escaped(value: object) -> str:
    return str(value).translate(_MARKUP)


def folded(title: str, body: str, *, unfolded: bool = False) -> str:
    """Return something under a title that shows and hides it.

    Args:
        title: text.
        body: HTML.
        unfolded: it is shown at first.
    """
    return f"<details{' open' if unfolded else ''}><summary>{_escaped(title)}</summary>{body}</details>"


def net_html(
    net: NetDef,
    *,
    init: NetDef | None = None,
    specs: Mapping[str, Any] | None = None,
    inputs: Collection[str] | None = None,
    unfolded: bool = True,
) -> str:
    """Return the drawing of a net, and a table of its operators folded under it.

    Args:
        net: the net.
        init, specs, inputs: as for ``drawing_of``.
        unfolded: the drawing is shown at first.
    """
    body = _frame(page(drawing_of(net, specs, init, inputs=inputs))) + _operators(net, "operators") if net.op else ""
    return folded(f"net {net.name}: {counted(len(net.op), 'operator')}", body, unfolded=unfolded)


def _operators(net: NetDef, title: str) -> str:
    """Return a table of the operators, with the subgraphs that they hold folded under it."""
    rows = [
        [
            number, op.type, ", ".join(op.input), ", ".join(op.output),
            ", ".join(f"{name}={value}" for name, value in argument_items(op) if name != "device_option"),
            device_text(op.device_option) if op.HasField("device_option") else "", op.debug_info,
        ]
        for number, op in enumerate(net.op)
    ]  # fmt: skip
    held = [_operators(inner, f"net {inner.name}") for op in net.op for _, inner in net_arguments(op)]
    return folded(
        title, table(["", "operator", "inputs", "outputs", "arguments", "device", "line"], rows) + "".join(held)
    )


def _frame(text: str) -> str:
    """Return a page within the page: neither sees the other's styles and names."""
    content = text.replace("&", "&amp;").replace('"', "&quot;")
    style = "width:100%;height:480px;border:1px solid #ccc"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{content}"></iframe>'
