"""Messages written to files and read back, as text too; damaged, foreign and missing files give one clear error."""

import os
import random
import re
import stat
import struct
import sys

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from golden_data import GOLDEN, all_protobufs, net, nets
from netbuilder.proto import (
    MetaNetDef,
    NetDef,
    NetError,
    OperatorDef,
    ParseError,
    PlanDef,
    TensorProto,
    TensorProtos,
)
from netbuilder.proto.arguments import make_op
from netbuilder.proto.files import load, load_text, parse, parse_text, save, save_text, to_bytes, to_text
from netbuilder.proto.wire import find_fault

LENET = net("lenet").main


def message_class(path):
    return MetaNetDef if path.name.startswith("meta_net_def") else NetDef


@pytest.mark.one_in(6)
@pytest.mark.parametrize("path", all_protobufs(), ids=lambda p: str(p.relative_to(GOLDEN)))
def test_golden_files_load_and_are_written_back_loss_free(path, tmp_path):
    message = load(path, message_class(path))
    save(tmp_path / "copy.pb", message)
    assert (tmp_path / "copy.pb").read_bytes() == path.read_bytes()
    assert load(tmp_path / "copy.pb", message_class(path)) == message


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["lenet", "dp_convnet_2", "lstm", "embed_dedup_adagrad", "gpu_structure_convnet_4"])
def test_text_is_loss_free(name, tmp_path):
    for message in net(name).protos.values():
        save_text(tmp_path / "net.pbtxt", message)
        assert load_text(tmp_path / "net.pbtxt", NetDef) == message


def test_text_keeps_every_kind_of_value():
    tensor = TensorProto(dims=[2], float_data=[0.1, 1e-45], byte_data=b"\x00\xff\"'\\", double_data=[np.pi, -0.0])
    op = make_op(
        "Op", ["ünïcode"], [], f=1 / 3, big=-(2**63), s=b"\xff\x00", floats=[3.4028235e38, float("inf")], t=tensor
    )
    assert parse_text(to_text(op), OperatorDef) == op


def test_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "net.pb"
    save(path, LENET)

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(path, NetDef(name="other"))
    assert load(path, NetDef) == LENET
    assert os.listdir(tmp_path) == ["net.pb"]


def test_links_and_modes_are_those_of_a_plain_write(tmp_path):
    save(tmp_path / "real.pb", NetDef(name="first"))
    (tmp_path / "link.pb").symlink_to(tmp_path / "real.pb")
    save(tmp_path / "link.pb", LENET)
    assert (tmp_path / "link.pb").is_symlink() and load(tmp_path / "real.pb", NetDef) == LENET
    (tmp_path / "plain").write_bytes(b"")
    assert stat.S_IMODE(os.stat(tmp_path / "real.pb").st_mode) == stat.S_IMODE(os.stat(tmp_path / "plain").st_mode)


def test_missing_file_names_its_neighbors(tmp_path):
    save(tmp_path / "predict_net.pb", LENET)
    with pytest.raises(FileNotFoundError, match=r"predict\.pb': no such file; near it is predict_net\.pb"):
        load(tmp_path / "predict.pb", NetDef)
    with pytest.raises(FileNotFoundError, match="the folder .*nowhere' does not exist"):
        load(tmp_path / "nowhere" / "net.pb", NetDef)
    with pytest.raises(FileNotFoundError, match="the folder .*nowhere' does not exist"):
        save(tmp_path / "nowhere" / "net.pb", LENET)
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        save(tmp_path, LENET)
    with pytest.raises(
        FileNotFoundError, match="'.*x.pbtxt': no such file, and its folder has none with a similar name"
    ):
        load_text(tmp_path / "x.pbtxt", NetDef)


def boundaries(message):
    """Lengths at which a serialized net, cut, is a shorter net: after each of its own fields."""
    found, whole = {0}, message.SerializeToString()
    position = 0
    while position < len(whole):
        number = whole[position] >> 3
        assert whole[position] & 0x80 == 0 and number <= 9
        if whole[position] & 7 == 0:  # integers
            position += 1
            while whole[position] & 0x80:
                position += 1
            position += 1
        else:
            size, shift, position = 0, 0, position + 1
            while True:
                byte = whole[position]
                size, shift, position = size | (byte & 0x7F) << shift, shift + 7, position + 1
                if byte < 0x80:
                    break
            position += size
        found.add(position)
    return found


def test_every_cut_is_found_and_placed(tmp_path):
    net = NetDef()
    net.CopyFrom(LENET)
    del net.op[12:]  # each length is tried, and the time grows with its square
    whole, ends = to_bytes(net), boundaries(net)
    assert max(ends) == len(whole) and len(ends) > 20
    for length in range(len(whole)):
        if length in ends:
            parse(whole[:length], NetDef)
            continue
        with pytest.raises(ParseError) as caught:
            parse(whole[:length], NetDef, source="cut.pb")
        text = str(caught.value)
        what = r"'cut\.pb' cannot be read as a NetDef: stopped at byte"
        found = re.fullmatch(rf"{what} (\d+) of (\d+)(, in \S+)?: (.*)", text)
        assert found and int(found[2]) == length and int(found[1]) <= length, text
        assert re.search(r"cut short|only \d+ are left", found[4]), text


