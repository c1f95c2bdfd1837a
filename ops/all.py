"""Imports every operator family, so that the registry is full."""

from __future__ import annotations

import importlib
import pkgutil

import netbuilder.ops

_NOT_FAMILIES = {"absent", "all", "contexts", "declaration", "operator", "registry"}

for _module in pkgutil.iter_modules(netbuilder.ops.__path__):
    if _module.name not in _NOT_FAMILIES and not _module.ispkg:
        importlib.import_module(f"netbuilder.ops.{_module.name}")
