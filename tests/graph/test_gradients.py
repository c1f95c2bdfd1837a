"""Gradient construction: the operators made, name by name, and that they compute the gradient."""

import numpy as np
import pytest

from checks import interpret
from netbuilder.graph import BlobReference, GradientSlice, NameScope, Net
from netbuilder.runtime import Workspace


def text(op) -> str:
    return f"{op.type} {' '.join(op.input)} -> {' '.join(op.output)}"


def backward(build, ys, **options):
    """Return the gradient operators of a net as texts, and where the gradients are."""
    net = Net("n")
    build(net)
    forward = net.op_len
    found = net.AddGradientOperators(ys, **options)
    return [text(op) for op in net.Proto().op[forward:]], {str(blob): str(g) for blob, g in found.items()}


def mlp(net):
    net.FC(["x", "w", "b"], "h")
    net.Relu("h", "h")
    net.FC(["h", "w2", "b2"], "y")
    net.AveragedLoss("y", "loss")


def branches(net):
    net.FC(["x", "w", "b"], "h")
    net.Sum([net.Relu("h", "h1"), net.Sigmoid("h", "h2"), net.Tanh("h", "h3")], "y")
    net.AveragedLoss("y", "loss")


def shared_weight(net):
    net.FC(["x", "w", "b"], "h")
    net.Relu("h", "h1")
    net.FC(["h1", "w", "b"], "h2")
    net.FC(["h2", "w", "b"], "y")
    net.AveragedLoss("y", "loss")


def residual(net):
    net.Relu("x", "r")
    net.Sum(["r", "x"], "s")
    net.Relu("s", "s")
    net.Sum(["s", "x"], "t")
    net.AveragedLoss("t", "loss")


def same_name_again(net):
    x = "x"
    for i in range(3):
        net.FC([x, "w", "b"], "h")
        x = net.Relu("h", f"h{i}")
    net.AveragedLoss(x, "loss")


def two_losses(net):
    net.AveragedLoss(net.Relu("x", "r"), "loss1")
    net.AveragedLoss(net.Tanh("x", "t"), "loss2")


def repeated_input(net):
    net.Mul(["x", "x"], "y")
    net.Mul(["y", "x"], "z")
    net.AveragedLoss("z", "loss")


def repeated_sum(net):
    net.Sum(["x", "x", "z", "x"], "y")
    net.Sum(["y", net.Relu("x", "r")], "s")
    net.AveragedLoss("s", "loss")


LOSS_OF_Y = ["ConstantFill loss -> loss_autogen_grad", "AveragedLossGradient y loss_autogen_grad -> y_grad"]
MLP = [
    "FCGradient h w2 y_grad -> w2_grad b2_grad h_grad",
    "ReluGradient h h_grad -> h_grad",
    "FCGradient x w h_grad -> w_grad b_grad x_grad",
]


