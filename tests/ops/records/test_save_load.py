"""Save, Checkpoint, Snapshot, Load, DBExists: as Caffe2's do, on Caffe2's files and on netbuilder's."""

import errno
import os

import numpy as np
import pytest

import golden_data
from checks import CPU, DEVICES, GPU
from netbuilder.data import read_blobs, read_minidb
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.records.save_load import Checkpoint, DBExists, Load, Save, Snapshot
from netbuilder.proto import PROTO_CUDA, ArgumentError, BlobError, BlobProto, NetDef, NetError, ParseError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.proto.netbuilder_pb2 import BlobSerializationOptions, SerializationOptions
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, i64, refusal

Bfloat16 = BlobSerializationOptions.FLOAT_BFLOAT16
STORED = golden_data.GOLDEN / "exports" / "checkpoint_types"
READER = TensorSpec((), STRING)
MINIDB = {"db_type": "minidb", "absolute_path": 1}


def run(workspace, op_type, inputs, outputs, *, device=CPU, **args):
    op = make_op(op_type, inputs, outputs, **args)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.run_operator_once(op)
    return workspace


def save(path, blobs, op_type="Save", *, device=CPU, **args):
    """Write blobs by an operator."""
    workspace = Workspace()
    for name, value in blobs.items():
        workspace.feed(name, value)
    run(workspace, op_type, list(blobs), [], device=device, db=str(path), **{**MINIDB, **args})


def load(path, outputs, *, workspace=None, device=CPU, inputs=(), **args):
    """Return the blobs of a workspace after a Load."""
    workspace = workspace or Workspace()
    where = {} if inputs or "dbs" in args else {"db": str(path)}
    run(workspace, "Load", list(inputs), outputs, device=device, **{**where, **MINIDB, **args})
    return {name: workspace.fetch(name) for name in workspace.blobs() if workspace.spec(name) is not None}


@pytest.fixture
def blobs():
    return {"a/x": np.float32([1, 2, 3]), "y": np.int64([[1], [2]]), "s": b"hello"}


@pytest.fixture
def file(tmp_path, blobs):
    save(tmp_path / "f.db", blobs)
    return tmp_path / "f.db"


class FileSuite(OperatorSuite):
    no_gradient = "reads or writes files"

    def test_inplace(self):
        assert not self.operator.inplace


class TestSave(FileSuite):
    operator = Save
    refusals = (
        refusal(Save(db_type="minidb"), [f32(2)], "db, the path of the file, must be given", ArgumentError),
        refusal(Save(db="x", db_type="leveldb"), [f32(2)], "'lmdb' or 'minidb'; got 'leveldb'", ArgumentError),
        refusal(Save(db="x", db_type="minidb", chunk_size=-2), [f32(2)], "chunk_size must be a number", ArgumentError),
        refusal(
            Save(db="x", db_type="minidb", strip_prefix="a", blob_name_overrides=("b",)), [f32(2)],
            "give strip_prefix or blob_name_overrides, not both", ArgumentError,
        ),
        refusal(
            Save(db="x", db_type="minidb", blob_name_overrides=("b",)), [f32(2), f32(2)],
            "one name for each of 2 inputs, got 1", ArgumentError,
        ),
    )  # fmt: skip

    def draw(self, data):
        return Save(db="x", db_type="minidb"), [np.zeros(3, np.float32)]

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device, tmp_path):
        """What Caffe2 wrote is written again, record by record, by the arguments that it was written with."""
        export = golden_data.export("checkpoint_types")
        values = export.arrays["blobs"] | {"strings": np.array([b"alpha", b"", b"b\x00c"], object)}
        for name, stored in export.meta["files"].items():
            save(
                tmp_path / name, {blob: values[blob] for blob in stored["blobs"]}, device=device, **stored["arguments"]
            )
            ours, theirs = (dict(read_minidb(folder / name)) for folder in (tmp_path, STORED))
            assert ours.keys() == theirs.keys()
            for key in ours:
                mine, want = (BlobProto.FromString(records[key]) for records in (ours, theirs))
                assert mine.tensor.device_detail.device_type == (PROTO_CUDA if device == GPU else 0)
                for blob in (mine, want):
                    blob.tensor.ClearField("data_format")
                    blob.tensor.ClearField("device_detail")
                assert mine == want, key


