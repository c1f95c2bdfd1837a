"""CreateDB and TensorProtosDBInput."""

import numpy as np
import pytest
from hypothesis import strategies as st

import golden_data
from checks import CPU, DEVICES, GPU
from netbuilder.data import DBReader, tensor_to_proto, write_minidb
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.records.db_input import CreateDB, TensorProtosDBInput
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetDef, NetError, ParseError, ShapeError, TensorProtos
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, refusal

IMAGES = golden_data.GOLDEN / "exports" / "image_db"
READER = TensorSpec((), STRING)


@pytest.fixture
def letters(tmp_path):
    """A database of three records: a vector of two numbers, a scalar, a string."""

    def record(k):
        tensors = [np.float32([k, k + 0.5]), np.array(k, np.int32), np.array([f"s{k}"])]
        return str(k), TensorProtos(protos=[tensor_to_proto(t) for t in tensors]).SerializeToString()

    path = tmp_path / "letters.minidb"
    write_minidb(path, map(record, range(3)))
    return path


def run(path, outputs, times=1, *, workspace=None, reader=None, device=CPU, **args):
    """Return the outputs of so many runs of a net that reads a database."""
    workspace = workspace or Workspace()
    workspace.run_operator_once(make_op("CreateDB", [], ["reader"], db=str(path), db_type="minidb", **(reader or {})))
    read = make_op("TensorProtosDBInput", ["reader"], outputs, **args)
    if device == GPU:
        read.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.create_net(NetDef(name="read", op=[read]))
    got = []
    for _ in range(times):
        workspace.run_net("read")
        got.append([workspace.fetch(name) for name in outputs])
    return got


class TestCreateDB(OperatorSuite):
    operator = CreateDB
    no_gradient = "opens a file"
    refusals = (refusal(CreateDB(), [], "db, the path of the database, must be given", ArgumentError),)

    def draw(self, data):
        return CreateDB(db=str(IMAGES / "float_images.minidb"), db_type="minidb"), []

    def test_forward(self, letters):
        workspace = Workspace()
        workspace.run_operator_once(make_op("CreateDB", [], ["reader"], db=str(letters), db_type="minidb"))
        reader = workspace.fetch("reader")
        assert isinstance(reader, DBReader)
        assert reader.read()[0] == b"0"


class TestTensorProtosDBInput(OperatorSuite):
    operator = TensorProtosDBInput
    no_gradient = "reads a file"
    refusals = (refusal(TensorProtosDBInput(batch_size=-1), [READER], "must not be negative, got -1", ArgumentError),)

    def draw(self, data):
        op = TensorProtosDBInput(batch_size=data.draw(st.integers(0, 5)))
        return op.with_arity(1, 2), [DBReader(IMAGES / "float_images.minidb")]

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("name", ["float_images", "byte_images"])
    def test_forward(self, device, name):
        """Five batches of each size that Caffe2 read from its databases."""
        expected = np.load(IMAGES / "expected.npz")
        sizes = {key.split("/")[1] for key in expected if key.startswith(name)}
        for size in sizes:
            count = int(size[len("batch_size") :])
            batches = run(IMAGES / f"{name}.minidb", ["data", "label"], 5, device=device, batch_size=count)
            runs = sorted({key.split("/")[2] for key in expected if key.startswith(f"{name}/{size}/")})
            assert len(runs) == 5
            for k, (data, label) in zip(runs, batches):
                for got, key in ((data, "data"), (label, "label")):
                    want = expected[f"{name}/{size}/{k}/{key}"]
                    assert got.dtype == want.dtype
                    np.testing.assert_array_equal(got, want)

    def test_inplace(self):
        assert not self.operator.inplace


def test_the_net_of_an_exported_model_reads_its_database(tmp_path, monkeypatch):
    """The init net opens the database by a relative path; its first operators read and scale a batch."""
    net = golden_data.parse(NetDef, (golden_data.GOLDEN / "exports" / "extract_db_input" / "train_net.pb").read_bytes())
    init = golden_data.parse(
        NetDef, (golden_data.GOLDEN / "exports" / "extract_db_input" / "param_init_net.pb").read_bytes()
    )
    (opened,) = [op for op in init.op if op.type == "CreateDB"]
    (read,) = [op for op in net.op if op.type == "TensorProtosDBInput"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.minidb").write_bytes((IMAGES / "float_images.minidb").read_bytes())
    workspace = Workspace()
    workspace.run_operator_once(opened)
    workspace.run_operator_once(read)
    assert workspace.fetch("data_raw").shape[0] == 4


def test_without_a_batch_size_one_record_comes_as_it_is(letters):
    (first, second) = run(letters, ["x", "k", "s"], 2)
    assert [v.shape for v in first] == [(2,), (), (1,)]
    assert second[0].tolist() == [1, 1.5]
    assert second[2].tolist() == [b"s1"]


def test_a_batch_may_hold_the_end_and_the_beginning(letters):
    ((x, k, s),) = run(letters, ["x", "k", "s"], batch_size=4)
    assert x.shape == (4, 2)
    assert k.tolist() == [0, 1, 2, 0]
    assert s.tolist() == [[b"s0"], [b"s1"], [b"s2"], [b"s0"]]


def test_shards(letters):
    ((_, k, _),) = run(letters, ["x", "k", "s"], batch_size=3, reader={"num_shards": 2, "shard_id": 0})
    assert k.tolist() == [0, 2, 0]


def test_what_does_not_fit_is_refused_with_the_record(letters, tmp_path):
    with pytest.raises(NetError, match="letters.minidb, record 0' has 3 tensors, but the operator has 2 outputs"):
        run(letters, ["x", "k"], batch_size=1)
    with pytest.raises(NetError, match="must be the reader that CreateDB makes, got"):
        workspace = Workspace()
        workspace.feed("x", np.zeros(3, np.float32))
        workspace.run_operator_once(make_op("TensorProtosDBInput", ["x"], ["y"]))
    mixed = tmp_path / "mixed.minidb"
    records = [TensorProtos(protos=[tensor_to_proto(np.zeros(n))]).SerializeToString() for n in (2, 3)]
    write_minidb(mixed, [("a", records[0]), ("b", records[1])])
    with pytest.raises(ShapeError, match=r"tensor 0 of the records of a batch has shapes \(2,\) and \(3,\)"):
        run(mixed, ["x"], batch_size=2)
    foreign = tmp_path / "foreign.minidb"
    write_minidb(foreign, [("a", b"\xff\xff\xff")])
    with pytest.raises(ParseError, match="foreign.minidb, record a' cannot be read as a TensorProtos"):
        run(foreign, ["x"], batch_size=1)
    short = tmp_path / "short.minidb"
    proto = tensor_to_proto(np.zeros(2))
    proto.dims[0] = 3
    write_minidb(short, [("a", TensorProtos(protos=[proto]).SerializeToString())])
    with pytest.raises(ParseError, match="short.minidb, record a'.*holds 2 elements"):
        run(short, ["x"], batch_size=1)


def test_a_missing_or_unknown_database_is_named():
    with pytest.raises(Exception, match="'nowhere': no such minidb database"):
        run("nowhere", ["x"])
    with pytest.raises(NetError, match="'x.lmdb': unknown type of database 'rocks'; known"):
        Workspace().run_operator_once(make_op("CreateDB", [], ["reader"], db="x.lmdb", db_type="rocks"))