@pytest.mark.parametrize(
    ("build", "losses", "operators"),
    [
        (mlp, ["loss"], LOSS_OF_Y + MLP),
        (mlp, [BlobReference("loss"), "loss"], LOSS_OF_Y + MLP),
        (mlp, {"loss": "loss_grad"}, ["AveragedLossGradient y loss_grad -> y_grad", *MLP]),
        (mlp, {"loss": None}, LOSS_OF_Y + MLP),
        (mlp, [], []),
        (
            mlp,
            ["y", "loss"],
            [
                "ConstantFill y -> y_autogen_grad",
                "ConstantFill loss -> loss_autogen_grad",
                "AveragedLossGradient y loss_autogen_grad -> _y_grad_autosplit_0",
                "Sum y_autogen_grad _y_grad_autosplit_0 -> y_autogen_grad",
                "FCGradient h w2 y_autogen_grad -> w2_grad b2_grad h_grad",
                *MLP[1:],
            ],
        ),
        (
            branches,
            ["loss"],
            [
                *LOSS_OF_Y,
                "TanhGradient h3 y_grad -> h_grad",
                "SigmoidGradient h2 y_grad -> _h_grad_autosplit_0",
                "ReluGradient h1 y_grad -> _h_grad_autosplit_1",
                "Sum h_grad _h_grad_autosplit_0 _h_grad_autosplit_1 -> h_grad",
                "FCGradient x w h_grad -> w_grad b_grad x_grad",
            ],
        ),
        (
            branches,
            ["loss", "h"],
            [
                "ConstantFill loss -> loss_autogen_grad",
                "ConstantFill h -> h_autogen_grad",
                "AveragedLossGradient y loss_autogen_grad -> y_grad",
                "TanhGradient h3 y_grad -> _h_grad_autosplit_0",
                "SigmoidGradient h2 y_grad -> _h_grad_autosplit_1",
                "ReluGradient h1 y_grad -> _h_grad_autosplit_2",
                "Sum h_autogen_grad _h_grad_autosplit_0 _h_grad_autosplit_1 _h_grad_autosplit_2 -> h_autogen_grad",
                "FCGradient x w h_autogen_grad -> w_grad b_grad x_grad",
            ],
        ),
        (
            shared_weight,
            ["loss"],
            [
                *LOSS_OF_Y,
                "FCGradient h2 w y_grad -> w_grad b_grad h2_grad",
                "FCGradient h1 w h2_grad -> _w_grad_autosplit_0 _b_grad_autosplit_0 h1_grad",
                "ReluGradient h1 h1_grad -> h_grad",
                "FCGradient x w h_grad -> _w_grad_autosplit_1 _b_grad_autosplit_1 x_grad",
                "Sum w_grad _w_grad_autosplit_0 _w_grad_autosplit_1 -> w_grad",
                "Sum b_grad _b_grad_autosplit_0 _b_grad_autosplit_1 -> b_grad",
            ],
        ),
        (
            residual,
            ["loss"],
            [
                "ConstantFill loss -> loss_autogen_grad",
                "AveragedLossGradient t loss_autogen_grad -> t_grad",
                "ReluGradient s t_grad -> s_grad",
                "ReluGradient r s_grad -> x_grad",
                "Sum x_grad s_grad t_grad -> x_grad",
            ],
        ),
        (
            same_name_again,
            ["loss"],
            [
                "ConstantFill loss -> loss_autogen_grad",
                "AveragedLossGradient h2 loss_autogen_grad -> h2_grad",
                "ReluGradient h2 h2_grad -> h_grad",
                "FCGradient h1 w h_grad -> w_grad b_grad h1_grad",
                "ReluGradient h1 h1_grad -> h_grad",
                "FCGradient h0 w h_grad -> _w_grad_autosplit_0 _b_grad_autosplit_0 h0_grad",
                "ReluGradient h0 h0_grad -> h_grad",
                "FCGradient x w h_grad -> _w_grad_autosplit_1 _b_grad_autosplit_1 x_grad",
                "Sum w_grad _w_grad_autosplit_0 _w_grad_autosplit_1 -> w_grad",
                "Sum b_grad _b_grad_autosplit_0 _b_grad_autosplit_1 -> b_grad",
            ],
        ),
        (
            two_losses,
            ["loss1", "loss2"],
            [
                "ConstantFill loss1 -> loss1_autogen_grad",
                "ConstantFill loss2 -> loss2_autogen_grad",
                "AveragedLossGradient t loss2_autogen_grad -> t_grad",
                "TanhGradient t t_grad -> x_grad",
                "AveragedLossGradient r loss1_autogen_grad -> r_grad",
                "ReluGradient r r_grad -> _x_grad_autosplit_0",
                "Sum x_grad _x_grad_autosplit_0 -> x_grad",
            ],
        ),
        (
            two_losses,
            ["loss2"],
            [
                "ConstantFill loss2 -> loss2_autogen_grad",
                "AveragedLossGradient t loss2_autogen_grad -> t_grad",
                "TanhGradient t t_grad -> x_grad",
            ],
        ),
        (
            repeated_input,
            ["loss"],
            [
                "ConstantFill loss -> loss_autogen_grad",
                "AveragedLossGradient z loss_autogen_grad -> z_grad",
                "MulGradient z_grad y x -> y_grad x_grad",
                "MulGradient y_grad x x -> _x_grad_autosplit_0 _x_grad_autosplit_1",
                "Sum x_grad _x_grad_autosplit_0 _x_grad_autosplit_1 -> x_grad",
            ],
        ),
        (
            repeated_sum,
            ["loss"],
            [
                "ConstantFill loss -> loss_autogen_grad",
                "AveragedLossGradient s loss_autogen_grad -> s_grad",
                "ReluGradient r s_grad -> x_grad",
                "Sum x_grad s_grad s_grad s_grad -> x_grad",
            ],
        ),
        (lambda net: net.Relu("x", "y"), ["x"], ["ConstantFill x -> x_autogen_grad"]),
    ],
)
def test_operators_as_caffe2_makes_them(build, losses, operators):
    assert backward(build, losses)[0] == operators


