"""Writes api.json: the names, signatures and element types that an installed CuPy has. It needs CuPy, but no GPU.

Run as ``python tests/cupy_double/record.py`` when the CuPy that netbuilder asks for changes.
"""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path
from typing import Any

API = Path(__file__).with_name("api.json")


def _signature(function: Any) -> str | None:
    """Return parameters and defaults without annotations; None where CuPy's compiled code does not tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not parameter.empty and not isinstance(default, (bool, int, float, str, type(None))):
            default = None
        parameters.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _public(thing: Any) -> list[str]:
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def recorded(cupy: Any) -> dict[str, Any]:
    """Return what api.json holds."""
    functions, ufuncs, others = {}, {}, []
    for name in _public(cupy):
        value = getattr(cupy, name)
        if isinstance(value, cupy.ufunc):
            ufuncs[name] = " ".join(value.types)
        elif callable(value) and not inspect.isclass(value):
            functions[name] = _signature(value)
        else:
            others.append(name)
    return {
        "version": cupy.__version__,
        "functions": functions,
        "ufuncs": ufuncs,
        "others": others,
        "ndarray": sorted(name for name in dir(cupy.ndarray) if name.startswith("__") or not name.startswith("_")),
        "cuda": _public(cupy.cuda),
        "runtime": [name for name in _public(cupy.cuda.runtime) if name[0].islower()],
        "Device": _public(cupy.cuda.Device),
        "Event": _public(cupy.cuda.Event),
        "Graph": _public(cupy.cuda.Graph),
        "MemoryPointer": _public(cupy.cuda.MemoryPointer),
        "Stream": [*_public(cupy.cuda.Stream), "device_id", "ptr"],
        "stride_tricks": _public(cupy.lib.stride_tricks),
    }


def main() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import cupy

        found = recorded(cupy)
    API.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
