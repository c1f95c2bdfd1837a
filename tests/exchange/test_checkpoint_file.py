"""Checkpoint files: written and read back, and every way in which one can be broken."""

import errno
import hashlib
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import golden_data
from netbuilder.data import read_blobs, read_minidb, write_blobs, write_minidb
from netbuilder.exchange import Checkpoint, CheckpointFolder, read_checkpoint, write_checkpoint
from netbuilder.exchange.checkpoint_file import MANIFEST, read_manifest
from netbuilder.proto import BlobProto, NetError, ParseError, files
from netbuilder.runtime import RandomState

STORED = golden_data.GOLDEN / "exports" / "checkpoint_types"
KILLED = """
import os, sys
import numpy as np
from netbuilder.exchange import Checkpoint, write_checkpoint
os.{call} = lambda *details: os._exit(9)
write_checkpoint(sys.argv[1], Checkpoint({{"w": np.zeros(3)}}))
"""


def checkpoint(**options):
    blobs = {
        "fc/w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "iteration": np.int64([4]),
        "half": np.float16([0.5, -1]),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 3), np.float32),
        "scalar": np.float64(0.1) + np.zeros(()),
        "words": np.array([b"a", b"", b"b\x00c"], object),
        "word": "text",
    }
    given = {"step": 4, "metric": 0.25, "model": "m", "net": "n", "readers": {"reader": 3}}
    given |= {"random": RandomState(7, {"n": 4}), "state": {"epoch": 2, "order": [1, 2**100], "none": None}}
    return Checkpoint(blobs, **{**given, **options})


@pytest.fixture
def file(tmp_path):
    write_checkpoint(tmp_path / "c.minidb", checkpoint())
    return tmp_path / "c.minidb"


def test_all_of_it_is_read_back(file):
    want, got = checkpoint(), read_checkpoint(file)
    assert list(got.blobs) == [*list(want.blobs)[:-1], "word"]
    for name, value in got.blobs.items():
        expected = np.asarray(want.blobs[name]) if name != "word" else np.array(b"text", object)
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(value, expected)
    for name in ("step", "metric", "model", "net", "random", "readers", "state"):
        assert getattr(got, name) == getattr(want, name), name


def test_the_state_of_a_generator_is_kept(tmp_path):
    for kind in (np.random.PCG64, np.random.MT19937):
        generator = np.random.Generator(kind(3))
        write_checkpoint(tmp_path / "c", Checkpoint({}, state={"rng": generator.bit_generator.state}))
        other = np.random.Generator(kind(5))
        other.bit_generator.state = read_checkpoint(tmp_path / "c").state["rng"]
        assert generator.integers(0, 2**60, 5).tolist() == other.integers(0, 2**60, 5).tolist()


def test_what_caffe2_wrote_is_read(tmp_path):
    found = read_checkpoint(STORED / "chunked.minidb")
    assert found.random is None
    assert found.step == 0
    assert list(found.blobs) == list(read_blobs(STORED / "chunked.minidb"))