def test_the_returned_map():
    assert backward(mlp, ["loss"])[1] == {
        "loss": "loss_autogen_grad", "y": "y_grad", "h": "h_grad", "w2": "w2_grad", "b2": "b2_grad", "x": "x_grad",
        "w": "w_grad", "b": "b_grad",
    }  # fmt: skip
    found = backward(residual, ["loss"])[1]
    assert found == {"loss": "loss_autogen_grad", "t": "t_grad", "s": "s_grad", "x": "x_grad", "r": "s_grad"}


def test_skipped_operators_are_not_differentiated():
    def build(net):
        net.Relu(net.Relu(net.Relu("x", "a"), "b"), "c")

    assert backward(build, ["c"], skip=1)[0][1:] == [
        "ReluGradient c c_autogen_grad -> b_grad",
        "ReluGradient b b_grad -> a_grad",
    ]


def test_names_keep_their_scopes():
    def build(net):
        with NameScope("s"):
            net.AveragedLoss(net.FC(["x", "w", "b"], "h"), "loss")

    assert backward(build, ["s/loss"])[0][-1] == "FCGradient s/x s/w s/h_grad -> s/w_grad s/b_grad s/x_grad"


# -- numbers ------------------------------------------------------------------------------------


def check_numbers(build, losses, feeds, wanted):
    """Compare the gradients of the sum of the losses with central differences, in double precision."""
    net = Net("n")
    build(net)
    forward = list(net.Proto().op)
    found = net.AddGradientOperators(losses)
    blobs = interpret(net.Proto().op, feeds)

    def total(name, value):
        done = interpret(forward, {**feeds, name: value})
        return sum(float(np.sum(done[loss])) for loss in losses)

    for name in wanted:
        where = found[BlobReference(name)]
        if isinstance(where, GradientSlice):
            got = np.zeros_like(feeds[name])
            np.add.at(got, blobs[str(where.indices)], blobs[str(where.values)])
        else:
            got = blobs[str(where)]
        assert got.shape == feeds[name].shape
        want = np.zeros_like(feeds[name])
        for at in np.ndindex(want.shape):
            step = np.zeros_like(want)
            step[at] = 1e-5
            want[at] = (total(name, feeds[name] + step) - total(name, feeds[name] - step)) / 2e-5
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8, err_msg=name)


def values(*shape, seed=0):
    return np.random.default_rng(seed + len(shape)).uniform(0.2, 1.0, shape)


FEEDS = {"x": values(2, 3), "w": values(3, 3, seed=1), "b": values(3), "w2": values(4, 3, seed=2), "b2": values(4)}


@pytest.mark.parametrize(
    ("build", "losses", "wanted"),
    [
        (mlp, ["loss"], ["x", "w", "b", "w2", "b2"]),
        (mlp, ["y", "loss"], ["x", "w", "w2"]),
        (branches, ["loss"], ["x", "w", "b"]),
        (branches, ["loss", "h"], ["x", "w", "b"]),
        (shared_weight, ["loss"], ["x", "w", "b"]),
        (residual, ["loss"], ["x"]),
        (same_name_again, ["loss"], ["x", "w", "b"]),
        (two_losses, ["loss1", "loss2"], ["x"]),
        (repeated_input, ["loss"], ["x"]),
    ],
)
def test_numbers(build, losses, wanted):
    check_numbers(build, losses, FEEDS, wanted)


def test_a_gradient_still_to_be_read_is_not_overwritten():
    """Caffe2 names the gradients of both versions of h the same, and q gets a wrong gradient."""

    def build(net):
        net.Scale("x", "h", scale=2.0)
        net.FC(["x", "w", "b"], "q")
        net.Scale("h", "h", scale=3.0)
        net.Sum(["h", "q"], "h")
        net.AveragedLoss("h", "loss")

    operators, found = backward(build, ["loss"])
    assert "Scale h_grad -> h_grad_version_0" in operators
    assert found["h"] == "h_grad_version_0" and found["q"] == "h_grad"
    check_numbers(build, ["loss"], FEEDS, ["x", "w", "b"])


def test_a_blob_written_twice_has_two_gradients():
    def build(net):
        net.Relu("x", "a")
        net.AveragedLoss("a", "loss1")
        net.Scale("w", "a", scale=2.0)
        net.AveragedLoss("a", "loss2")

    # Relu's gradient needs the first a, so the net with both losses is refused; the second alone is not.
    check_numbers(build, ["loss2"], FEEDS, ["w"])
    assert "x" not in backward(build, ["loss2"])[1]


