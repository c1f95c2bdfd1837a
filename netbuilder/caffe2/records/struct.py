"""Struct: a field of named nested fields."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from types import MappingProxyType
from typing import Any

from netbuilder.caffe2.records.field import FIELD_SEPARATOR, Field, joined
from netbuilder.caffe2.records.scalar import Scalar, as_field
from netbuilder.proto import NetError

__all__ = ["NamedTuple", "RawTuple", "Struct", "Tuple"]


class Struct(Field):
    """Named fields, also available as attributes.

    Args:
        fields: pairs of a name and a field, type or blob; "a:b" is a field b in a structure a.

    Raises:
        NetError: a name occurs twice, and not for structures only.
        TypeError: the same inside structures of the same name.

    >>> record = Struct(("a", Scalar()), ("b:c", Scalar()))
    >>> record.field_names(), record.b.c is record["b:c"]
    (['a', 'b:c'], True)
    """

    fields: Mapping[str, Field] = MappingProxyType({})  # each object has its own

    def __init__(self, *fields: tuple[str, Any]) -> None:
        found: dict[str, Field] = {}
        for entry in fields:
            name, field = _checked(entry)
            if FIELD_SEPARATOR in name:
                name, _, rest = name.partition(FIELD_SEPARATOR)
                field = Struct((rest, field))
            before = found.get(name)
            if before is not None:
                if not (isinstance(before, Struct) and isinstance(field, Struct)):
                    raise NetError(f"Struct: field names must be unique, got {name!r} twice")
                field = before + field
            found[name] = field
        object.__setattr__(self, "fields", found)
        super().__init__(found.values())

    def get_children(self) -> list[tuple[str, Field]]:
        """Return the names and fields."""
        return list(self.fields.items())

    def field_names(self) -> list[str]:
        return [joined(name, inner) for name, field in self.fields.items() for inner in field.field_names()]

    def all_scalars(self) -> list[Scalar]:
        return [scalar for field in self.fields.values() for scalar in field.all_scalars()]

    def clone(self, keep_blobs: bool = True) -> Struct:
        return type(self)(*((name, field.clone(keep_blobs)) for name, field in self.fields.items()))

    def _get_field_by_nested_name(self, nested_name: str) -> Field | None:
        """Return the field of a name such as "a:b", or None."""
        first, _, rest = nested_name.partition(FIELD_SEPARATOR)
        field = self.fields.get(first)
        if field is None or not rest:
            return field
        if isinstance(field, Struct):
            return field._get_field_by_nested_name(rest)
        parts: Any = field
        try:
            found: Field = parts[rest]
        except (KeyError, TypeError):
            return None
        return found

    def __contains__(self, item: str) -> bool:
        return self._get_field_by_nested_name(item) is not None

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, item: Any) -> Any:
        """Return a field by name or index; for a list or tuple of them a structure of these fields.

        Raises:
            KeyError: there is no such field.
        """
        if isinstance(item, (list, tuple)):
            names = list(self.fields)
            chosen = [names[i] if isinstance(i, int) else i for i in item]
            return Struct(*((name, self[name]) for name in chosen))
        if isinstance(item, int):
            return list(self.fields.values())[item]
        found = self._get_field_by_nested_name(item)
        if found is None:
            raise KeyError(f"the record has no field {item!r}, only {', '.join(self.field_names())}")
        return found

    def get(self, item: str, default_value: Any) -> Any:
        """Return a field by its name; ``default_value`` if there is none."""
        found = self._get_field_by_nested_name(item)
        return default_value if found is None else found

    def __getattr__(self, item: str) -> Any:
        if item.startswith("__"):
            raise AttributeError(item)
        found = object.__getattribute__(self, "fields").get(item)
        if found is None:
            raise AttributeError(f"the record has no field {item!r}, only {', '.join(self.field_names())}")
        return found

    def __setattr__(self, key: str, value: Any) -> None:
        raise TypeError(f"Struct: field {key!r} cannot be set; create a new Struct, for example with +")

    def __add__(self, other: Field) -> Struct:
        """Return a structure with the fields of both; structures of the same name are merged recursively.

        Raises:
            TypeError: both have a field of the same name, and these are not both structures.
        """
        if not isinstance(other, Struct):
            return NotImplemented
        fields = dict(self.fields)
        for name, field in other.fields.items():
            mine = fields.get(name)
            if mine is None:
                fields[name] = field
            elif isinstance(mine, Struct) and isinstance(field, Struct):
                fields[name] = mine + field
            else:
                raise TypeError(f"records: both have a field {name!r}, and these are not both structures")
        return Struct(*fields.items())

    def __sub__(self, other: Field) -> Struct:
        """Return a structure without the fields of ``other``; structures of the same name recursively."""
        if not isinstance(other, Struct):
            return NotImplemented
        left: list[tuple[str, Field]] = []
        for name, field in self.fields.items():
            taken = other.fields.get(name)
            if taken is None:
                left.append((name, field))
            elif isinstance(field, Struct) and isinstance(taken, Struct):
                rest = field - taken
                if len(rest):
                    left.append((name, rest))
        return Struct(*left)

    def _pprint_impl(self, indent: int, str_buffer: StringIO) -> None:
        space = "  " * indent
        str_buffer.write(f"{space}Struct( \n")
        for name, field in self.fields.items():
            str_buffer.write(f"{space}  {name}=\n")
            field._pprint_impl(indent + 2, str_buffer)
        str_buffer.write(f"{space}) \n")


def _checked(entry: Any) -> tuple[str, Field]:
    if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[0], str) or not entry[0]:
        raise NetError(f"Struct: each field must be a pair of a name and a field, type or blob, got {entry!r}")
    return entry[0], as_field(entry[1])


def Tuple(*fields: Any) -> Struct:
    """Return a structure with the fields field_0, field_1, ...

    >>> Tuple(Scalar(), Scalar()).field_names()
    ['field_0', 'field_1']
    """
    return NamedTuple("field", *fields)


def NamedTuple(name_prefix: str, *fields: Any) -> Struct:
    """Return a structure with the fields <name_prefix>_0, <name_prefix>_1, ..."""
    return Struct(*((f"{name_prefix}_{i}", field) for i, field in enumerate(fields)))


def RawTuple(num_fields: int, name_prefix: str = "field") -> Struct:
    """Return a structure of ``num_fields`` scalars of unknown type."""
    return NamedTuple(name_prefix, *[Scalar() for _ in range(num_fields)])
