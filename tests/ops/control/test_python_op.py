"""Python and PythonGradient."""

import numpy as np
import pytest

from checks import DEVICES, GPU, dense_gradient
from netbuilder.graph import Net
from netbuilder.graph.gradient_context import operator_gradient
from netbuilder.ops.control.python_op import Python, PythonGradient, PythonTensor, register, registered
from netbuilder.ops.core.operator import decode, encode
from netbuilder.proto import PROTO_CUDA, ArgumentError, GradientError, NetDef, NetError, OperatorError, TensorProto
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, floats, refusal


def product(inputs, outputs):
    outputs[0].feed(inputs[0].data * inputs[1].data)


def product_gradient(inputs, outputs):
    a, b, _, d = (x.data for x in inputs)
    outputs[0].feed(b * d)
    outputs[1].feed(a * d)


PRODUCT = register(product, product_gradient)


def run(f, values, outputs, device="cpu", workspace=None, times=1, **options):
    """Run a Python operator on blobs x0, x1, ...; return its outputs."""
    workspace = workspace or Workspace()
    names = [f"x{i}" for i in range(len(values))]
    for name, value in zip(names, values):
        workspace.feed(name, value)
    token = f if isinstance(f, str) else register(f, **options)
    op = make_op("Python", names, outputs, token=token)
    if device == GPU:
        op.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.create_net(NetDef(name="run", op=[op]), overwrite=True)
    workspace.run_net("run", times)
    return [workspace.fetch(name) for name in outputs]


class TestPython(OperatorSuite):
    operator = Python
    wrt = (0, 1)
    refusals = (
        refusal(Python(), [], "the argument token, .* is missing", ArgumentError),
        refusal(Python(token="f", grad_input_indices=(1,)), [], r"must lie in \[0, 0\), got 1", ArgumentError),
    )

    def draw(self, data):
        a = data.draw(floats((1, 3), (1, 3)))
        return Python(token=PRODUCT).with_arity(2, 1), [a, data.draw(floats(*a.shape))]

    def reference(self, op, a, b):
        return [a * b]

    def test_inplace(self):
        x = np.float32([1, 2])

        def double(inputs, outputs):
            outputs[0].data[...] *= 2
            np.testing.assert_array_equal(inputs[0].data, outputs[0].data)  # one tensor is both

        (got,) = run(double, [x], ["x0"])
        np.testing.assert_array_equal(got, [2, 4])


class TestPythonGradient(OperatorSuite):
    operator = PythonGradient
    no_gradient = "a gradient operator"
    refuses_nothing = "any inputs may be right for a function"

    def draw(self, data):
        a = data.draw(floats((1, 3)))
        b, d = data.draw(floats(*a.shape)), data.draw(floats(*a.shape))
        return PythonGradient(token=PRODUCT).with_arity(4, 2), [a, b, a * b, d]

    def reference(self, op, a, b, y, d):
        return [b * d, a * d]

    def test_inplace(self):
        assert self.operator.inplace == "one-to-one"


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_of_any_type_and_number(device):
    def f(inputs, outputs):
        assert [x.shape for x in inputs] == [(2,), ()]
        outputs[0].feed(inputs[0].data.astype(np.int64) + inputs[1].data)
        outputs[1].feed(["a", b"bc"])
        outputs[2].init([2, 1], np.float64)

    whole, strings, zeros = run(f, [np.float32([1, 2]), np.array(3, np.int32)], ["a", "b", "c"], device)
    assert whole.dtype == np.int64
    assert whole.tolist() == [4, 5]
    assert strings.tolist() == [b"a", b"bc"]
    assert zeros.dtype == np.float64
    assert zeros.shape == (2, 1)


def test_an_output_keeps_its_value_until_it_is_set_again():
    def count(inputs, outputs):
        outputs[0].reshape([1])
        outputs[0].data[...] += 1

    (got,) = run(count, [], ["count"], times=3)
    assert got.tolist() == [3]


def test_shapes_may_change_between_runs():
    sizes = iter([2, 5])
    workspace = Workspace()
    token = register(lambda inputs, outputs: outputs[0].feed(np.ones(next(sizes), np.float32)))
    net = NetDef(name="grow", op=[make_op("Python", [], ["x"], token=token), make_op("Negative", ["x"], ["y"])])
    workspace.create_net(net)
    for size in (2, 5):
        workspace.run_net("grow")
        assert workspace.fetch("y").tolist() == [-1] * size


def test_inputs_may_not_be_written_into():
    def f(inputs, outputs):
        inputs[0].data[...] = 0

    with pytest.raises(Exception, match="read-only"):
        run(f, [np.ones(2, np.float32)], ["y"])


def test_the_workspace_on_request():
    def f(inputs, outputs, workspace):
        outputs[0].feed(workspace.fetch("other") + 1)

    workspace = Workspace()
    workspace.feed("other", np.float32([1]))
    (got,) = run(f, [], ["y"], workspace=workspace, pass_workspace=True)
    assert got.tolist() == [2]


