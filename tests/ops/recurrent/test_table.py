"""RecurrentNetworkBlobFetcher: the values that recurrent nets store of their steps, read from their table."""

import numpy as np
import pytest

from checks import DEVICES, GPU
from netbuilder.ops.recurrent.arena import Slot
from netbuilder.ops.recurrent.table import KeptBlob, RecurrentNetworkBlobFetcher, table_bytes
from netbuilder.proto import PROTO_CUDA, BlobError, NetError, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite


def memory():
    """Bytes of two rows of a state, of two steps' values, and of one for all steps."""
    kept = [
        KeptBlob("h", Slot(0, (3, 2), np.dtype(np.float32)), 1, 1),
        KeptBlob("own", Slot(64, (2, 2), np.dtype(np.int32))),
        KeptBlob("same", Slot(128, (2,), np.dtype(np.float64)), -1),
    ]
    data = np.zeros(192, np.uint8)
    data[:24] = np.arange(6, dtype=np.float32).view(np.uint8)
    data[64:80] = np.arange(4, dtype=np.int32).view(np.uint8)
    data[128:144] = np.array([0.5, 2.5]).view(np.uint8)
    table = table_bytes(2, "t", kept)
    assert table.size % 64 == 0
    return np.concatenate([data, table])


class TestRecurrentNetworkBlobFetcher(OperatorSuite):
    operator = RecurrentNetworkBlobFetcher
    no_gradient = "gives names"
    refuses_nothing = "any array may come; what it is not is told when it runs"

    def draw(self, data):
        return RecurrentNetworkBlobFetcher(prefix="p"), [memory()]

    @pytest.mark.parametrize("device", DEVICES)
    def test_forward(self, device):
        workspace = Workspace()
        workspace.feed("memory", memory())
        op = make_op("RecurrentNetworkBlobFetcher", ["memory"], ["names"], prefix="p")
        if device == GPU:
            op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
        workspace.run_operator_once(op)
        names = [name.decode() for name in workspace.fetch("names")]
        assert names == ["p_t0", "p_h0", "p_own0", "p_same0", "p_t1", "p_h1", "p_own1", "p_same1"]
        assert [workspace.fetch(name).tolist() for name in names] == [
            *([0], [[2, 3]], [0, 1], [0.5, 2.5]),
            *([1], [[4, 5]], [2, 3], [0.5, 2.5]),
        ]

    def test_what_is_no_memory_of_steps(self):
        for value in (np.zeros(64, np.uint8), np.zeros(64, np.float32), np.zeros(4, np.uint8)):
            workspace = Workspace()
            workspace.feed("memory", value)
            with pytest.raises((OperatorError, ValueError), match="the last output of a RecurrentNetwork"):
                workspace.run_operator_once(make_op("RecurrentNetworkBlobFetcher", ["memory"], ["names"]))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[" * 20_000, "nested more than 64 deep"),
            ('[1, "t", [{"a": 1, "a": 2}]]', "is there twice"),
            ("[" + "9" * 5000 + ', "t", []]', "a number has 5000 characters"),
            (b"\xff", "no UTF-8 text"),
            ("[1]", "not enough values"),
            ("null", "NoneType"),
            ('[true, "t", []]', "steps and the name of their number are True"),
            ('[-1, "t", []]', "are -1 and 't'"),
            ('[1099511627776, "t", []]', "1099511627776 steps, and no blob has a row for each"),
            ('[1099511627776, "t", [["h", 0, [4, 1], "<f4", 0, 0]]]', "has no 1099511627776 rows"),
            ('[1099511627776, "t", [["h", 0, [1099511627776, 0], "<f4", 0, 0]]]', "1099511627776 steps"),
            ('[1, "t", [["h", 0, [1099511627776], "<f4", 0, 0]]]', "ends at byte 4398046511104"),
            ('[1, "t", [["h", -64, [1], "<f4", 0, 0]]]', "offset -64"),
            ('[1, "t", [["h", 0, [-1, -1], "<f4", 0, 0]]]', r"shape \(-1, -1\)"),
            ('[1, "t", [["h", 0, [1], "O", 0, 0]]]', "type object"),
            ('[1, "t", [["h", 0, [1], "no", 0, 0]]]', "'no'"),
            ('[1, "t", [["h", 0, [1], "<f4", 0]]]', "missing 1 required"),
            ('[1, "t", [["h", 0, 1, "<f4", 0, 0]]]', "damaged"),
            ('[1, "t", [["h", 0.5, [1], "<f4", 0, 0]]]', "a row has"),
            ('[1, "t", [["h", 0, [1], "<f4", 0, 5]]]', "has no 5 rows"),
        ],
    )
    def test_a_damaged_table(self, text, message):
        workspace, data = Workspace(), text if isinstance(text, bytes) else text.encode()
        pieces = [bytes(64), data, len(data).to_bytes(8, "little"), b"nbsteps1"]
        workspace.feed("memory", np.frombuffer(b"".join(pieces), np.uint8))
        with pytest.raises(NetError, match=rf"RecurrentNetworkBlobFetcher: the table in the input, .*{message}"):
            workspace.run_operator_once(make_op("RecurrentNetworkBlobFetcher", ["memory"], ["names"]))

    def test_a_table_that_is_longer_than_the_memory(self):
        workspace = Workspace()
        workspace.feed("memory", np.frombuffer(bytes(64) + (1 << 60).to_bytes(8, "little") + b"nbsteps1", np.uint8))
        with pytest.raises(NetError, match="its size is said to be 1152921504606846976 bytes, and there are 80"):
            workspace.run_operator_once(make_op("RecurrentNetworkBlobFetcher", ["memory"], ["names"]))

    def test_a_name_that_is_taken(self):
        workspace = Workspace()
        workspace.feed("memory", memory())
        with pytest.raises((OperatorError, BlobError), match="the output's own name"):
            workspace.run_operator_once(make_op("RecurrentNetworkBlobFetcher", ["memory"], ["p_h1"], prefix="p"))