def test_other_readers_find_the_blobs(file):
    found = read_blobs(file)
    assert found["fc/w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert MANIFEST not in found


def test_large_tensors_lie_in_several_records(tmp_path):
    value = np.arange(1_000_003, dtype=np.float32)
    write_checkpoint(tmp_path / "c", Checkpoint({"w": value}))
    assert len(list(read_minidb(tmp_path / "c"))) == 3
    np.testing.assert_array_equal(read_checkpoint(tmp_path / "c").blobs["w"], value)


def test_the_first_record_is_read_alone(file, tmp_path):
    assert read_manifest(file)["metric"] == 0.25
    assert read_manifest(STORED / "plain.minidb") is None
    (tmp_path / "empty").touch()
    assert read_manifest(tmp_path / "empty") is None


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes"])
def test_a_state_that_cannot_be_stored(tmp_path, value):
    with pytest.raises(NetError, match="its state must be text, numbers, None, and lists and dicts"):
        write_checkpoint(tmp_path / "c", checkpoint(state={"x": value}))
    assert os.listdir(tmp_path) == []


def test_keys_that_would_come_back_as_text(tmp_path):
    with pytest.raises(NetError, match=r"lists and dicts of these: keys of dicts must be text, got 3"):
        write_checkpoint(tmp_path / "c", checkpoint(state={"seen": [{"a": {3: 1}}]}))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("step", [-1, 1.5, True, "7"])
def test_a_step_is_a_number_of_steps(step):
    with pytest.raises(NetError, match="step must be the number of completed steps, 0 or more, got"):
        checkpoint(step=step)


def test_a_metric_is_one_number():
    assert checkpoint(metric=np.float32([[0.5]])).metric == 0.5
    for metric in ("good", [1, 2], {}):
        with pytest.raises(NetError, match="metric must be one number or None, got"):
            checkpoint(metric=metric)


# Broken files.


@pytest.fixture
def small(tmp_path):
    """One of as few bytes as show all parts of a file."""
    path = tmp_path / "small.minidb"
    blobs = {"w": np.float32([1, 2]), "words": np.array([b"a", b"b"], object)}
    write_checkpoint(path, Checkpoint(blobs, step=4, random=RandomState(7, {"n": 4}), state={"epoch": 2}))
    return path


def test_a_file_cut_at_any_byte_is_refused(small, tmp_path):
    data = small.read_bytes()
    for size in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises(ParseError, match="cut' is not a complete checkpoint; nothing is loaded from it:\n  - "):
            read_checkpoint(tmp_path / "cut")


def test_any_changed_byte_is_noticed(small, tmp_path):
    data, want = bytearray(small.read_bytes()), read_checkpoint(small).blobs
    unnoticed = []
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        (tmp_path / "changed").write_bytes(changed)
        try:  # a device noted for a tensor may change, and which chunk a key says it is
            got = read_checkpoint(tmp_path / "changed")
        except ParseError:
            continue
        if any(got.blobs[name].tolist() != value.tolist() for name, value in want.items()):
            unnoticed.append(place)
    assert not unnoticed


def test_all_that_is_wrong_is_listed(file, tmp_path):
    records = list(read_minidb(file))
    keys = [key for key, _ in records]
    records[keys.index(b"half#%0")] = (b"half#%0", b"\xff\xff\xff")
    other = dict(read_minidb(file))
    write_blobs(tmp_path / "other", {"fc/w": np.ones((2, 3), np.float32), "extra": np.zeros(2)})
    other |= dict(read_minidb(tmp_path / "other"))
    records[keys.index(b"fc/w#%0")] = (b"fc/w#%0", other[b"fc/w#%0"])
    del records[keys.index(b"iteration#%0")]
    write_minidb(file, [*records, (b"extra#%0", other[b"extra#%0"])])
    with pytest.raises(ParseError) as caught:
        read_checkpoint(file)
    for text in (
        "'record half#%0' cannot be read as a BlobProto",
        "blob 'iteration' is missing",
        "blob 'extra' was not saved with the others",
        "blob 'fc/w' is damaged: its checksum is wrong",
    ):
        assert f"\n  - {text}" in str(caught.value), text


def test_files_of_other_kinds(tmp_path):
    for data in (b"", b"PK\x03\x04 a zip file, or so it seems", b"\x00" * 64, b"text\n" * 9):
        (tmp_path / "foreign").write_bytes(data)
        with pytest.raises(ParseError, match="foreign' is not a complete checkpoint"):
            read_checkpoint(tmp_path / "foreign")
    with pytest.raises(FileNotFoundError, match="none"):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match="is a folder, not a minidb file: '/"):
        read_checkpoint(tmp_path)


def test_a_later_version_is_refused(file):
    (key, value), *others = read_minidb(file)
    import hashlib

    start = value.index(b"{")
    seal = value.index(hashlib.sha256(value[start:]).hexdigest().encode())
    text = value[start:].replace(b'"version": 1', b'"version": 9')
    value = value[:seal] + hashlib.sha256(text).hexdigest().encode() + b" " + text
    write_minidb(file, [(key, value), *others])
    with pytest.raises(ParseError, match="version 9; this netbuilder reads .* up to version 1"):
        read_checkpoint(file)


# Writes that fail.


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(file, monkeypatch, call):
    def full(*details):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        write_checkpoint(file, checkpoint(step=5))
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is always full")
def test_a_disk_that_fills_while_it_is_written(file, monkeypatch):
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, mode="r", *rest: real("/dev/full" if mode == "xb" else path, mode.replace("x", "w"), *rest),
    )
    before = file.read_bytes()
    with pytest.raises(OSError, match="No space left on device"):
        write_checkpoint(file, Checkpoint({"w": np.zeros(100_000)}))
    assert file.read_bytes() == before


@pytest.mark.one_in(2)
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_process_killed_while_it_writes(file, call):
    before = file.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED.format(call=call), str(file)], check=False)
    assert done.returncode == 9
    assert file.read_bytes() == before
    assert read_checkpoint(file).step == 4