class TestCheckpoint(FileSuite):
    operator = Checkpoint
    refusals = (
        refusal(Checkpoint(db="x", db_type="minidb", every=0), [i64(1)], "every must be at least 1", ArgumentError),
        refusal(Checkpoint(db="x%d%d", db_type="minidb"), [i64(1)], "one conversion of an integer", ArgumentError),
        refusal(Checkpoint(db="x%s", db_type="minidb"), [i64(1)], "one conversion of an integer", ArgumentError),
    )

    def draw(self, data):
        return Checkpoint(db="x", db_type="minidb"), [np.zeros(1, np.int64)]

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device, tmp_path):
        op = make_op("Checkpoint", ["iter", "x"], [], db=str(tmp_path / "at_%08d.db"), every=2, **MINIDB)
        if device == GPU:
            op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
        workspace = Workspace()
        workspace.feed("x", np.float32([0]))
        workspace.feed("iter", np.int64([0]))
        net = NetDef(name="net", op=[make_op("Iter", ["iter"], ["iter"]), op])
        workspace.create_net(net)
        for _ in range(5):
            workspace.run_net("net")
        assert sorted(os.listdir(tmp_path)) == ["at_00000002.db", "at_00000004.db"]
        found = read_blobs(tmp_path / "at_00000004.db")
        assert found["iter"].tolist() == [4]
        assert found["x"].tolist() == [0]

    def test_the_counter_is_one_whole_number(self, tmp_path):
        for counter in (np.float32([1]), np.int64([1, 2]), b"1"):
            with pytest.raises(NetError, match="must be the iteration, one integer"):
                save(tmp_path / "x", {"iter": counter}, "Checkpoint")

    @pytest.mark.parametrize(("pattern", "name"), [("p%d%%.db", "p12%.db"), ("p%5ld", "p   12"), ("plain", "plain")])
    def test_patterns(self, tmp_path, pattern, name):
        save(tmp_path / pattern, {"iter": np.int64([12])}, "Checkpoint")
        assert os.listdir(tmp_path) == [name]


class TestSnapshot(TestCheckpoint):
    operator = Snapshot

    def draw(self, data):
        return Snapshot(db="x", db_type="minidb"), [np.zeros(1, np.int64)]

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device, tmp_path):
        save(tmp_path / "s%d", {"iter": np.int64([7])}, "Snapshot", device=device)
        assert os.listdir(tmp_path) == ["s7"]


class TestLoad(FileSuite):
    operator = Load
    refusals = (
        refusal(Load(db_type="minidb"), [], "db, the path of the file, dbs or a reader", ArgumentError, n_out=1),
        refusal(Load(db="a", dbs=("b",)), [], "give db or dbs, not both", ArgumentError, n_out=1),
        refusal(Load(dbs=("a", "a")), [], "dbs must be distinct", ArgumentError, n_out=1),
        refusal(Load(db="a", source_blob_names=("x",), strip_prefix="p"), [], "source_blob_names or strip_prefix, not",
                ArgumentError, n_out=1),
        refusal(Load(db="a", source_blob_names=("x",), load_all=True), [], "source_blob_names or load_all, not both",
                ArgumentError, n_out=1),
        refusal(Load(db="a", source_blob_names=("x",)), [], "one name for each of 2 outputs, got 1", ArgumentError,
                n_out=2),
    )  # fmt: skip

    def draw(self, data):
        return Load(db=str(STORED / "plain.minidb"), db_type="minidb"), []

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("name", ["plain.minidb", "chunked.minidb", "strip_prefix.minidb", "overrides.minidb"])
    def test_forward(self, device, name):
        export = golden_data.export("checkpoint_types")
        names = list(read_blobs(STORED / name))
        got = load(STORED / name, names, device=device)
        assert sorted(got) == sorted(names)
        values = export.arrays["blobs"] | {"strings": np.array([b"alpha", b"", b"b\x00c"], object)}
        values |= dict(zip(read_blobs(STORED / name), map(values.get, export.meta["files"][name]["blobs"])))
        for blob, value in got.items():
            assert value.dtype == values[blob].dtype
            np.testing.assert_array_equal(value, values[blob], err_msg=blob)


