"""What follows from signatures: specs of outputs, refusals of inputs, and gradient operators by convention."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from house import ROOT
from netbuilder.ops.activations.softmax import SoftmaxGradient
from netbuilder.ops.core.operator import STRING, Operator, TensorSpec, decode
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.core.signatures import FLOATS, Blob, is_gradient, of_gradient, parsed
from netbuilder.proto import NetError, ShapeError
from netbuilder.proto.arguments import make_op
from suite import f32, i32, i64


@dataclass(frozen=True)
class Product(Operator):
    """Y = X W^T, in ``copies``."""

    signature = "X (N, D): float, W (M, D): as X, b? {M}: as X -> Y (copies, N, M): as X, rows? (N * M): int64"
    copies: int = 2


@dataclass(frozen=True)
class Joined(Operator):
    """Y = what all X have in common; each Z is as its X."""

    signature = "scale {1}: float|int, X+ (N, *S): one float -> total (prod(S), len(S)): as X, Z+: as X"


@dataclass(frozen=True)
class Images(Operator):
    """Y = X."""

    signature = "handle: object, X (N, C, H, W) or (N, C): float, k (C): int -> Y: as X"


@dataclass(frozen=True)
class OnAxis(Operator):
    """Y has the extents around an axis."""

    signature = "X (*A, N @ axis, *B): any, w (N): float -> Y (*A, *B): as X, rest (*B): as w"
    axis: int = 1


@dataclass(frozen=True)
class Split(Operator):
    """Y is a matrix: rows before the axis, columns from there."""

    signature = "X (*A, *B @ axis): any -> Y (prod(A), prod(B)): as X"
    axis: int = 1
    remedies = {"X": "flatten it first"}


@dataclass(frozen=True)
class Ordered(Operator):
    """The mean of each channel, where ``order`` says; of those that ``k`` names, if it is given."""

    signature = """
    X (N, C, *S) if NCHW else (N, *S, C): float
    k? (K): int
    -> Y (N, K) if k else (N, C): wide X
    """
    order: str = "NCHW"


HALF = TensorSpec((2, 3, 4), np.dtype(np.float16))


@pytest.mark.parametrize(
    ("op", "n_out", "inputs", "outputs"),
    [
        (OnAxis(), 2, [f32(2, 3, 4, 5), f32(3)], [f32(2, 4, 5), f32(4, 5)]),
        (OnAxis(axis=-1), 2, [f32(2, 3), f32(3)], [f32(2), f32()]),
        (Split(), 1, [f32(2, 3, 4)], [f32(2, 12)]),
        (Split(axis=-1), 1, [f32(2, 3, 4)], [f32(6, 4)]),
        (Split(axis=3), 1, [f32(2, 3, 4)], [f32(24, 1)]),
        (Split(axis=0), 1, [f32()], [f32(1, 1)]),
        (Ordered(), 1, [f32(2, 3, 4, 5)], [f32(2, 3)]),
        (Ordered(order="NHWC"), 1, [f32(2, 3, 4, 5)], [f32(2, 5)]),
        (Ordered(), 1, [f32(2, 3, 4), i64(7)], [f32(2, 7)]),
        (Ordered(), 1, [HALF], [f32(2, 3)]),
        (Product(copies=3), 1, [f32(2, 5), f32(4, 5)], [f32(3, 2, 4)]),
        (Product(), 2, [f32(2, 5), f32(4, 5), f32(2, 2)], [f32(2, 2, 4), i64(8)]),
        (Joined(), 3, [i32(1, 1), f32(2, 3, 4), f32(2, 3, 4)], [f32(12, 2), f32(2, 3, 4), f32(2, 3, 4)]),
        (Images(), 1, [TensorSpec((), STRING), f32(2, 3), i32(3)], [f32(2, 3)]),
        (Images(), 1, [TensorSpec((), STRING), f32(2, 3, 1, 1), i64(3)], [f32(2, 3, 1, 1)]),
    ],
)
def test_outputs_follow(op, n_out, inputs, outputs):
    assert list(op.with_arity(len(inputs), n_out).infer(*inputs)) == outputs


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (Product(), [f32(2, 5, 1), f32(4, 5)], "Product: X must have shape (N, D), got (2, 5, 1)"),
        (Product(), [f32(2, 5), f32(4, 6)], "Product: W must have shape (M, 5) = (M, D), got (4, 6)"),
        (Product(), [f32(2, 5), f32(4, 5), f32(3)], "Product: b must have 4 elements, got shape (3,)"),
        (Product(), [f32(2, 5), i32(4, 5)], "Product: the inputs must have one floating type, got X float32, "),
        (Joined(), [f32(2), f32(2, 3)], "Joined: scale must have one element, got shape (2,)"),
        (Joined(), [f32(), f32(2, 3), f32(2, 4)], "Joined: input 2, X, must have the shape of X, (2, 3), got (2, 4)"),
        (Joined(), [TensorSpec((), np.dtype(bool)), f32(2)], "scale must have elements of type float or int, got bool"),
        (Images(), [f32(), f32(2, 3), i32(3)], "Images: input 0 must be a handle, got a tensor of type float32"),
        (
            Images(),
            [TensorSpec((), STRING), f32(2), i32(3)],
            "X must have shape (N, C, H, W) or (N, C), got (2,)",
        ),
        (OnAxis(), [f32(2), f32(3)], "OnAxis: axis must lie in [-1, 1) for X of shape (2,), got 1"),
        (OnAxis(), [f32(2, 3), f32(2)], "OnAxis: w must have shape (3,) = (N,), got (2,)"),
        (Split(axis=4), [f32(2, 3)], "for X of shape (2, 3), got 4; flatten it first"),
        (Ordered(order="NHWC"), [f32(2)], "Ordered: X must have shape (N, *S, C), got (2,)"),
        (Ordered(), [f32(2)], "Ordered: X must have shape (N, C, *S), got (2,)"),
        (SoftmaxGradient(), [f32(3, 4), f32(4, 3)], "dY must have the shape of Y, (3, 4), got (4, 3)"),
    ],
)
def test_inputs_are_checked(op, inputs, message):
    with pytest.raises(ShapeError) as refused:
        op.with_arity(len(inputs), 1).infer(*inputs)
    assert message in str(refused.value)


def test_one_type_of_several_tensors():
    with pytest.raises(ShapeError, match="one floating type, got X float32, input 2 float64"):
        Joined().with_arity(3, 1).infer(f32(), f32(2), TensorSpec((2,), np.dtype(np.float64)))


@pytest.mark.parametrize("signature", ["X (*S): any -> Y (...): as X", "X (*S): any -> Y (*S): float", "X -> Y"])
def test_what_does_not_follow_is_not_made_up(signature):
    class Vague(Operator):
        pass

    Vague.signature = signature
    with pytest.raises(NotImplementedError, match="shapes cannot be inferred"):
        Vague().with_arity(1, 1).infer(f32(2))


def test_extents_are_expressions_of_known_functions_alone():
    class Wrong(Operator):
        signature = "X (N): any -> Y (N.__class__): as X"

    with pytest.raises(NetError, match=r"extent 'N.__class__'; it may have numbers, symbols and"):
        Wrong().infer(f32(2))


def test_gradients_are_as_the_forward_operator_says():
    stated = of_gradient("Y, dY, W? -> dX, dW", "X (*S): float, W (D): as X -> Y (*S): as X, loss (): as X")
    assert stated.inputs == (
        Blob("Y", (("*S",),), FLOATS, "", ""),
        Blob("dY", (("*S",),), (), "Y", ""),
        Blob("W?", (("D",),), (), "Y", ""),
    )
    assert stated.outputs == (Blob("dX", (("*S",),), (), "Y", ""), Blob("dW", (), (), "W", ""))
    assert of_gradient("dloss -> dX", "X (*S): float -> loss (): as X").inputs[0].shapes == (("{1}",),)


def test_all_operators_state_their_inputs_and_outputs():
    for name in operator_types():
        cls = find(name)
        stated = parsed(cls.signature)
        assert stated.is_stated or is_gradient(cls), name
        assert (len(stated.inputs), len(stated.outputs)) == (len(cls.inputs), len(cls.outputs)), name
        cls.shape_rules()


def test_signatures_hold_without_docstrings():
    code = (
        "from netbuilder.ops.core.registry import find\n"
        "print(find('FC').inputs, find('FC').__doc__, find('Relu').infer)"
    )
    run = subprocess.run([sys.executable, "-OO", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("('X', 'W', 'b') None <function Operator.infer")


@pytest.mark.parametrize("op_type", ["MaxGradient", "MinGradient"])
def test_more_gradients_than_inputs_are_refused(op_type):
    op = decode(find(op_type), make_op(op_type, ["Y", "dY", "X"], ["d", "e"]))
    with pytest.raises(ShapeError, match="makes one dX for each X, here 1; got 2 outputs"):
        op.infer(*[TensorSpec((2, 3), np.dtype(np.float32))] * 3)
