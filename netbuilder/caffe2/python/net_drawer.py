"""Nets as Graphviz graphs, by pydot; ``netbuilder-draw`` draws pages without either."""

from __future__ import annotations

import base64
import importlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import Net
from netbuilder.graph.versions import number_versions
from netbuilder.proto import NetDef, OperatorDef, PlanDef
from netbuilder.proto.whole_file import write_text
from netbuilder.tools import draw

pydot: ModuleType | None
try:
    pydot = importlib.import_module("pydot")
except ImportError:
    pydot = None

__all__ = [
    "BLOB_STYLE",
    "GetBlobNodeProducer",
    "GetGraphInJson",
    "GetGraphPngSafe",
    "GetOpNodeProducer",
    "GetOperatorMapForPlan",
    "GetPlanGraph",
    "GetPydotGraph",
    "GetPydotGraphMinimal",
    "OP_STYLE",
    "main",
]

__getattr__ = names_of(__name__)

OP_STYLE = {"shape": "box", "color": "#0F9D58", "style": "filled", "fontcolor": "#FFFFFF"}
BLOB_STYLE = {"shape": "octagon"}

Producer = Callable[..., Any]
_EMPTY_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


def _library() -> Any:
    if pydot is None:
        raise ImportError(
            "net_drawer needs pydot (and Graphviz for images), which is not installed: pip install "
            "'netbuilder-nn[draw]'; or draw with netbuilder-draw NET -o net.html, which does not need it"
        )
    return pydot


def _operators(operators_or_net: Any, name: str | None) -> tuple[list[OperatorDef], str | None]:
    """Return the operators, and the name of the graph: ``name``, or else the net's."""
    if isinstance(operators_or_net, Net):
        operators_or_net = operators_or_net.Proto()
    if isinstance(operators_or_net, NetDef):
        return list(operators_or_net.op), name or operators_or_net.name
    if hasattr(operators_or_net, "Proto"):
        return _operators(operators_or_net.Proto(), name)
    return list(operators_or_net), name or "unnamed"


def GetOpNodeProducer(append_output: bool, **kwargs: Any) -> Producer:
    """Return a function that creates an operator's node from the operator and its index.

    Args:
        append_output: append the outputs to the label.
        kwargs: attributes of the node.
    """

    def produce(op: OperatorDef, op_id: int) -> Any:
        named = f"{op.name} ({op.type} (op#{op_id}))" if op.name else f"{op.type} (op#{op_id})"
        outputs = "".join(f"\\n{output}" for output in op.output) if append_output else ""
        return _library().Node(_quoted(named + outputs), **kwargs)

    return produce


def _quoted(name: str) -> str:
    return '"' + name.replace('"', "'") + '"'


def GetBlobNodeProducer(**kwargs: Any) -> Producer:
    """Return a function that creates a blob's node from a name and a label; ``kwargs`` are attributes of the node."""

    def produce(node_name: str, label: str) -> Any:
        return _library().Node(node_name, label=label, **kwargs)

    return produce


def GetPydotGraph(
    operators_or_net: Any, name: str | None = None, rankdir: str = "LR", op_node_producer: Producer | None = None,
    blob_node_producer: Producer | None = None,
) -> Any:  # fmt: skip
    """Return the graph of operators and blobs, a ``pydot.Dot``; each write of a blob gets a new node.

    Args:
        operators_or_net: a Net, a NetDef, or operators.
        name: of the graph; None: the net's.
        rankdir: direction of the layout, "LR" or "TB".
        op_node_producer, blob_node_producer: create the nodes, see ``GetOpNodeProducer``.

    Raises:
        ImportError: pydot is not installed.
    """
    make_op = op_node_producer or GetOpNodeProducer(False, **OP_STYLE)
    make_blob = blob_node_producer or GetBlobNodeProducer(**BLOB_STYLE)
    library = _library()
    ops, name = _operators(operators_or_net, name)
    graph, nodes = library.Dot(name, rankdir=rankdir), {}
    writes: Counter[str] = Counter()
    for number, op in enumerate(ops):
        op_node = make_op(op, number)
        graph.add_node(op_node)
        for blob in op.input:
            if blob not in nodes:
                nodes[blob] = make_blob(_quoted(f"{blob}{writes[blob]}"), _quoted(blob))
                graph.add_node(nodes[blob])
            graph.add_edge(library.Edge(nodes[blob], op_node))
        for blob in op.output:
            if blob in nodes:
                writes[blob] += 1
            nodes[blob] = make_blob(_quoted(f"{blob}{writes[blob]}"), _quoted(blob))
            graph.add_node(nodes[blob])
            graph.add_edge(library.Edge(op_node, nodes[blob]))
    return graph