# -- stopped gradients --------------------------------------------------------------------------


def test_stop_gradient():
    def build(net):
        net.StopGradient("x", "xs")
        net.Sum([net.Relu("x", "r"), "xs"], "s")
        net.AveragedLoss("s", "loss")

    operators, found = backward(build, ["loss"])
    assert operators[2:] == ["ReluGradient r s_grad -> x_grad"]
    assert found["xs"] == "s_grad" and found["x"] == "x_grad"


def test_stop_gradient_in_place_leaves_no_gradient():
    def build(net):
        net.Relu("x", "r")
        net.StopGradient("r", "r")
        net.AveragedLoss("r", "loss")

    operators, found = backward(build, ["loss"])
    assert operators[1:] == ["AveragedLossGradient r loss_autogen_grad -> r_grad"]
    assert found == {"loss": "loss_autogen_grad"}


# -- sparse gradients ---------------------------------------------------------------------------


def lookups(net):
    net.Sum([net.Gather(["t", "i"], "e"), net.Gather(["t", "j"], "f")], "s")
    net.AveragedLoss("s", "loss")


SPARSE_FEEDS = {"t": values(5, 3), "i": np.int32([1, 1]), "j": np.int32([4, 1]), "x": values(2, 3), "b": values(5)}


def test_one_lookup_needs_no_operator():
    operators, found = backward(lambda net: net.AveragedLoss(net.Gather(["t", "i"], "e"), "loss"), ["loss"])
    assert len(operators) == 2
    assert found["t"] == str(GradientSlice(BlobReference("i"), BlobReference("e_grad")))


def test_lookups_are_joined():
    assert backward(lookups, ["loss"])[0][2:] == [
        "Concat j i -> t_grad_indices_concat t_grad_indices_concat_split",
        "Concat s_grad s_grad -> t_grad_values_concat t_grad_values_concat_split",
    ]
    check_numbers(lookups, ["loss"], SPARSE_FEEDS, ["t"])


def test_sparse_and_dense_gradients_are_added():
    def build(net):
        net.Gather(["t", "i"], "e")
        net.FC(["x", "t", "b"], "f")
        net.Sum([net.ReduceSum("e", "e1", keepdims=0), net.ReduceSum("f", "f1", keepdims=0)], "loss")

    operators, found = backward(build, ["loss"])
    assert operators[-2:] == [
        "SparseToDense i e_grad t -> _t_grad_autosplit_0",
        "Sum t_grad _t_grad_autosplit_0 -> t_grad",
    ]
    assert found["t"] == "t_grad"
    check_numbers(build, ["loss"], SPARSE_FEEDS, ["t", "x"])


def test_rows_of_several_sums_and_a_dense_use_are_kept_apart():
    """All gradients of SparseLengthsSum would have the same name."""

    def build(net):
        for name in ("e", "g"):
            total = net.SparseLengthsSum(["t", "i" if name == "e" else "j", f"{name}_lengths"], name)
            net.ReduceSum(net.Mul([total, "x"], f"{name}_x"), f"{name}1", keepdims=0)
        net.ReduceSum(net.FC(["x", "t", "b"], "f"), "f1", keepdims=0)
        net.Sum(["e1", "g1", "f1"], "loss")

    operators, _ = backward(build, ["loss"])
    assert operators[-3:] == [
        "SparseToDense j _t_grad_values_autosplit_0 t -> _t_grad_autosplit_0",
        "SparseToDense i _t_grad_values_autosplit_1 t -> _t_grad_autosplit_1",
        "Sum t_grad _t_grad_autosplit_0 _t_grad_autosplit_1 -> t_grad",
    ]
    lengths = {"e_lengths": np.int32([2, 0]), "g_lengths": np.int32([1, 1])}
    check_numbers(build, ["loss"], {**SPARSE_FEEDS, **lengths}, ["t", "x"])


def test_a_part_off_the_way_to_the_loss_may_be_overwritten():
    net = Net("split")
    net.Split("x", ["a", "b"], axis=0)
    net.Relu("b", "b")
    net.SumElements("a", "loss")
    gradients = net.AddGradientOperators(["loss"])
    workspace = Workspace()
    workspace.feed("x", np.ones((4, 1), np.float32))
    workspace.run_net_once(net)
    assert workspace.fetch(str(gradients["x"])).ravel().tolist() == [1, 1, 0, 0]
