"""The public names of a checkout, as its source declares them.

``python tests/public_names.py CHECKOUT > tests/recorded/public_names.txt`` writes those of a release, and
``tests/test_public_names.py`` checks that they still work. Each module is followed by its names, one a line; the
parameters of functions are in parentheses, and the members of a class follow its name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = {"netbuilder": "netbuilder", "ops": "netbuilder.ops", "proto": "netbuilder.proto"}

# Modules that only the library itself imports, and exceptions, which users or authors of operators and engines import.
INTERNAL = ("caffe2", "exchange.onnx.", "ops.engines.", "ops.recurrent_", "runtime.", "_", "proto.netbuilder_pb2")
EXCEPTIONS = (
    "caffe2.proto",
    "caffe2.python",
    "ops.engines.engine",
    "runtime.benchmark",
    "runtime.default",
    "runtime.loss_reader",
    "runtime.net",
    "runtime.optimisations",
    "runtime.prefetch",
    "runtime.profil",
    "runtime.random_state",
    "runtime.setting",
    "runtime.step_blobs",
    "runtime.turns",
    "runtime.workspace",
)

# Modules of operators that authors of operators import; of the others, only the operator classes are public.
CORE = (
    "absent",
    "broadcasting",
    "contexts",
    "data_types",
    "declaration",
    "engines",
    "grouped_places",
    "half",
    "labels",
    "operator",
    "precision",
    "registry",
    "rows",
    "segment_groups",
)


def lines(root: Path) -> Iterator[str]:
    for folder, package in ROOTS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [part for part in path.relative_to(root / folder).with_suffix("").parts if part != "__init__"]
            module = ".".join([package, *parts])
            inside = module.removeprefix("netbuilder").removeprefix(".")
            if not any(part.startswith("_") for part in parts) and (
                inside.startswith(EXCEPTIONS) or not inside.startswith(INTERNAL)
            ):
                yield from _module(module, ast.parse(path.read_text()))


def _module(module: str, tree: ast.Module) -> Iterator[str]:
    definitions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    of_operators = module.startswith("netbuilder.ops.") and not module.removeprefix("netbuilder.ops.").startswith(CORE)
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            try:
                names = ast.literal_eval(node.value)
            except ValueError:  # computed
                names = []
            yield module
            for name in sorted(names):
                match definitions.get(name):
                    case ast.ClassDef() as node:
                        members = _arguments(node) if of_operators else _members(node)
                        yield " ".join(["", name, *sorted(members)])
                    case ast.FunctionDef() as node if not of_operators:
                        yield f" {name}({','.join(_parameters(node))})"
                    case _ if not of_operators:
                        yield f" {name}"


def _parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    return [
        a.arg
        for a in (*arguments.args, *arguments.kwonlyargs)
        if not a.arg.startswith("_") and a.arg not in {"self", "cls"}
    ]


def _members(node: ast.ClassDef) -> set[str]:
    members = set()
    for child in ast.walk(node):
        match child:
            case ast.FunctionDef(name=name) if child in node.body:
                members.add(f"{name}({','.join(_parameters(child))})")
            case ast.AnnAssign(target=ast.Name(id=name)) if child in node.body:
                members.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) if child in node.body:
                members.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                members.add(name)
    return {member for member in members if not member.startswith("_")}


def _arguments(node: ast.ClassDef) -> set[str]:
    """The arguments of an operator class; its other members are for its own module."""
    return {
        child.target.id
        for child in node.body
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
        if "ClassVar" not in ast.unparse(child.annotation)
    }


if __name__ == "__main__":
    print(*lines(Path(sys.argv[1])), sep="\n")
