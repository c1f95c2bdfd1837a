"""Profiles of nets: timed calls, memory, and the machine's limits."""

from netbuilder._lazy import names_on_first_use as _names_on_first_use

__all__: list[str] = []

__getattr__, __dir__ = _names_on_first_use(__name__, {})
