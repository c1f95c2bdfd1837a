"""Kernels in two halves: the second half waits as late as possible, also after errors."""

from dataclasses import dataclass

import numpy as np
import pytest

from netbuilder import Workspace
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.extensions import SplitKernel
from netbuilder.ops.core.operator import Operator
from netbuilder.proto import NetDef, OperatorError
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime.profile.call import describe_step
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits

X = np.float32([1, 2, 3])


@pytest.fixture
def toy(own_operators):
    """An operator that doubles a value between its halves, another that notes when it runs; return the notes."""
    notes = []

    @dataclass(frozen=True)
    class Begins(Operator):
        signature = "X -> Y"
        inplace = ((0, 0),)
        fails: str = ""

        def infer(self, x):
            return (x,)

    @dataclass(frozen=True)
    class Notes(Operator):
        signature = "X -> Y"
        inplace = ((0, 0),)
        fails: bool = False

        def infer(self, x):
            return (x,)

    def begins(op, ctx, x):
        name = ctx.op_def.output[0]

        def bind(inputs, outputs, scratch):
            (given,), (out,) = inputs, outputs

            def wait():
                notes.append(f"wait {name}")
                if op.fails == "wait":
                    raise RuntimeError("lost")
                np.multiply(given, 2, out)  # only now, so that an earlier read or write gives a wrong result

            def begin():
                notes.append(f"begin {name}")
                if op.fails == "begin":
                    raise RuntimeError("not sent")
                if out is not given:
                    out.fill(np.nan)
                return wait

            return begin

        return Prepared(
            [x], [x], bind, inplace=[(0, 0)] if name == "same" else (), name="toy", extensions=(SplitKernel(),)
        )

    def noting(op, ctx, x):
        notes.append(f"run {ctx.op_def.output[0]}")
        if op.fails:
            raise RuntimeError("broken")
        return (x + 1,)

    for cls in (Begins, Notes):
        own_operators.register(cls)
    own_operators.prepare(Begins, device=own_operators.CPU)(begins)
    own_operators.kernel(Begins)(lambda op, ctx, x: (2 * x,))
    own_operators.kernel(Notes)(noting)
    return notes


def run(notes, *operators, net_type="simple", runs=2, **options):
    """Run operators over x; return the workspace. The notes are those of the last run."""
    net = NetDef(name="net", type=net_type, num_workers=4, external_input=["x"])
    net.op.extend(operators)
    workspace = Workspace(threads=2, **options)
    workspace.feed("x", X)
    workspace.create_net(net)
    for _ in range(runs):
        notes.clear()
        workspace.run_net("net")
    return workspace


def test_the_wait_comes_before_the_first_reader(toy):
    workspace = run(
        toy,
        make_op("Begins", ["x"], ["a"]),
        make_op("Begins", ["x"], ["b"]),
        make_op("Notes", ["x"], ["c"]),
        make_op("Notes", ["b"], ["d"]),
        make_op("Notes", ["c"], ["e"]),
        make_op("Notes", ["a"], ["f"]),
    )
    assert toy == ["begin a", "begin b", "run c", "wait b", "run d", "run e", "wait a", "run f"]
    for name, want in {"a": 2 * X, "b": 2 * X, "c": X + 1, "d": 2 * X + 1, "e": X + 2, "f": 2 * X + 1}.items():
        np.testing.assert_array_equal(workspace.fetch(name), want)


def test_without_a_reader_it_comes_at_the_end(toy):
    workspace = run(toy, make_op("Begins", ["x"], ["a"]), make_op("Notes", ["x"], ["b"]))
    assert toy == ["begin a", "run b", "wait a"]
    np.testing.assert_array_equal(workspace.fetch("a"), 2 * X)


def test_of_several_waits_in_a_row_the_last_that_was_begun_comes_first(toy):
    names = ["a", "b", "c"]
    begins = [make_op("Begins", ["x"], [name]) for name in names]
    workspace = run(toy, *begins, make_op("Sum", names, ["y"]), make_op("Begins", ["y"], ["d"]))
    assert [note for note in toy if note.startswith("wait")] == ["wait c", "wait b", "wait a", "wait d"]
    np.testing.assert_array_equal(workspace.fetch("d"), 12 * X)


def test_it_comes_before_what_the_kernel_reads_is_overwritten(toy):
    workspace = run(
        toy,
        make_op("Notes", ["x"], ["a"]),
        make_op("Begins", ["a"], ["b"]),
        make_op("Notes", ["x"], ["c"]),
        make_op("Notes", ["a"], ["a"]),
    )
    assert toy == ["run a", "begin b", "run c", "wait b", "run a"]
    np.testing.assert_array_equal(workspace.fetch("b"), 2 * (X + 1))


def test_it_comes_before_what_the_kernel_writes_is_overwritten(toy):
    workspace = run(
        toy, make_op("Begins", ["x"], ["a"]), make_op("Notes", ["x"], ["b"]), make_op("Notes", ["b"], ["a"])
    )
    assert toy == ["begin a", "run b", "wait a", "run a"]
    np.testing.assert_array_equal(workspace.fetch("a"), X + 2)


