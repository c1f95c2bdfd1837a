"""Print."""

import numpy as np
import pytest

from netbuilder.ops.control.print_op import Print
from netbuilder.ops.core.operator import decode
from netbuilder.proto import ArgumentError, NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, f32, floats, refusal


class TestPrint(OperatorSuite):
    operator = Print
    no_gradient = "it has no output"
    refusals = (refusal(Print(every_n=0), [f32(2)], "every_n must be 1 or more, got 0", ArgumentError),)

    def draw(self, data):
        return Print(limit=2), [data.draw(floats((0, 2), 3))]

    def reference(self, op, x):
        return []


def printed(capsys, value, runs=1, **arguments):
    workspace = Workspace()
    workspace.feed("x", value)
    workspace.create_net(NetDef(name="net", op=[make_op("Print", ["x"], [], **arguments)]))
    workspace.run_net("net", runs)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (np.float32([[1, 2.5], [1e-3, 1 / 3]]), "x: float32 (2, 2): 1, 2.5, 0.001, 0.333333\n"),
        (np.int64([7]), "x: int64 (1,): 7\n"),
        (np.array(True), "x: bool (): True\n"),
        (np.array([b"one", b"two"], object), "x: string (2,): one, two\n"),
        (np.zeros(0, np.float32), "x: float32 (0,): \n"),
    ],
)
def test_the_line(capsys, value, line):
    assert printed(capsys, value) == line


def test_some_elements_and_some_runs(capsys):
    assert printed(capsys, np.int32([1, 2, 3]), limit=2) == "x: int32 (3,): 1, 2, ...\n"
    assert printed(capsys, np.int32([1]), runs=5, every_n=2).count("\n") == 3


def test_files(tmp_path):
    """The lines that Caffe2 wrote; a net that is created again begins the files again."""
    for _ in range(2):
        workspace = Workspace()
        workspace.root_folder = str(tmp_path)
        workspace.feed("m", np.float32([[1, 0.5]]))
        workspace.feed("a/i", np.int64(3))
        net = NetDef(name="net", op=[make_op("Print", [name], [], to_file=1) for name in ("m", "a/i")])
        workspace.create_net(net)
        workspace.run_net("net", 2)
    assert (tmp_path / "m.log").read_text() == "Tensor m of type float. Dims: (1,2,): 1,0.5\n" * 2
    assert (tmp_path / "a" / "i.log").read_text() == "Tensor a/i of type long int. Dims: (): 3\n" * 2


def test_what_is_no_tensor(capsys):
    workspace = Workspace()
    workspace.run_operator_once(make_op("CreateCounter", [], ["counter"]))
    workspace.run_operator_once(make_op("Print", ["counter"], []))
    assert capsys.readouterr().out.startswith("counter: <")


def test_what_is_printed_is_what_was_there_at_its_place_in_the_net(capsys):
    workspace = Workspace()
    workspace.feed("x", np.int32([1]))
    double = make_op("Add", ["x", "x"], ["x"])
    workspace.run_net_once(NetDef(name="net", op=[make_op("Print", ["x"], []), double, make_op("Print", ["x"], [])]))
    assert capsys.readouterr().out == "x: int32 (1,): 1\nx: int32 (1,): 2\n"


def test_it_has_no_output():
    assert decode(Print, make_op("Print", ["x"], [])).infer(f32(2)) == ()
