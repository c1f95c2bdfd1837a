"""WeightedSampleDequeueBlobs, CreateBlobsQueueDB."""

import numpy as np
import pytest

from checks import CPU, DEVICES, GPU
from netbuilder.data import DBReader, QueueReader, tensor_to_proto
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.records.queue_sources import CreateBlobsQueueDB, WeightedSampleDequeueBlobs
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetDef, NetError, TensorProtos
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, refusal

QUEUE = TensorSpec((), STRING)


def with_queues(*contents, num_blobs=1):
    """A workspace with queues q0, q1, ... that hold these values."""
    workspace = Workspace()
    for number, values in enumerate(contents):
        name = f"q{number}"
        workspace.run_operator_once(make_op("CreateBlobsQueue", [], [name], capacity=100, num_blobs=num_blobs))
        for value in values:
            workspace.fetch(name).write([value] * num_blobs)
    return workspace


def taker(workspace, queues, outputs, device=CPU, **arguments):
    op = make_op("WeightedSampleDequeueBlobs", queues, outputs, **arguments)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    net = NetDef(name="take", op=[op], external_input=queues)
    workspace.create_net(net)
    return lambda: workspace.run_net("take")


class TestWeightedSampleDequeueBlobs(OperatorSuite):
    operator = WeightedSampleDequeueBlobs
    no_gradient = "what is read is where a net begins"
    refusals = (
        refusal(WeightedSampleDequeueBlobs((1.0,)), [QUEUE, QUEUE], "for each of 2 queues", ArgumentError, n_out=2),
        refusal(WeightedSampleDequeueBlobs((1.0, -1.0)), [QUEUE, QUEUE], "none negative", ArgumentError, n_out=2),
        refusal(WeightedSampleDequeueBlobs((0.0, 0.0)), [QUEUE, QUEUE], "not all 0", ArgumentError, n_out=2),
        refusal(
            WeightedSampleDequeueBlobs(table_idx_blob=1),
            [QUEUE],
            r"the status, \[0, 1\), got 1",
            ArgumentError,
            n_out=2,
        ),
    )

    def test_inplace(self):
        assert not self.operator.inplace

    def test_flops(self):
        assert self.operator().flops() == 0

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        """Three of four records come from the queue with three times the weight, in their order."""
        workspace = with_queues(*([np.float32([k + begin]) for k in range(90)] for begin in (0, 1000)), num_blobs=2)
        run = taker(workspace, ["q0", "q1"], ["x", "table", "status"], device, weights=[1.0, 3.0], table_idx_blob=1)
        found = []
        for _ in range(100):
            run()
            table, x = workspace.fetch("table"), workspace.fetch("x")
            assert (table.shape, table.dtype, bool(workspace.fetch("status"))) == ((1,), np.int32, False)
            found.append((int(table[0]), float(x[0])))
        assert 62 <= sum(table for table, _ in found) <= 88
        for number in (0, 1):
            values = [value for table, value in found if table == number]
            assert values == [1000 * number + k for k in range(len(values))]

    def test_the_end_of_one_queue(self):
        workspace = with_queues([np.float32([1])], [np.float32([7])] * 20)
        workspace.fetch("q0").close()
        run = taker(workspace, ["q0", "q1"], ["x", "status"], weights=[1.0, 0.0])
        seen = []
        for _ in range(3):
            run()
            seen.append((workspace.fetch("x").tolist(), bool(workspace.fetch("status"))))
        assert seen == [([1], False), ([1], True), ([1], True)]

    def test_other_objects_and_records(self):
        workspace = with_queues([np.float32([1])], num_blobs=2)
        with pytest.raises(NetError, match="queue 'q0' has 2 blobs per record, got 1 outputs for them"):
            taker(workspace, ["q0"], ["x", "status"])()
        workspace.feed("q1", np.float32([1]))
        with pytest.raises(NetError, match="input 0 must be what CreateBlobsQueue makes"):
            workspace.run_operator_once(make_op("WeightedSampleDequeueBlobs", ["q1"], ["x", "status"]))


class TestCreateBlobsQueueDB(OperatorSuite):
    operator = CreateBlobsQueueDB
    no_gradient = "what is read is where a net begins"
    refusals = (
        refusal(CreateBlobsQueueDB(key_blob_index=-2), [QUEUE], "must be -1 or more", ArgumentError),
        refusal(CreateBlobsQueueDB(timeout_secs=-1.0), [QUEUE], "timeout_secs 0 or more", ArgumentError),
    )

    def test_inplace(self):
        assert not self.operator.inplace

    def test_flops(self):
        assert self.operator().flops() == 0

    def test_forward(self):
        """Records of a queue are read as those of a database are."""
        workspace = with_queues([], num_blobs=2)
        for k in range(3):
            record = TensorProtos(protos=[tensor_to_proto(np.float32([k, k]))]).SerializeToString()
            workspace.feed("key", f"{k}")
            workspace.feed("record", record)
            workspace.run_operator_once(make_op("EnqueueBlobs", ["q0", "key", "record"], ["key", "record"]))
        workspace.fetch("q0").close()
        workspace.run_operator_once(
            make_op("CreateBlobsQueueDB", ["q0"], ["reader"], key_blob_index=0, value_blob_index=1)
        )
        reader = workspace.fetch("reader")
        assert isinstance(reader, QueueReader) and isinstance(reader, DBReader)
        assert reader.read()[0] == b"0"
        workspace.run_operator_once(make_op("TensorProtosDBInput", ["reader"], ["x"], batch_size=1))
        assert workspace.fetch("x").tolist() == [[1, 1]]
        assert [key for key, _ in reader.rest()] == [b"2"]
        with pytest.raises(NetError, match="queue 'q0' is closed, and nothing is left"):
            workspace.run_operator_once(make_op("TensorProtosDBInput", ["reader"], ["x"], batch_size=1))

    def test_what_a_queue_cannot(self):
        workspace = with_queues([np.float32([1, 2])])
        queue = workspace.fetch("q0")
        reader = QueueReader(queue, timeout=0.01)
        with pytest.raises(NetError, match="keys and values of records must be strings"):
            reader.read()
        with pytest.raises(NetError, match=r"stayed empty for 0.01 seconds"):
            reader.read()
        reader.seek(reader.position)
        for call in (lambda: reader.seek(3), reader.rewind):
            with pytest.raises(NetError, match="its records can be read only once"):
                call()
        with pytest.raises(NetError, match="has 1 blobs per record: key must be the index of one or -1"):
            QueueReader(queue, key=1)