class TestDBExists(FileSuite):
    operator = DBExists
    refusals = (refusal(DBExists(), [], "db_name, the path of the database, must be given", ArgumentError),)

    def draw(self, data):
        return DBExists(db_name="x"), []

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device, file):
        for path, there in ((file, True), (file.with_name("none"), False)):
            workspace = run(Workspace(), "DBExists", [], ["e"], device=device, db_name=str(path), **MINIDB)
            value = workspace.fetch("e")
            assert (value.dtype, value.shape, bool(value)) == (np.bool_, (), there)


# Each line was run in Caffe2, too, and gave the same blobs.
@pytest.mark.parametrize(
    ("outputs", "args", "expected"),
    [
        (["a/x", "s"], {}, ["a/x", "s"]),
        ([], {}, []),
        ([], {"load_all": 1}, ["a/x", "s", "y"]),
        (["a/x"], {"load_all": 1}, ["a/x", "s", "y"]),
        (["x"], {"strip_prefix": "a/"}, ["x"]),
        (["x"], {"strip_prefix": "/"}, ["x"]),
        (["p_a/x"], {"add_prefix": "p_"}, ["p_a/x"]),
        ([], {"load_all": 1, "strip_prefix": "a/", "add_prefix": "gpu_0/"}, ["gpu_0/s", "gpu_0/x", "gpu_0/y"]),
        (["m"], {"source_blob_names": ["a/x"]}, ["m"]),
        (["m"], {"source_blob_names": ["p_a/x"], "add_prefix": "p_"}, ["m"]),
    ],
)
def test_names(file, blobs, outputs, args, expected):
    found = load(file, outputs, **args)
    assert sorted(found) == expected
    for name, value in found.items():
        source = "a/x" if name.endswith(("x", "m")) else name[-1]
        np.testing.assert_array_equal(value, blobs[source])


def test_blobs_that_are_missing_are_listed_and_nothing_changes(file):
    workspace = Workspace()
    workspace.feed("y", np.float32([9]))
    with pytest.raises(BlobError, match=r"f.db' has no blobs \['zz', 'zy'\]; give allow_incomplete=1"):
        load(file, ["y", "zz", "zy"], workspace=workspace)
    with pytest.raises(BlobError, match=r"has no blobs \['zz'\]"):
        load(file, ["zz"], workspace=workspace, load_all=1)
    assert workspace.fetch("y").tolist() == [9]
    workspace.feed("zz", np.float32([5]))
    found = load(file, ["y", "zz", "zy"], workspace=workspace, allow_incomplete=1)
    assert found["y"].tolist() == [[1], [2]]
    assert found["zz"].tolist() == [5]
    with pytest.raises(BlobError, match="holds no value"):
        workspace.fetch("zy")


