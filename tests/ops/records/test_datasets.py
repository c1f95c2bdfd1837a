"""Records in blobs: cursors, batches in order and shuffled, appending, packing, errors."""

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.data.record_tree import RecordTree
from netbuilder.proto import ArgumentError, NetDef, NetError, ShapeError
from netbuilder.proto.arguments import make_op

NAMES = ["x", "l:lengths", "l:values", "m:lengths", "m:values:lengths", "m:values:values"]
COLUMNS = [
    np.int32([1, 2, 3, 4]),
    np.int32([1, 0, 2, 1]),
    np.float32([0.1, 0.2, 0.3, 0.4]),
    np.int32([2, 1, 0, 1]),
    np.int32([1, 2, 0, 1]),
    np.int64([7, 8, 9, 6]),
]


@pytest.fixture
def ws():
    ws = Workspace()
    for name, column in zip(NAMES, COLUMNS):
        ws.feed(name, column)
    run(ws, "CreateTreeCursor", [], ["cursor"], fields=NAMES)
    return ws


def run(ws, op_type, inputs, outputs, **arguments):
    ws.run_operator_once(make_op(op_type, inputs, outputs, **arguments))


def values(ws, names):
    return [ws.fetch(name).tolist() for name in names]


OUT = [f"out_{i}" for i in range(len(NAMES))]


def test_domains():
    assert RecordTree(NAMES).domains == [0, 0, 1, 0, 2, 3]
    assert RecordTree(["lengths", "values"]).domains == [0, 1]
    assert RecordTree([""]).domains == [0]


def test_batches_in_order_to_the_end_and_again(ws):
    run(ws, "ReadNextBatch", ["cursor", *NAMES], OUT, batch_size=3)
    assert values(ws, OUT)[:3] == [[1, 2, 3], [1, 0, 2], np.float32([0.1, 0.2, 0.3]).tolist()]
    assert values(ws, OUT)[3:] == [[2, 1, 0], [1, 2, 0], [7, 8, 9]]
    run(ws, "GetCursorOffset", ["cursor"], ["offset"])
    assert ws.fetch("offset").tolist() == [3, 3, 3, 3]
    run(ws, "ReadNextBatch", ["cursor", *NAMES], OUT, batch_size=3)
    assert values(ws, OUT)[3:] == [[1], [1], [6]]
    run(ws, "ReadNextBatch", ["cursor", *NAMES], OUT, batch_size=3)
    assert values(ws, OUT) == [[]] * 6
    run(ws, "ResetCursor", ["cursor"], [])
    run(ws, "ReadNextBatch", ["cursor", *NAMES], OUT, batch_size=1)
    assert values(ws, OUT)[:1] == [[1]]


def test_whole_batches_alone(ws):
    for want in ([1, 2, 3], [], []):
        run(ws, "ReadNextBatch", ["cursor", *NAMES], OUT, batch_size=3, enforce_batch_size=True)
        assert ws.fetch("out_0").tolist() == want


def test_another_order(ws):
    ws.feed("order", np.int64([3, 0, 2]))
    run(ws, "ComputeOffset", ["cursor", *NAMES], ["offsets"])
    assert ws.fetch("offsets").tolist() == [[0] * 4, [1, 1, 2, 3], [2, 1, 3, 3], [3, 3, 3, 3], [4, 4, 4, 4]]
    for loop_over, want in ((False, [[4, 1], [3], []]), (True, [[4, 1], [3], [4, 1]])):
        run(ws, "ResetCursor", ["cursor"], [])
        for rows in want:
            inputs = ["cursor", "order", "offsets", *NAMES]
            run(ws, "ReadRandomBatch", inputs, OUT, batch_size=2, loop_over=loop_over)
            assert ws.fetch("out_0").tolist() == rows
            if rows == [4, 1]:
                assert values(ws, OUT)[3:] == [[1, 2], [1, 1, 2], [6, 7, 8, 9]]