def test_errors_of_the_function_reach_the_caller_with_the_operator():
    def f(inputs, outputs):
        raise KeyError("lost")

    with pytest.raises(RuntimeError, match=r"Python \['x0'\] -> \['y'\].*KeyError: 'lost'") as caught:
        run(f, [np.ones(2)], ["y"])
    assert isinstance(caught.value.__cause__, KeyError)


class _Needy(Exception):
    def __init__(self, number, text):
        super().__init__(number, text)


class _Strict(Exception):
    def __new__(cls, number, text):
        return super().__new__(cls, number, text)


@pytest.mark.parametrize("error", [KeyError("lost"), StopIteration(), OSError(2, "gone"), _Needy(1, "a")])
def test_errors_of_the_function_are_caught_by_their_own_class(error):
    def f(inputs, outputs):
        raise error

    with pytest.raises(type(error)) as caught:
        run(f, [np.ones(2)], ["y"])
    assert isinstance(caught.value, OperatorError) and caught.value.__cause__ is error
    assert "Python ['x0'] -> ['y']" in str(caught.value) and type(error).__name__ in str(caught.value)


def test_an_error_that_cannot_be_made_again_is_an_operator_error():
    def f(inputs, outputs):
        raise _Strict(1, "a")

    with pytest.raises(OperatorError, match="_Strict") as caught:
        run(f, [np.ones(2)], ["y"])
    assert type(caught.value) is OperatorError and isinstance(caught.value.__cause__, _Strict)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda i, o: None, r"left output 0 \('y'\) without a value"),
        (lambda i, o: o[0].data, "no data yet; call reshape"),
        ("nobody", "no function is registered under the token 'nobody'"),
    ],
)
def test_outputs_and_functions_have_to_be_there(f, message):
    with pytest.raises(NetError, match=message):
        run(f, [], ["y"])


def test_tokens_are_unique_unless_given():
    def f(inputs, outputs):
        pass

    first, second = register(f), register(f)
    assert first != second
    assert registered(first)
    assert not registered("never")
    assert register(f, token=first) == first
    with pytest.raises(TypeError, match="needs functions, got 3"):
        register(f, 3)


def test_the_gradient_operator_is_that_of_caffe2():
    """Inputs, outputs and all chosen gradients in, the chosen gradients out."""
    token = register(product, product_gradient)
    op = make_op("Python", ["a", "b"], ["s", "p"], token=token, grad_output_indices=[1], grad_input_indices=[0])
    (made,), d_inputs = operator_gradient(op, {0: "s_grad", 1: "p_grad"})
    assert made.type == "PythonGradient"
    assert list(made.input) == ["a", "b", "s", "p", "p_grad"]
    assert list(made.output) == ["a_grad"]
    assert d_inputs == {0: "a_grad"}
    assert made.is_gradient_op
    assert decode(PythonGradient, made).token == token
    with pytest.raises(GradientError, match="'s' has no gradient"):
        operator_gradient(make_op("Python", ["a", "b"], ["s", "p"], token=token), {1: "p_grad"})


def test_a_function_without_gradient():
    token = register(lambda inputs, outputs: None)
    with pytest.raises(GradientError, match="has no gradient function; give grad_f, or put a StopGradient"):
        operator_gradient(make_op("Python", ["a"], ["s"], token=token), {0: "s_grad"})
    assert operator_gradient(make_op("Python", [], ["s"], token=token), {0: "s_grad"}) == ([], {})
    with pytest.raises(NetError, match="has no gradient function; register it with grad_f"):
        Workspace().run_operator_once(make_op("PythonGradient", [], ["y"], token=token))


def test_the_gradient_of_some_inputs_only():
    def gradient(inputs, outputs):
        outputs[0].feed(inputs[0].data * inputs[-1].data)

    token = register(product, gradient)
    op = encode(Python(token=token, grad_input_indices=(1,)).with_arity(2, 1), ["a", "b"], ["y"])
    ops, d_inputs = operator_gradient(op, {0: "dy"})
    workspace = Workspace()
    a, b = np.float32([2, 3]), np.float32([5, 7])
    for name, value in {"a": a, "b": b, "dy": np.ones(2, np.float32)}.items():
        workspace.feed(name, value)
    workspace.run_operators_once([op, *ops])
    assert d_inputs.keys() == {1}
    np.testing.assert_array_equal(dense_gradient(d_inputs[1], {"b_grad": workspace.fetch("b_grad")}, (2,)), a)