def test_folders_that_are_not_there_or_not_writable(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder .*none' does not exist"):
        write_checkpoint(tmp_path / "none" / "c", checkpoint())
    with pytest.raises(IsADirectoryError):
        write_checkpoint(tmp_path, checkpoint())


def without_manifest(tmp_path):
    """A checkpoint of netbuilder without its first record."""
    write_checkpoint(tmp_path / "whole", Checkpoint({"w": np.float32([1, 2])}, step=7))
    records = list(read_minidb(tmp_path / "whole"))
    assert records[0][0] == MANIFEST.encode()
    write_minidb(tmp_path / "step-00000007.minidb", records[1:])
    return tmp_path / "step-00000007.minidb"


def test_a_checkpoint_without_its_manifest_is_not_taken_for_one_of_caffe2(tmp_path):
    with pytest.raises(
        ParseError, match=r"is not a complete checkpoint; .*\n  - the record '!!NETB.*', with the step .* is missing"
    ):
        read_checkpoint(without_manifest(tmp_path))


def test_a_folder_passes_over_files_that_do_not_say_their_step(tmp_path):
    write_blobs(tmp_path / "step-00000009.minidb", {"w": np.float32([1])})
    with pytest.raises(
        ParseError, match="no checkpoint is complete:\n.*step-00000009.minidb' has no record of its step"
    ):
        CheckpointFolder(tmp_path).latest()


def sealed_again(path, change):
    """Write a checkpoint to ``path`` whose manifest is changed, as text, and sealed again."""
    write_checkpoint(
        path, Checkpoint({"w": np.float32([1, 2])}, step=7, readers={"r": 3}, random=RandomState(7, {"n": 4}))
    )
    records = list(read_minidb(path))
    blob = files.parse(records[0][1], BlobProto)
    text = change(blob.content.partition(b" ")[2].decode()).encode()
    blob.content = hashlib.sha256(text).hexdigest().encode() + b" " + text
    records[0] = records[0][0], blob.SerializeToString()
    write_minidb(path, records)
    return path


def with_fields(**fields):
    return lambda text: json.dumps({**json.loads(text), **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"step": "7"}, "step must be a whole number from 0 to .*, got '7'"), ({"step": -1}, "step must be .*, got -1"),
        ({"step": True}, "step must be .*, got True"), ({"step": 7.0}, "step must be .*, got 7.0"),
        ({"step": 2**63}, "step must be a whole"), ({"metric": "good"}, "metric must be a number, got 'good'"),
        ({"metric": True}, "metric must be a number"), ({"model": 3}, "model must be text, got 3"),
        ({"net": None}, "net must be text, got None"), ({"blobs": None}, "blobs must be values by name, got None"),
        ({"blobs": {"w": "abc"}}, r"blobs\['w'\] must be a checksum of 64 hexadecimal digits, got 'abc'"),
        ({"random": {"seed": 1}}, "random.iterations is missing"),
        ({"random": {"seed": 2**70, "iterations": {}}}, "random.seed must be a whole number .*, got 11805"),
        ({"random": {"seed": True, "iterations": {}}}, "random.seed must be .*, got True"),
        ({"random": {"seed": 1, "iterations": {"n": "4"}}}, r"random.iterations\['n'\] must be .*, got '4'"),
        ({"random": {"seed": 1, "iterations": {"n": -5}}}, r"random.iterations\['n'\] must be .*, got -5"),
        ({"random": [1]}, "random must be values by name"),
        ({"readers": {"r": "3"}}, r"readers\['r'\] must be .*, got '3'"),
        ({"readers": {"r": -1}}, r"readers\['r'\] must be"),
        ({"state": [1]}, r"state must be values by name, got \[1\]"),
        ({"version": "new"}, "version 'new'"), ({"version": True}, "version True"), ({"format": "x"}, "the format 'x'"),
    ],
)  # fmt: skip
def test_a_sealed_manifest_of_other_types_is_refused(tmp_path, fields, message):
    path = sealed_again(tmp_path / "changed", with_fields(**fields))
    for read in (read_checkpoint, read_manifest):
        with pytest.raises(ParseError, match=f"changed'?[ :,](?s:.*){message}"):
            read(path)


def test_every_field_is_needed_and_none_may_be_there_twice(tmp_path):
    found = json.loads(json.dumps(read_manifest(sealed_again(tmp_path / "c", str))))
    for name in found:
        rest = json.dumps({other: value for other, value in found.items() if other != name})
        path = sealed_again(tmp_path / "c", lambda text, rest=rest: rest)
        with pytest.raises(ParseError, match=f"{name} is missing|format None|version None"):
            read_manifest(path)
        twice = sealed_again(tmp_path / "c", lambda text, name=name: text[:-1] + f', "{name}": 1}}')
        with pytest.raises(ParseError, match=f'the name "{name}" is there twice'):
            read_manifest(twice)


def test_manifests_with_random_damage_are_refused_or_whole(tmp_path):
    """A value anywhere is replaced by one of another kind: there is an error with its field, or the types are right."""
    rng, refused = random.Random(5), 0
    values = [None, True, -5, 2**70, 1.5, "text", [], {}, [1], {"x": "y"}]
    for _ in range(300):

        def damage(text):
            found = json.loads(text)
            place, names = found, []
            while True:
                name = rng.choice(sorted(place))
                names.append(name)
                if isinstance(place[name], dict) and place[name] and rng.random() < 0.7:
                    place = place[name]
                    continue
                place[name] = rng.choice(values)
                damage.name = name
                return json.dumps(found)

        path = sealed_again(tmp_path / "c", damage)
        try:
            found = read_checkpoint(path)
        except ParseError as error:
            assert damage.name in str(error)
            refused += 1
            continue
        assert type(found.step) is int and found.step >= 0
        assert all(type(n) is int and n >= 0 for n in found.readers.values())
        assert isinstance(found.model, str) and isinstance(found.net, str) and isinstance(found.state, dict)
        if found.random is not None:
            assert type(found.random.seed) is int and abs(found.random.seed) < 2**64
            assert all(type(n) is int and n >= 0 for n in found.random.iterations.values())
    assert refused > 150


def test_what_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(NetError, match=r"checkpoint: random.seed must be a whole number from .*, got 118059162"):
        write_checkpoint(tmp_path / "c", checkpoint(random=RandomState(2**70, {})))
    assert os.listdir(tmp_path) == []