def test_it_comes_before_an_operator_that_names_it_as_a_control_input(toy):
    after = make_op("Notes", ["x"], ["c"])
    after.control_input.append("a")
    run(toy, make_op("Begins", ["x"], ["a"]), make_op("Notes", ["x"], ["b"]), after)
    assert toy == ["begin a", "run b", "wait a", "run c"]


@pytest.mark.parametrize("name", ["same", "other"])
def test_in_place_and_by_a_copy(toy, name):
    """Kernel "same" may overwrite its input; for "other" the plan copies, when the work is done."""
    workspace = run(
        toy, make_op("Notes", ["x"], [name]), make_op("Begins", [name], [name]), make_op("Notes", ["x"], ["c"])
    )
    assert toy == [f"run {name}", f"begin {name}", "run c", f"wait {name}"]
    np.testing.assert_array_equal(workspace.fetch(name), 2 * (X + 1))


def test_memory_is_not_used_again_before_the_wait(toy):
    chain = [make_op("Notes", ["x"], ["t0"]), make_op("Begins", ["t0"], ["a"])]
    chain += [make_op("Notes", [f"t{i}"], [f"t{i + 1}"]) for i in range(4)]
    net = NetDef(name="net", external_input=["x"])
    net.op.extend([*chain, make_op("Sum", ["a", "t4"], ["y"])])
    workspace = Workspace()
    workspace.feed("x", X)
    workspace.create_net(net, observable=["y"])
    workspace.run_net("net", 2)
    np.testing.assert_array_equal(workspace.fetch("y"), 2 * (X + 1) + X + 5)
    assert toy[-6:] == ["begin a", *(f"run t{i}" for i in range(1, 5)), "wait a"]


def test_another_lane_waits_for_the_wait(toy):
    """Device 1 begins; device 0 reads: the wait is the beginner's, in its lane."""
    on = [make_device_option(0, k) for k in range(2)]
    operators = [
        make_op("Begins", ["x"], ["a"], device_option=on[1]),
        make_op("Notes", ["x"], ["b"], device_option=on[1]),
        make_op("Notes", ["a"], ["c"], device_option=on[0]),
    ]
    for _ in range(20):
        workspace = run(toy, *operators, net_type="dag")
        assert toy == ["begin a", "run b", "wait a", "run c"]
        np.testing.assert_array_equal(workspace.fetch("c"), 2 * X + 1)


@pytest.mark.parametrize("net_type", ["simple", "dag"])
def test_after_an_error_what_was_begun_is_waited_for(toy, net_type):
    net = NetDef(name="net", type=net_type, num_workers=4, external_input=["x"])
    options = {"device_option": make_device_option(0, 1)}
    net.op.extend([make_op("Begins", ["x"], ["a"]), make_op("Notes", ["a"], ["d"], **options)])
    net.op.insert(1, make_op("Notes", ["x"], ["b"], fails=True))
    workspace = Workspace(threads=2)
    workspace.feed("x", X)
    workspace.create_net(net)
    for _ in range(2):
        toy.clear()
        with pytest.raises(OperatorError, match=r"Notes \['x'\] -> \['b'\].*broken"):
            workspace.run_net("net")
        assert toy == ["begin a", "run b", "wait a"]


@pytest.mark.parametrize(("half", "notes"), [("begin", ["begin a"]), ("wait", ["begin a", "run b", "wait a"])])
def test_an_error_of_either_half_is_the_operators(toy, half, notes):
    with pytest.raises(OperatorError, match=r"operator 0: Begins \['x'\] -> \['a'\]"):
        run(toy, make_op("Begins", ["x"], ["a"], fails=half), make_op("Notes", ["x"], ["b"]))
    assert toy == notes


def test_a_profile_shows_both_halves(toy):
    operators = [make_op("Begins", ["x"], ["a"]), make_op("Notes", ["x"], ["b"])]
    workspace = run(toy, *operators)
    limits = {"CPU": Limits(1e12, "a guess", 1e11, 1)}
    found = profile(workspace, "net", runs=2, limits=limits)
    assert [(call.name, call.operators, call.nbytes) for call in found.calls if call.category != "copy"] == [
        ("Begins a", ("Begins a",), 24), ("Notes b", ("Notes b",), 24), ("wait a", (), 0)
    ]  # fmt: skip
    wait = workspace.net("net").plans[-1].steps[-1]
    assert describe_step(wait, count=1, seconds=0.0, spans=()).reason.startswith("waits for Begins")


def test_a_split_kernel_has_no_scratch_memory():
    with pytest.raises(ValueError, match="kernel 'toy' is split.* it must have none, got scratch=8; let bind allocate"):
        Prepared([], [], lambda ins, outs, scratch: None, scratch=8, name="toy", extensions=(SplitKernel(),))
