"""Writes netbuilder/engines/onednn/interface.py, the parsed prototypes of oneDNN, for ``make onednn-interface``.

cffi parses C with a parser written in Python: to import that and to parse took longer than all else that the first run
of a small net does.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat

from netbuilder.engines.onednn.declarations import CDEF
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.options import OptionsParser, argument
from netbuilder.tools.reporting import reporting

__all__ = ["interface_text", "main"]

_TEXT = '''"""oneDNN's C interface, parsed: made from declarations.py by ``make onednn-interface``."""

from __future__ import annotations

import _cffi_backend

__all__ = ["ffi"]

# fmt: off
ffi = _cffi_backend.FFI(
    "netbuilder.engines.onednn.interface",
{fields}
)
'''


def interface_text() -> str:
    """Return the text of the module."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(CDEF)
    ffi.set_source("interface", None)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        path = Path(folder) / "interface.py"
        with contextlib.redirect_stdout(nowhere):  # cffi prints the path
            ffi.emit_python_code(str(path))
        made = ast.parse(path.read_text(encoding="ascii"))
    (call,) = (node for node in ast.walk(made) if isinstance(node, ast.Call))
    values = [(field.arg, ast.literal_eval(field.value)) for field in call.keywords]
    return _TEXT.format(fields="\n".join(f"    {name}={pformat(value, width=100)}," for name, value in values))


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Write the parsed prototypes of oneDNN as a Python module."""

    path: str = argument("netbuilder/engines/onednn/interface.py")


@reporting("onednn_interface")
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the module to the path that is given."""
    parser = OptionsParser(_Options, prog="onednn_interface")
    write_text(parser.parse(arguments).path, interface_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