def test_a_net_with_python_operators_is_differentiated_and_trained():
    net = Net("python")
    net.AddExternalInput("a", "b")
    y = net.Python(product, product_gradient)(["a", "b"], ["y"], name="mine")
    gradients = net.AddGradientOperators([net.SumElements(y, "loss")])
    assert [op.type for op in net.Proto().op][-1] == "PythonGradient"
    assert [a.name for a in net.Proto().op[0].arg] == ["grad_output_indices", "grad_input_indices", "token"]
    workspace = Workspace()
    a, b = np.float32([2, 3]), np.float32([5, 7])
    workspace.feed("a", a)
    workspace.feed("b", b)
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch(str(gradients["a"])), b)
    np.testing.assert_array_equal(workspace.fetch(str(gradients["b"])), a)


class Scaled:
    """A function with a state, as python_func_type."""

    def __init__(self, factor):
        self.factor = factor

    def forward(self, inputs, outputs):
        outputs[0].feed(inputs[0].data * self.factor)

    def backward(self, inputs, outputs):
        outputs[0].feed(inputs[-1].data * self.factor)


def scaled(factor, power=1):
    return Scaled(factor**power).forward


@pytest.mark.parametrize(
    ("args", "factor"),
    [((3, None, Scaled), 3), (((scaled, (2,), {"power": 3}),), 8), (((scaled, (2,)), (scaled, (2,))), 2)],
)
def test_the_forms_of_functions(args, factor):
    net = Net("forms")
    net.AddExternalInput("x")
    net.Python(*args)("x", "y")
    workspace = Workspace()
    workspace.feed("x", np.float32([1, 2]))
    workspace.run_net_once(net)
    np.testing.assert_array_equal(workspace.fetch("y"), np.float32([1, 2]) * factor)


def test_other_forms_are_refused():
    for f in ((), (3,), (scaled, (), {}, 1)):
        with pytest.raises(TypeError, match=r"made from a function or \(make, args, kwargs\)"):
            Net("forms").Python(f)
    for f in ("f", None):
        with pytest.raises(TypeError, match=f"needs functions, got {f!r}"):
            Net("forms").Python(f)


def test_tensors():
    x = PythonTensor()
    assert not x.filled
    x.feed(np.float32([[1, 2], [3, 4]]))
    x.reshape([4])
    assert x.data.tolist() == [1, 2, 3, 4]
    copy = x.fetch()
    copy[0] = 9
    assert x.data[0] == 1
    x.reshape([3])
    assert x.data.tolist() == [0, 0, 0]


def counter(start):
    """Return a function that writes how often it was called, from ``start`` on."""
    count = [start]

    def count_up(inputs, outputs):
        outputs[0].feed(np.int64(count[0]))
        count[0] += 1

    return count_up


def test_a_function_is_made_once_for_each_operator_of_a_created_net():
    net = Net("made")
    net.Python((counter, [5], {}))([], ["a"])
    net.Python((counter, [], {"start": 7}), pass_workspace=False)([], ["b"], name="second", anything=[1, 2])
    assert net.Proto().op[1].name == "second"
    for name in ("one", "two"):
        workspace = Workspace()
        created = workspace.create_net(net.Clone(name))
        workspace.run_net(created, 3)
        assert (workspace.fetch("a"), workspace.fetch("b")) == (7, 9)
        workspace.remove("a")  # plans are compiled again; the function is the same one
        workspace.run_net(created)
        assert (workspace.fetch("a"), workspace.fetch("b")) == (8, 10)


def test_a_maker_that_makes_no_function():
    net = Net("made")
    net.Python((list, [], {}))([], ["a"])
    with pytest.raises(TypeError, match=r"has to return a function, got \[\]"):
        Workspace().run_net_once(net)


def test_a_tensor_of_a_type_of_tensor_proto():
    tensor = PythonTensor()
    tensor.init([2, 1], TensorProto.INT64)
    assert tensor.data.tolist() == [[0], [0]] and tensor.data.dtype == np.int64
    for number in (TensorProto.STRING, 99):
        with pytest.raises(NetError, match=f"a tensor of type {number} of TensorProto.DataType cannot be initialized"):
            tensor.init([1], number)


@pytest.mark.parametrize("must_fill", [True, False])
def test_an_output_left_without_a_value(must_fill):
    workspace, token = Workspace(), register(lambda inputs, outputs: None, must_fill=must_fill)
    op = make_op("Python", [], ["empty"], token=token)
    if must_fill:
        with pytest.raises(NetError, match=r"left output 0 \('empty'\) without a value"):
            workspace.run_operator_once(op)
    else:
        workspace.run_operator_once(op)
        with pytest.raises(NetError, match="blob 'empty' holds no value yet"):
            workspace.fetch("empty")


def test_a_function_in_place_may_have_a_gradient():
    def double(inputs, outputs):
        outputs[0].feed(2 * inputs[0].data)

    def slope(inputs, outputs):
        outputs[0].feed(2 * inputs[2].data)

    op = make_op("Python", ["x"], ["x"], token=register(double, slope))
    (gradient,), found = operator_gradient(op, {0: "dx"})
    assert list(gradient.input) == ["x", "x", "dx"] and found == {0: "x_grad"}