def test_several_files(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.db", "b.db")]
    save(paths[0], {"a": np.float32([1])})
    save(paths[1], {"b": np.float32([2])})
    assert list(load("", ["b", "a"], dbs=paths)) == ["a", "b"]
    assert list(load("", [], dbs=paths, load_all=1)) == ["a", "b"]
    save(tmp_path / "c.db", {"a": np.float32([1])})
    with pytest.raises(ParseError, match="elements 0 to 1 of blob 'a' occur twice"):
        load("", [], dbs=[paths[0], str(tmp_path / "c.db")], load_all=1)


def test_a_reader(file):
    workspace = run(Workspace(), "CreateDB", [], ["reader"], db=str(file), db_type="minidb")
    assert load("", ["y"], workspace=workspace, inputs=["reader"])["y"].tolist() == [[1], [2]]
    with pytest.raises(BlobError, match=r"has no blobs \['a/x'\]"):  # it is at the end now, as in Caffe2
        load("", ["a/x"], workspace=workspace, inputs=["reader"])
    with pytest.raises(NetError, match="must be readers that CreateDB makes"):
        load("", ["a/x"], workspace=workspace, inputs=["y"])


def test_relative_paths_begin_at_the_root_folder(tmp_path):
    workspace = Workspace()
    workspace.root_folder = str(tmp_path)
    workspace.feed("x", np.float32([1]))
    run(workspace, "Save", ["x"], [], db="f.db", db_type="minidb")
    assert os.listdir(tmp_path) == ["f.db"]
    run(workspace, "Load", [], ["x"], db="f.db", db_type="minidb")
    run(workspace, "DBExists", [], ["e"], db_name="f.db", db_type="minidb")
    assert workspace.fetch("e")


@pytest.mark.gpu
def test_devices_are_kept_on_request(tmp_path):
    save(tmp_path / "f", {"x": np.float32([1])}, device=GPU)
    for args, place in (({}, 0), ({"keep_device": 1}, PROTO_CUDA)):
        workspace = Workspace()
        load(tmp_path / "f", ["x"], workspace=workspace, **args)
        assert workspace.get("x").location[0] == place


def test_two_blobs_under_one_name_are_refused(tmp_path):
    for args in ({"blob_name_overrides": ["q", "q"]}, {"strip_prefix": "/"}):
        with pytest.raises(NetError, match=r"several blobs would be stored as \['[qx]'\]"):
            save(tmp_path / "f", {"a/x": np.float32([1]), "b/x": np.float32([2])}, **args)
    assert os.listdir(tmp_path) == []


def test_objects_cannot_be_saved(file):
    workspace = run(Workspace(), "CreateDB", [], ["reader"], db=str(file), db_type="minidb")
    with pytest.raises(NetError, match="blob 'reader': only tensors, strings, .* can be stored, got DBReader"):
        run(workspace, "Save", ["reader"], [], db=str(file), **MINIDB)
    assert list(read_blobs(file)) == ["a/x", "y"]


def test_a_full_disk_leaves_the_file_that_was_there(file, monkeypatch):
    def full(*details):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = file.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        save(file, {"z": np.float32([1])})
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_file_cut_anywhere_is_refused_whole(file, tmp_path):
    """Also where the requested blobs come before the cut, which Caffe2 accepts."""
    data = file.read_bytes()
    ends = np.cumsum([8 + len(key) + len(value) for key, value in read_minidb(file)])
    workspace = Workspace()
    workspace.feed("a/x", np.float32([9]))
    for size in range(1, len(data)):
        (tmp_path / "cut").write_bytes(data[:size])
        with pytest.raises((ParseError, BlobError), match="cut"):
            load(tmp_path / "cut", ["a/x"] if size not in ends else ["a/x", "y", "s"], workspace=workspace)
    assert workspace.fetch("a/x").tolist() == [9]
    with pytest.raises(Exception, match="none"):
        load(tmp_path / "none", ["a/x"])


def test_a_net_that_saves_what_it_computes_and_one_that_loads_it(tmp_path):
    """The plan is cut around the operators; blobs in a library's own order are saved in plain order."""
    workspace = Workspace()
    x = np.random.default_rng(0).normal(size=(2, 16, 8, 8)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(32, 16, 3, 3)).astype(np.float32)
    for name, value in (("x", x), ("w", w), ("b", np.zeros(32, np.float32))):
        workspace.feed(name, value)
    ops = [
        make_op("Conv", ["x", "w", "b"], ["y"], kernel=3),
        make_op("Save", ["y", "w"], [], db=str(tmp_path / "f"), **MINIDB),
        make_op("Relu", ["y"], ["z"]),
        make_op("Load", [], ["w"], db=str(tmp_path / "f"), **MINIDB),
    ]
    workspace.create_net(NetDef(name="net", op=ops))
    for _ in range(3):
        workspace.run_net("net")
        found = read_blobs(tmp_path / "f")
        np.testing.assert_array_equal(found["w"], w)
        np.testing.assert_array_equal(found["y"], workspace.fetch("y"))
        np.testing.assert_array_equal(workspace.fetch("z"), np.maximum(found["y"], 0))


def test_unknown_kinds_of_databases(file):
    with pytest.raises(NetError, match="unknown type of database 'rocks'"):
        load(file, ["y"], db_type="rocks")


def test_lmdb(tmp_path, blobs):
    """As Caffe2's tutorial on CIFAR-10 checkpoints its parameters."""
    pytest.importorskip("lmdb")
    save(tmp_path / "f.lmdb", blobs, db_type="lmdb")
    assert (tmp_path / "f.lmdb").is_dir()
    loaded = load(tmp_path / "f.lmdb", [], db_type="LMDB", load_all=1)
    assert loaded.keys() == blobs.keys() and all(np.array_equal(loaded[name], blobs[name]) for name in blobs)
    save(tmp_path / "c_%03d.lmdb", {"iter": np.int64([6]), "y": blobs["y"]}, "Checkpoint", db_type="lmdb", every=3)
    assert np.array_equal(load(tmp_path / "c_006.lmdb", ["y"], db_type="lmdb")["y"], blobs["y"])


def test_options_for_single_blobs(tmp_path):
    """The first option whose expression fits the whole name counts; float32 may take two bytes, rounded."""
    options = SerializationOptions(
        options=[
            BlobSerializationOptions(blob_name_regex="x", chunk_size=4, float_format=Bfloat16),
            BlobSerializationOptions(blob_name_regex="x.*", chunk_size=3),
            BlobSerializationOptions(blob_name_regex="n", float_format=Bfloat16),
        ]
    )
    x = np.float32([1.0, 1.00390625, 1.01171875, -3.14159, 1e-40, np.inf, -np.inf, np.nan, 3.3e38, 0.0])
    blobs = {"x": x, "xy": x, "n": np.arange(10), "other": x}
    save(tmp_path / "db", blobs, chunk_size=5, options=options)
    keys = [key.decode() for key, _ in read_minidb(tmp_path / "db")]
    assert [sum(key.startswith(name + "#") for key in keys) for name in blobs] == [3, 4, 2, 2]
    found = read_blobs(tmp_path / "db")
    for name in ("xy", "n", "other"):
        np.testing.assert_array_equal(found[name], blobs[name])
    # To the nearest of 8 bits, ties to even.
    expected = np.float32([1.0, 1.0, 1.015625, -3.140625])
    np.testing.assert_array_equal(found["x"][:4], expected)
    np.testing.assert_array_equal(found["x"][5:8], x[5:8])
    np.testing.assert_allclose(found["x"][8:], x[8:], rtol=2**-8)
    wrong = SerializationOptions(options=[BlobSerializationOptions(blob_name_regex="(")]).SerializeToString()
    with pytest.raises(ArgumentError, match=r"blob_name_regex '\(' in options is not a regular expression"):
        save(tmp_path / "wrong", blobs, options=wrong)


def test_outputs_named_twice_are_refused(file):
    with pytest.raises(NetError, match=r"must be distinct, \['f4'\] occur more than once"):
        load(file, ["f4", "i8", "f4"])