def GetPydotGraphMinimal(
    operators_or_net: Any, name: str | None = None, rankdir: str = "LR", minimal_dependency: bool = False,
    op_node_producer: Producer | None = None,
) -> Any:  # fmt: skip
    """Return the graph of the operators alone: an edge from each operator to the readers of its outputs.

    Args:
        operators_or_net, name, rankdir, op_node_producer: see ``GetPydotGraph``.
        minimal_dependency: omit edges that other paths imply.

    Raises:
        ImportError: pydot is not installed.
    """
    make_op = op_node_producer or GetOpNodeProducer(False, **OP_STYLE)
    library = _library()
    ops, name = _operators(operators_or_net, name)
    graph = library.Dot(name, rankdir=rankdir)
    versions = number_versions(ops)
    ancestors: list[set[int]] = []
    nodes = []
    for number, op in enumerate(ops):
        nodes.append(make_op(op, number))
        graph.add_node(nodes[-1])
        writers = dict.fromkeys(versions.writers[value] for value in versions.inputs[number])
        parents = [writer for writer in writers if writer >= 0]
        ancestors.append(set(parents).union(*(ancestors[parent] for parent in parents)))
        for parent in parents:
            if not minimal_dependency or not any(parent in ancestors[other] for other in parents if other != parent):
                graph.add_edge(library.Edge(nodes[parent], nodes[number]))
    return graph


def GetOperatorMapForPlan(plan_def: PlanDef) -> dict[str, list[OperatorDef]]:
    """Return the operators of a plan's nets, by "<plan>_<net>"."""
    found: dict[str, list[OperatorDef]] = defaultdict(list)
    for net in plan_def.network:
        found[f"{plan_def.name}_{net.name}"] = list(net.op)
    return dict(found)


def GetPlanGraph(plan_def: PlanDef, name: str | None = None, rankdir: str = "TB") -> Any:
    """Return the graph of a plan's steps and the nets that they run, a ``pydot.Dot``.

    Args:
        plan_def: a PlanDef or Plan.
        name: of the graph; None: the plan's.
        rankdir: direction of the layout.

    Raises:
        ImportError: pydot is not installed.
    """
    library = _library()
    plan = plan_def.Proto() if hasattr(plan_def, "Proto") else plan_def
    graph = library.Dot(name or plan.name or "plan", rankdir=rankdir)
    _add_steps(library, graph, plan.execution_step, None)
    return graph


def _add_steps(library: Any, graph: Any, steps: Iterable[Any], parent: Any) -> None:
    for step in steps:
        facts = [step.name]
        if step.num_iter > 1:
            facts.append(f"Iterations: {step.num_iter}")
        if step.should_stop_blob:
            facts.append(f"Should stop: {step.should_stop_blob}")
        if step.concurrent_substeps:
            facts.append("Concurrent: True")
        node = library.Node(_quoted("\\n".join(facts)), **OP_STYLE)
        graph.add_node(node)
        if parent is not None:
            graph.add_edge(library.Edge(parent, node))
        for net in step.network:
            graph.add_node(library.Node(_quoted(net)))
            graph.add_edge(library.Edge(node, _quoted(net)))
        _add_steps(library, graph, step.substep, node)


def GetGraphInJson(operators_or_net: Any, output_filepath: str) -> None:
    """Write the graph of operators and blobs as JSON, with numbered nodes; does not need pydot.

    Args:
        operators_or_net: a Net, a NetDef, or operators.
        output_filepath: path of the file.
    """
    ops, _ = _operators(operators_or_net, None)
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, int]] = []
    blobs: dict[str, int] = {}

    def add(**fields: Any) -> int:
        nodes.append({"id": len(nodes), **fields})
        return len(nodes) - 1

    for number, op in enumerate(ops):
        op_node = add(label=op.type, op_id=number, type="op")
        for blob in op.input:
            if blob not in blobs:
                blobs[blob] = add(label=blob, type="blob")
            edges.append({"source": blobs[blob], "target": op_node})
        for blob in op.output:
            blobs[blob] = add(label=blob, type="blob")
            edges.append({"source": op_node, "target": blobs[blob]})
    write_text(output_filepath, json.dumps({"nodes": nodes, "edges": edges}))


def GetGraphPngSafe(func: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
    """Return the graph of a function as a PNG image; if that fails, print why and return an empty image.

    Args:
        func: one of the functions above; called with ``args`` and ``kwargs``.
    """
    try:
        image: bytes = func(*args, **kwargs).create_png()
        return image
    except Exception as error:
        print(f"Failed to draw graph: {error}")
        return _EMPTY_PNG


def main() -> None:
    """Draw the net named on the command line, as ``netbuilder-draw`` does."""
    sys.exit(draw.main())
