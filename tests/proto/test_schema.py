"""The schema is Caffe2's, field by field, and the generated code is the schema's."""

import pickle
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

import netbuilder.proto
from netbuilder.proto import NetDef, TensorProto, netbuilder_pb2

HERE = Path(__file__).parent
FIRST_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}

# Enums as {name: {value: number}}, messages as {name: {number: (label, type, field, packed, default)}}.
Tables = tuple[dict[str, dict[str, int]], dict[str, dict[int, tuple[str, str, str, bool, object]]]]


def caffe2_tables() -> Tables:
    """What the listing of Caffe2's schema says."""
    enums, messages = {}, {}
    line_of_field = re.compile(r" +(\d+) (\w+) +(\w+) +(\w+)(?: \[(packed)\])?(?: \[default = (.*)\])?$")
    for line in (HERE / "caffe2_schema.txt").read_text().splitlines():
        if line.startswith("enum "):
            current = enums.setdefault(line.split()[1], {})
        elif line.startswith("message "):
            current = messages.setdefault(line.split()[1], {})
        elif found := line_of_field.match(line):
            number, label, kind, name, packed, default = found.groups()
            current[int(number)] = (label, kind, name, bool(packed), default)
        elif found := re.match(r" +(\w+) = (\d+)$", line):
            current[found[1]] = int(found[2])
        else:
            assert not line or line.startswith("#"), line
    return enums, messages


def proto_tables() -> Tables:
    """What the text of netbuilder.proto says."""
    path = Path(netbuilder.proto.__file__).with_name("netbuilder.proto")
    text = re.sub(r"//[^\n]*", "", path.read_text())
    enums, messages, inside = {}, {}, []
    for statement in re.findall(r"[^;{}]+[;{]|\}", text):
        words = statement.split()
        if words[0] == "}":
            inside.pop()
        elif words[0] in ("message", "enum"):
            inside.append(words[1])
            (messages if words[0] == "message" else enums)[".".join(inside)] = {}
        elif found := re.match(
            r"\s*(optional|required|repeated) ([\w.]+) (\w+) = (\d+)\s*(?:\[(.*)\])?\s*;", statement, re.S
        ):
            label, kind, name, number, options = found.groups()
            default = re.search(r"default = ([^,\]]+)", options or "")
            packed = "packed = true" in (options or "")
            last = kind.split(".")[-1]
            messages[".".join(inside)][int(number)] = (label, last, name, packed, default and default[1].strip())
        elif found := re.match(r"\s*(\w+) = (\d+)\s*;", statement):
            enums[".".join(inside)][found[1]] = int(found[2])
        else:
            assert words[0] in ("syntax", "package"), statement
    return enums, messages


def generated_tables() -> Tables:
    """What the generated code says."""
    enums, messages = {}, {}

    def add_enum(enum: EnumDescriptor) -> None:
        enums[enum.full_name.removeprefix("netbuilder.")] = {value.name: value.number for value in enum.values}

    def add_message(message: Descriptor) -> None:
        messages[message.full_name.removeprefix("netbuilder.")] = {f.number: describe(f) for f in message.fields}
        for enum in message.enum_types:
            add_enum(enum)
        for nested in message.nested_types:
            add_message(nested)

    for enum in netbuilder_pb2.DESCRIPTOR.enum_types_by_name.values():
        add_enum(enum)
    for message in netbuilder_pb2.DESCRIPTOR.message_types_by_name.values():
        add_message(message)
    return enums, messages


def describe(field: FieldDescriptor) -> tuple[str, str, str, bool, object]:
    if hasattr(field, "is_repeated"):  # `label` is deprecated since protobuf 6.31
        label = "repeated" if field.is_repeated else "required" if field.is_required else "optional"
    else:
        label = {1: "optional", 2: "required", 3: "repeated"}[field.label]
    kind = (
        (field.message_type or field.enum_type).name
        if field.message_type or field.enum_type
        else FIRST_TYPES[field.type]
    )
    packed = bool(field.GetOptions().packed)
    return label, kind, field.name, packed, field.default_value if field.has_default_value else None


def with_plain_defaults(tables: Tables) -> Tables:
    """Defaults as Python values, enum ones as their numbers."""
    enums, messages = tables

    def value(kind: str, default: object) -> object:
        if not isinstance(default, str):
            return default
        for name, values in enums.items():
            if name.split(".")[-1] == kind:
                return int(default) if default.isdigit() else values[default]
        if kind == "string":
            return default.strip("'\"")
        return default.lower() == "true" if kind == "bool" else float(default)

    return enums, {
        message: {number: (*row[:4], value(row[1], row[4])) for number, row in fields.items()}
        for message, fields in messages.items()
    }


def test_schema_is_caffe2s():
    assert with_plain_defaults(proto_tables()) == with_plain_defaults(caffe2_tables())


def test_generated_code_is_in_step_with_the_schema():
    assert with_plain_defaults(generated_tables()) == with_plain_defaults(proto_tables())


def test_listing_was_read_whole():
    enums, messages = caffe2_tables()
    assert len(enums) == 5 and len(messages) == 29
    assert sum(map(len, messages.values())) == 161
    assert messages["TensorProto"][3] == ("repeated", "float", "float_data", True, None)
    assert messages["ModelInfo"][4][4] == "'SINGLE_PREDICTOR'"


def test_package_is_our_own():
    assert netbuilder_pb2.DESCRIPTOR.package == "netbuilder"
    assert netbuilder_pb2.DESCRIPTOR.name == "netbuilder/proto/netbuilder.proto"


def test_every_message_and_enum_is_exported():
    names = {*netbuilder_pb2.DESCRIPTOR.message_types_by_name, *netbuilder_pb2.DESCRIPTOR.enum_types_by_name}
    assert names <= set(netbuilder.proto.__all__)


@pytest.mark.parametrize("message", [NetDef(name="lenet"), TensorProto.Segment(begin=1, end=2)])
def test_messages_pickle(message):
    assert type(message).__module__ == "netbuilder.proto.netbuilder_pb2"
    assert pickle.loads(pickle.dumps(message)) == message
