"""Imports every operator family, so that the registry is full."""

from __future__ import annotations

import importlib
import pkgutil

import netbuilder.ops

for _family in pkgutil.iter_modules(netbuilder.ops.__path__):
    if _family.ispkg and _family.name != "core":
        _package = importlib.import_module(f"netbuilder.ops.{_family.name}")
        for _module in pkgutil.iter_modules(_package.__path__):
            importlib.import_module(f"netbuilder.ops.{_family.name}.{_module.name}")
