"""How the reference of the documentation site sees dataclasses: an extension of Griffe (``mkdocs.yml``)."""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["LateDataclasses"]


class LateDataclasses(griffe.Extension):
    """Lets Griffe take the decorator of ``netbuilder.proto.late_dataclass`` for that of ``dataclasses``.

    Of an option of data parallelism the default is shown, not the call that declares it.
    """

    def on_alias_instance(self, *, alias: Any, **given: Any) -> None:
        """Change the target of an import."""
        if alias.target_path == "netbuilder.proto.late_dataclass.dataclass":
            alias.target_path = "dataclasses.dataclass"

    def on_attribute_instance(self, *, attr: Any, **given: Any) -> None:
        """Change the value of a field."""
        if isinstance(attr.value, griffe.ExprCall) and str(attr.value.function) == "_option":
            attr.value = attr.value.arguments[0]
