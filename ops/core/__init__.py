"""What all operators share: the base class, the registry, contexts, element types and arithmetic on rows."""

from netbuilder._lazy import names_on_first_use as _names_on_first_use

__all__: list[str] = []

__getattr__, __dir__ = _names_on_first_use(__name__, {})
