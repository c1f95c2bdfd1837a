"""Records: which scalars of the whole record a nested field has."""

import pytest

from netbuilder.caffe2.records import List, Scalar, Struct


@pytest.mark.parametrize("path", ["a", "s", "s:b", "s:c", "s:c:lengths", "d"])
def test_a_nested_field_is_a_slice_of_the_records_scalars(path):
    nested = Struct(("e", Scalar()), ("f", Scalar()))
    record = Struct(("a", Scalar()), ("s", Struct(("b", Scalar()), ("c", List(nested)))), ("d", Scalar()))
    names = record.field_names()
    field = record
    for name in path.split(":"):
        field = getattr(field, name)
    own = [name for name in names if f"{name}:".startswith(f"{path}:")]
    assert own and names[field.slice()] == own