def test_sorted_in_windows_and_shuffled(ws):
    ws.feed("x", np.int32([5, 1, 4, 2]))
    run(ws, "SortAndShuffle", ["cursor", *NAMES], ["order"], sort_by_field_idx=0, batch_size=2, shuffle_size=1)
    order = ws.fetch("order").tolist()
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset([1, 3]), frozenset([0, 2])}
    run(ws, "SortAndShuffle", ["cursor", *NAMES], ["order"], sort_by_field_idx=-1, batch_size=3, shuffle_size=2)
    assert sorted(ws.fetch("order").tolist()) == [0, 1, 2, 3]
    with pytest.raises(ArgumentError, match="sort_by_field_idx -1 or one of 6 columns, got 2, 1, 6"):
        run(ws, "SortAndShuffle", ["cursor", *NAMES], ["order"], sort_by_field_idx=6, batch_size=2)


def test_trimmed_and_checked(ws):
    run(ws, "CheckDatasetConsistency", NAMES, [], fields=NAMES)
    run(ws, "TrimDataset", NAMES, NAMES, fields=NAMES, multiple_of=3)
    assert values(ws, NAMES)[3:] == [[2, 1, 0], [1, 2, 0], [7, 8, 9]]
    ws.feed("m:values:values", np.int64([7]))
    with pytest.raises(NetError, match="column 'm:values:values' has 1 rows, but the lengths add up to 3"):
        run(ws, "CheckDatasetConsistency", NAMES, [], fields=NAMES)
    ws.feed("x", np.int32([1]))
    with pytest.raises(NetError, match="different numbers of rows"):
        run(ws, "CheckDatasetConsistency", NAMES, [], fields=NAMES)


def test_appended(ws):
    ws.feed("a", np.float32([[1, 2]]))
    ws.feed("b", np.float32([[3, 4], [5, 6]]))
    run(ws, "Append", ["a", "b"], ["a"])
    assert ws.fetch("a").tolist() == [[1, 2], [3, 4], [5, 6]]
    run(ws, "CreateMutex", [], ["mutex"])
    ws.feed("y", ws.fetch("x"))
    run(ws, "AtomicAppend", ["mutex", "a", "x", "b", "y"], ["a", "x"])
    assert ws.fetch("a").shape == (5, 2) and ws.fetch("x").tolist() == [1, 2, 3, 4] * 2
    with pytest.raises(
        ShapeError,
        match=r"Append: both tensors must have rows .*, got shapes \(5, 2\) and \(8,\)",
    ):
        run(ws, "Append", ["a", "x"], ["a"])


@pytest.mark.parametrize("single", [False, True])
def test_packed(ws, single):
    run(ws, "PackRecords", NAMES, ["packed"], fields=NAMES, pack_to_single_shared_ptr=single)
    run(ws, "UnPackRecords", ["packed"], OUT, fields=NAMES)
    assert values(ws, OUT) == [column.tolist() for column in COLUMNS]
    with pytest.raises(NetError, match="must be the output of PackRecords for 1 columns"):
        run(ws, "UnPackRecords", ["packed"], OUT[:1], fields=NAMES[:1])


def test_tensors_in_a_row(ws):
    run(ws, "CreateTensorVector", [], ["row"])
    collect = make_op("CollectTensor", ["row", "x"], ["row", "place"], num_to_collect=2)
    ws.create_net(NetDef(name="collect", op=[collect]))
    places = []
    for _ in range(6):
        ws.run_net("collect")
        places.append(int(ws.fetch("place")))
    run(ws, "TensorVectorSize", ["row"], ["size"])
    run(ws, "ConcatTensorVector", ["row"], ["all"])
    assert ws.fetch("size") == 2 and ws.fetch("all").tolist() == [1, 2, 3, 4] * 2
    assert places[:2] == [0, 1] and set(places) <= {-1, 0, 1}


def test_what_is_no_cursor_is_refused(ws):
    with pytest.raises(NetError, match="input 0 must be what CreateTreeCursor makes"):
        run(ws, "ReadNextBatch", ["x", *NAMES], OUT)
    with pytest.raises(NetError, match="the cursor is for 6 columns, got 1"):
        run(ws, "ReadNextBatch", ["cursor", "x"], OUT[:1])
