"""Where netbuilder's operators are declared: what the files of the families say of it, read without importing them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping

__all__ = ["declaring_modules"]

_DECLARATION = re.compile(rb"\n@register\w*\n(?:@.*\n)*class (\w+)")


@functools.cache
def declaring_modules() -> Mapping[str, str]:
    """Return, by operator type, the name of the module whose import registers the operator and its kernels."""
    modules = {}
    for family in os.scandir(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        if not family.is_dir() or family.name == "core":
            continue
        for file in os.scandir(family.path):
            name, extension = os.path.splitext(file.name)
            if extension == ".py":
                with open(file.path, "rb") as text:
                    declared = _DECLARATION.findall(text.read())
                modules.update({each.decode(): f"netbuilder.ops.{family.name}.{name}" for each in declared})
    return modules
