"""CreateTextFileReader and TextFileReaderRead; see also tests/jobs/test_file_readers.py."""

import numpy as np
import pytest

from checks import DEVICES, GPU
from netbuilder.ops.core.operator import STRING, TensorSpec
from netbuilder.ops.records.text_files import CreateTextFileReader, TextFileReaderRead
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetError, TensorProto
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, refusal

FLOAT, TEXT = TensorProto.FLOAT, TensorProto.STRING


def read(path, outputs, *, device=None, types=(TEXT, FLOAT), **args):
    workspace = Workspace()
    for op in (
        make_op("CreateTextFileReader", [], ["file"], filename=str(path), num_passes=1, field_types=list(types)),
        make_op("TextFileReaderRead", ["file"], outputs, **args),
    ):
        if device == GPU:
            op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
        workspace.run_operator_once(op)
    return [workspace.fetch(name) for name in outputs]


class FileSuite(OperatorSuite):
    no_gradient = "reads files"

    def test_inplace(self):
        assert not self.operator.inplace

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device, tmp_path):
        (tmp_path / "rows").write_bytes(b"x\t1.5\ny\t2\n")
        words, numbers = read(tmp_path / "rows", ["a", "b"], device=device, batch_size=3)
        assert words.tolist() == [b"x", b"y"] and numbers.dtype == np.float32 and numbers.tolist() == [1.5, 2]


class TestCreateTextFileReader(FileSuite):
    operator = CreateTextFileReader
    refusals = (refusal(CreateTextFileReader(filename="x"), [], "filename, and field_types", ArgumentError),)

    def draw(self, data):
        return CreateTextFileReader(filename="x", field_types=(FLOAT,)), []


class TestTextFileReaderRead(FileSuite):
    operator = TextFileReaderRead
    refusals = (
        refusal(TextFileReaderRead(batch_size=0), [TensorSpec((), STRING)], "must be at least 1, got 0", ArgumentError),
    )

    def draw(self, data):
        return TextFileReaderRead(), [np.zeros((), object)]


def test_wrong_columns(tmp_path):
    (tmp_path / "rows").write_bytes(b"x\t1.5\n")
    with pytest.raises(ArgumentError, match="has 2 columns, got 1 outputs"):
        read(tmp_path / "rows", ["a"])
    with pytest.raises(NetError, match=r"of type FLOAT or STRING; got the types \['INT64'\]"):
        read(tmp_path / "rows", ["a"], types=[TensorProto.INT64])
