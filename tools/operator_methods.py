"""Writes the stub of the operators as methods of nets, for type checkers and editors: ``make operator-methods``.

``net.Relu(`` then completes with the arguments of Relu, and ``net.Softmaxx`` is an error of the type checker.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import netbuilder.graph
from netbuilder.graph import Net
from netbuilder.graph.operators import LEGACY_ARGUMENTS
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.options import OptionsParser, argument
from netbuilder.tools.reporting import reporting

__all__ = ["STUB", "main", "stub"]

STUB = Path(netbuilder.graph.__file__).with_name("operator_methods.pyi")
"""Where the package has the stub."""

_HEAD = '''"""The operators as methods of nets; made by ``make operator-methods``."""

from collections.abc import Sequence
from typing import Any, TypedDict

from typing_extensions import Unpack

from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.proto import Argument, DeviceOption, NetDef, TensorProto

_Blob = str | BlobReference | GradientSlice | None
_Blobs = _Blob | Sequence[_Blob]
_Outputs = _Blobs | int

'''
_COMMON = {
    "name": "str", "control_input": "Any", "device_option": "DeviceOption | None", "arg": "Sequence[Argument] | None",
    "engine": "str | None", **dict.fromkeys(sorted(LEGACY_ARGUMENTS), "Any"),
}  # fmt: skip
_SOMETIMES = ("order", "is_test")
"""Arguments of all operators that some declare themselves."""

_TYPES = {"int": "int", "float": "float", "bool": "bool | int", "str": "str", "bytes": "bytes | str", "Any": "Any"}


def stub() -> str:
    """Return the text of the stub."""
    names = [name for name in operator_types() if name not in vars(Net) and find(name).__module__.startswith(_OURS)]
    parts = [_HEAD, *map(_common, [(), *((name,) for name in _SOMETIMES), _SOMETIMES]), "class OperatorMethods:\n"]
    return "".join([*parts, *map(_method, names)])


_OURS = "netbuilder.ops."


def _common(without: Sequence[str]) -> str:
    """Return the class of the arguments that operators share, without those that an operator declares."""
    lines = [f"    {name}: {kind}\n" for name, kind in _COMMON.items() if name not in without]
    return f"class {_class_of(without)}(TypedDict, total=False):\n{''.join(lines)}\n"


def _class_of(without: Sequence[str]) -> str:
    return "_Common" + "".join(f"Without{name.title().replace('_', '')}" for name in without)


def _method(name: str) -> str:
    cls = find(name)
    fields = {field.name: str(field.type) for field in dataclasses.fields(cls) if field.name not in _COMMON_ONLY}
    own = "".join(f", {field}: {_type(kind)} = ..." for field, kind in fields.items())
    common = _class_of([each for each in _SOMETIMES if each in fields])
    outputs = cls.outputs
    made = "BlobReference" if len(outputs) == 1 and outputs[0][-1] not in "?*+" else "Any"
    parameters = "self, inputs: _Blobs = ..., outputs: _Outputs = ..., debug_info: str | None = ..."
    star = ", *" if own else ""
    return (
        f'    def {name}({parameters}{star}{own}, **common: Unpack[{common}]) -> {made}:\n        """{_about(cls)}"""\n'
    )


_COMMON_ONLY = frozenset(_COMMON).difference(_SOMETIMES)


def _type(stated: str) -> str:
    """Return what a caller may give for an argument of a type."""
    kind = stated.replace(" | None", "")
    if listed := re.fullmatch(r"tuple\[(\w+), \.\.\.\]", kind):
        found = f"Sequence[{_TYPES[listed[1]]}]"
    else:
        found = _TYPES.get(kind, f"{kind} | bytes")
    return f"{found} | None"


def _about(cls: type[Operator]) -> str:
    """Return the blobs of an operator and the first sentence about it, on one line."""
    blobs = f"{', '.join(cls.inputs) or '()'} -> {', '.join(cls.outputs) or '()'}"
    summary = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return f"{blobs}. {summary}".replace("\\", "\\\\").replace('"', "'")


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Write the stub of the operators as methods of nets."""

    output: str = argument("the file (default: that of the package)", default=str(STUB), nargs="?")


@reporting("operator_methods")
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the stub; return the exit status."""
    options = OptionsParser(_Options, prog="operator_methods").parse(arguments)
    write_text(options.output, stub())
    return 0


if __name__ == "__main__":
    sys.exit(main())
