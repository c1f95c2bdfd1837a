"""Command-line programs, each a thin ``main()`` over the library."""

from netbuilder._lazy import names_on_first_use as _names_on_first_use

if __name__ != "netbuilder.tools":
    raise ImportError("import this package as netbuilder.tools")

__all__: list[str] = []

__getattr__, __dir__ = _names_on_first_use(__name__, {})