def test_cut_file_is_named_with_the_field(tmp_path):
    path = tmp_path / "predict_net.pb"
    path.write_bytes(to_bytes(NetDef(name="n", op=[make_op("Relu", ["x"], ["y"], order="NCHW")]))[:-2])
    with pytest.raises(
        ParseError, match=r"predict_net\.pb' cannot be read as a NetDef: stopped at byte 5 of 30, in op\[0\]: the field"
    ):
        load(path, NetDef)


FOREIGN = {
    "jpeg": (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "stopped at byte 0 of 11: byte 0xff starts no field"),
    "png": (b"\x89PNG\r\n\x1a\n", "stopped at byte 0 of 8: NetDef has no field 1281"),
    "prose": (b"hello, world: this is no net", "stopped at byte 0 of 28: NetDef has no field 13"),
    "pbtxt": (b'name: "lenet"\nop {\n}\n', "this looks like text, which netbuilder.proto.files.load_text reads"),
    "wrong kind": (b"\x08\x96\x01", r"field 1 of NetDef \(name\) is a run of bytes, but an integer came"),
    "no text": (b"\x0a\x02\xff\xfe", "stopped at byte 2 of 4, in name: byte 0xff is no UTF-8 text"),
    "long integer": (b"\x20" + b"\xff" * 11, "in num_workers: an integer is longer than 10 bytes"),
    "group": (b"\x0b\x0c", r"field 1 of NetDef \(name\) is a run of bytes, but a group came"),
    "zeros": (b"\x00\x00", "byte 0x00 starts no field"),
    "plan": (to_bytes(PlanDef(name="p", network=[LENET])), r"in op\[0\]\.output\[0\]: byte 0x.. is no text"),
    "tensors": (to_bytes(TensorProtos(protos=[TensorProto(dims=[2], float_data=[1, 2])])), "in name: byte 0x"),
    "unknown field": (to_bytes(NetDef(name="n")) + b"\xa2\x06\x00", "stopped at byte 3 of 6: NetDef has no field 100"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_bytes_are_refused(kind):
    data, text = FOREIGN[kind]
    with pytest.raises(ParseError, match=text):
        parse(data, NetDef)


def test_unknown_value_of_an_enum_is_refused():
    with pytest.raises(ParseError, match="stopped at byte 1 of 2, in data_type: DataType has no value 99"):
        parse(b"\x10\x63", TensorProto)


def test_golden_files_that_hold_no_message_are_refused():
    for path in [*GOLDEN.rglob("*.npz"), *GOLDEN.rglob("*.minidb"), *GOLDEN.rglob("*.json")]:
        with pytest.raises(ParseError, match=f"{re.escape(path.name)}' cannot be read as a NetDef: stopped at byte"):
            load(path, NetDef)


def test_random_bytes_never_get_past_or_crash():
    rng = random.Random(7)
    for _ in range(2000):
        data = rng.randbytes(rng.randrange(8, 64))
        with pytest.raises(ParseError, match="stopped at byte"):
            parse(data, NetDef)


def test_disturbed_nets_load_or_are_refused():
    rng, whole = random.Random(7), to_bytes(LENET)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            parse(bytes(data), NetDef)
        except ParseError as error:
            assert "stopped at byte" in str(error)
            refused += 1
    assert refused > 100


def test_unknown_fields_can_be_kept():
    data = to_bytes(LENET) + b"\xa2\x06\x03abc"
    kept = parse(data, NetDef, allow_unknown=True)
    assert kept.op == LENET.op and to_bytes(kept) == data
    with pytest.raises(ParseError, match="NetDef has no field 100"):
        parse(data, NetDef)
    with pytest.raises(ParseError, match=f"stopped at byte {len(data) - 3} of {len(data) - 1}: the field says 3 bytes"):
        parse(data[:-1], NetDef, allow_unknown=True)
    for skipped in (b"\xa0\x06\x05", b"\xa5\x06abcd", b"\xa1\x06abcdefgh", b"\xa3\x06\x08\x01\xa4\x06"):
        with pytest.raises(ParseError, match="starts no field"):
            parse(skipped + b"\x07", NetDef, allow_unknown=True)


def test_required_fields():
    with pytest.raises(
        ParseError, match=r"all 6 bytes were read, but required fields are missing: protos\[0\]\.segment\.end"
    ):
        parse(b"\x0a\x04\x5a\x02\x08\x01", TensorProtos)
    with pytest.raises(ParseError, match="required fields are missing: segment.begin"):
        parse_text("segment { end: 3 }", TensorProto)
    with pytest.raises(NetError, match="cannot serialize a Segment: required fields are missing: begin, end"):
        to_bytes(TensorProto.Segment())


def test_empty_files_are_refused(tmp_path):
    (tmp_path / "empty.pb").write_bytes(b"")
    with pytest.raises(ParseError, match=r"empty\.pb' cannot be read as a NetDef: the file is empty"):
        load(tmp_path / "empty.pb", NetDef)
    with pytest.raises(ParseError, match=r"empty\.pb' cannot be read as the text of a NetDef: the file is empty"):
        load_text(tmp_path / "empty.pb", NetDef)
    for write in (save, save_text):
        with pytest.raises(NetError, match="an empty NetDef cannot be written"):
            write(tmp_path / "new.pb", NetDef())
    assert os.listdir(tmp_path) == ["empty.pb"]
    assert parse(b"", NetDef) == NetDef()


def test_broken_text_is_placed(tmp_path):
    path = tmp_path / "net.pbtxt"
    path.write_text('name: "lenet"\nop { typo: "Relu" }\n')
    with pytest.raises(
        ParseError, match=r"net\.pbtxt' cannot be read as the text of a NetDef: stopped at line 2, column \d+: .*typo"
    ):
        load_text(path, NetDef)
    path.write_text('name: "lenet"\nop { type: "Relu"\n')
    with pytest.raises(ParseError, match=r"stopped at line \d, column \d+: Expected"):
        load_text(path, NetDef)
    save(path, NetDef(name="n", op=[make_op("Op", ["x"], ["y"], s=b"\xff")]))
    with pytest.raises(ParseError, match="is no UTF-8 text; netbuilder.proto.files.load reads binary files"):
        load_text(path, NetDef)


def nested_nets(depth):
    """Return a net with ``depth`` nested nets, each in an argument of the outer one; the innermost has a name."""
    parts = [NetDef(name="innermost").SerializeToString()]
    size = len(parts[0])
    for _ in range(depth):
        for tag in (b"\x42", b"\x2a", b"\x12"):  # an argument's net, an operator's argument, a net's operator
            parts.append(tag + _varint(size))
            size += len(parts[-1])
    return b"".join(reversed(parts))


@pytest.mark.parametrize("depth", [33, 34, 100, 900])
def test_nets_nested_deep_are_read_and_written(depth):
    data = nested_nets(depth)
    message = parse(data, NetDef)
    assert to_bytes(message) == data
    for _ in range(depth):
        message = message.op[0].arg[0].n
    assert message.name == "innermost"


def test_text_of_nets_nested_100_deep_is_loss_free():
    message = parse(nested_nets(100), NetDef)
    limit = sys.getrecursionlimit()
    assert parse_text(to_text(message), NetDef) == message
    assert sys.getrecursionlimit() == limit


def test_text_nested_too_deep_is_refused():
    inner = "op { arg { name: 'a' n { "
    with pytest.raises(ParseError, match="nested too deep for text"):
        parse_text(inner * 5_000 + "} } } " * 5_000, NetDef)


@pytest.mark.parametrize("depth", [1_001, 60_000])
def test_nets_nested_too_deep_are_refused(depth):
    with pytest.raises(ParseError, match="nested deeper than 3,000"):
        parse(nested_nets(depth), NetDef)


def test_protobuf_has_its_own_limit_again_after_a_deep_net():
    data = nested_nets(100)
    parse(data, NetDef)
    with pytest.raises(DecodeError):
        NetDef.FromString(data)


def test_a_deep_net_that_is_cut_short_says_where():
    data = nested_nets(100)
    with pytest.raises(ParseError, match=r"in op\[0\]: the field says \d+ bytes, but only \d+ are left"):
        parse(data[:-3], NetDef)
    with pytest.raises(ParseError, match=r"op\[0\].arg\[0\].n.name: byte 0x01 is no text"):
        parse(data[:-1] + b"\x01", NetDef)


def _varint(value):
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", nets())
def test_good_bytes_have_no_fault(name):
    for message in net(name).protos.values():
        assert find_fault(message.SerializeToString(), NetDef.DESCRIPTOR) is None


@pytest.mark.parametrize(
    "data, kind",
    [
        (struct.pack("<ii", 3, 2) + b"key" + b"ab", "a minidb database"),
        (bytes(16) + b"\xde\xc0\xef\xbe" + bytes(99), "an LMDB database"),
        (b"PK\x03\x04" + bytes(99), "a ZIP archive"),
        (b"\x08\x08\x12\x07pytorch", "an ONNX model"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{}", "a safetensors file"),
    ],
)
def test_files_of_other_kinds_are_named(data, kind):
    with pytest.raises(ParseError, match=f"cannot be read as a NetDef: .*; this is {kind}"):
        parse(data, NetDef)
