"""Arrays that blobs use as they are: nothing changes them, and blobs that are written to have memory of their own."""

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.engines.arrays import aligned_zeros
from netbuilder.exchange import Predictor
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op


def given(values, *, writeable=False):
    """An array of float32 in aligned memory."""
    values = np.asarray(values, np.float32)
    memory = aligned_zeros(values.nbytes).view(np.float32).reshape(values.shape)
    memory[...] = values
    memory.flags.writeable = writeable
    return memory


def is_same_memory(workspace, name, array):
    return np.shares_memory(workspace.get(name).plain(), array)


def net_of(*ops, inputs=("x", "w"), output="y"):
    net = NetDef(name="net", op=ops)
    net.external_input.extend(inputs)
    net.external_output.append(output)
    return net


ADD = make_op("Add", ["x", "w"], ["y"])


def odd(array):
    """The same elements at an address that is no multiple of 64."""
    memory = aligned_zeros(array.nbytes + 4)[4:].view(array.dtype)
    memory[...] = array
    memory.flags.writeable = False
    return memory


def strided(array):
    memory = np.repeat(array, 2)[::2]
    memory.flags.writeable = False
    return memory


def test_only_what_cannot_change_is_adopted():
    workspace, w = Workspace(), given([1, 2])
    for adopt, array in (
        (True, w),
        (False, w),
        (True, given([1, 2], writeable=True)),
        (True, odd(w)),
        (True, strided(w)),
    ):
        workspace.remove("w") if workspace.has("w") else None
        workspace.feed("w", array, adopt=adopt)
        assert is_same_memory(workspace, "w", array) == (adopt and array is w)
        assert workspace.fetch("w").tolist() == [1, 2]


def test_a_fetched_value_is_a_copy():
    workspace, w = Workspace(), given([1, 2])
    workspace.feed("w", w, adopt=True)
    fetched = workspace.fetch("w")
    fetched[:] = 7
    assert w.tolist() == workspace.fetch("w").tolist() == [1, 2]


def test_feeding_again_leaves_the_array_alone():
    workspace, w = Workspace(), given([1, 2])
    workspace.feed("w", w, adopt=True)
    workspace.feed("x", np.float32([10, 20]))
    workspace.create_net(net_of(ADD))
    workspace.run_net("net")
    assert workspace.fetch("y").tolist() == [11, 22]
    for values in ([3, 4], [5, 6]):  # into memory of its own, and then into the same memory
        workspace.feed("w", np.float32(values))
        workspace.run_net("net")
        assert workspace.fetch("y").tolist() == [10 + values[0], 20 + values[1]]
    assert w.tolist() == [1, 2]


@pytest.mark.parametrize("before", [False, True], ids=["written", "read_before"])
def test_a_net_that_writes_the_blob_leaves_the_array_alone(before):
    workspace, w = Workspace(), given([1, 2])
    workspace.feed("w", w, adopt=True)
    workspace.feed("x", np.float32([10, 20]))
    workspace.create_net(net_of(ADD))
    if before:
        workspace.run_net("net")
    update = NetDef(name="update", op=[make_op("WeightedSum", ["w", "one", "x", "one"], ["w"])])
    workspace.feed("one", np.float32([1]))
    workspace.create_net(update)
    for _ in range(2):
        workspace.run_net("update")
    assert w.tolist() == [1, 2] and workspace.fetch("w").tolist() == [21, 42]
    workspace.run_net("net")
    assert workspace.fetch("y").tolist() == [31, 62]


def test_a_net_that_writes_rows_of_the_blob_leaves_the_array_alone():
    workspace, w = Workspace(), given([[1, 2], [3, 4]])
    workspace.feed("w", w, adopt=True)
    workspace.feed("rows", np.int64([1]))
    workspace.feed("new", np.float32([[5, 6]]))
    workspace.run_net_once(NetDef(name="scatter", op=[make_op("ScatterAssign", ["w", "rows", "new"], ["w"])]))
    assert w.tolist() == [[1, 2], [3, 4]] and workspace.fetch("w").tolist() == [[1, 2], [5, 6]]


def test_a_blob_takes_a_copy_before_it_is_written_to():
    workspace, w = Workspace(), given([1, 2])
    workspace.feed("w", w, adopt=True)
    blob = workspace.get("w")
    blob.own_value()
    own = blob.plain()
    assert own.flags.writeable and not np.shares_memory(own, w) and own.tolist() == [1, 2]
    blob.own_value()
    assert blob.plain() is own


def test_predictors_share_an_array_until_one_is_fed():
    w = given([1, 2])
    both = [Predictor(NetDef(), net_of(ADD), parameters={"w": w}, adopt=True) for _ in range(2)]
    assert all(is_same_memory(each.workspace, "w", w) for each in both)
    x = np.float32([[10, 20]])[0]
    both[0].workspace.feed("w", np.float32([3, 4]))
    assert [each.run(x=x)["y"].tolist() for each in both] == [[13, 24], [11, 22]]
    assert w.tolist() == [1, 2]


def test_parameters_are_copied_by_default():
    w = given([1, 2], writeable=True)
    predictors = [Predictor(NetDef(), net_of(ADD), parameters={"w": w}, adopt=adopt) for adopt in (False, True)]
    w[:] = 9
    assert all(each.run(x=np.float32([10, 20]))["y"].tolist() == [11, 22] for each in predictors)
