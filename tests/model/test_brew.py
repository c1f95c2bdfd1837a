"""Layer helpers: precedence of arguments, errors, results."""

import math

import numpy as np
import pytest

from netbuilder.graph import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.model.helpers import operators
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import arguments
from netbuilder.runtime import Workspace


@pytest.fixture
def model():
    return ModelHelper("layers")


def last(model):
    return model.net.Proto().op[-1]


def run(model, **inputs):
    workspace = Workspace(threads=1)
    for name, value in inputs.items():
        workspace.feed(name, value)
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    return workspace


class TestScopes:
    def test_the_models_arguments_are_the_weakest(self):
        model = ModelHelper("scoped", arg_scope={"order": "NHWC", "use_cudnn": False})
        brew.relu(model, "x", "a")
        with brew.arg_scope([brew.relu, brew.conv], order="NCHW", use_cudnn=True):
            brew.relu(model, "x", "b")
            with brew.arg_scope(brew.relu, use_cudnn=False):
                brew.relu(model, "x", "c")
            brew.relu(model, "x", "d", order="NHWC")
        brew.relu(model, "x", "e", use_cudnn=True)
        found = [(arguments(op)["order"], op.engine) for op in model.net.Proto().op]
        assert found == [(b"NHWC", ""), (b"NCHW", "CUDNN"), (b"NCHW", ""), (b"NHWC", "CUDNN"), (b"NHWC", "CUDNN")]

    def test_a_block_that_raises_leaves_no_trace(self, model):
        with pytest.raises(KeyError), brew.arg_scope(brew.relu, order="NHWC"):
            raise KeyError
        brew.relu(model, "x", "y")
        assert arguments(last(model))["order"] == b"NCHW"

    def test_arguments_by_position(self, model):
        brew.relu(model, "x", "y", False, "NHWC")
        assert (arguments(last(model))["order"], last(model).engine) == (b"NHWC", "")

    def test_a_scope_is_for_helpers(self):
        for wrong in ("relu", ["relu"], 3):
            with (
                pytest.raises(TypeError, match="arg_scope needs a helper such as brew.conv"),
                brew.arg_scope(wrong, x=1),
            ):
                pass

    def test_an_unknown_argument_of_a_scope_is_refused_by_the_operator(self, model):
        with brew.arg_scope(brew.relu, orders="NHWC"), pytest.raises(ArgumentError, match="unknown argument 'orders'"):
            brew.relu(model, "x", "y")


class TestRegistry:
    def test_a_helper_of_ones_own(self, model):
        def doubled(model, blob_in, blob_out, factor=2.0):
            """Scale by 2."""
            return model.net.Scale(blob_in, blob_out, scale=factor)

        brew.register(doubled)
        try:
            assert brew.has_helper("doubled")
            assert brew.has_helper(doubled)
            with brew.arg_scope(brew.doubled, factor=3.0):
                brew.doubled(model, "x", "y")
            assert arguments(last(model))["scale"] == 3.0
            assert brew.doubled.__doc__ == "Scale by 2."
            with pytest.raises(AttributeError, match="there is a helper 'doubled' already"):
                brew.register(doubled)
        finally:
            del brew._helpers["doubled"], brew.doubled

    def test_the_librarys_helpers_are_not_replaced(self):
        def conv(model):
            """Nothing."""

        with pytest.raises(AttributeError, match="there is a helper 'conv' already"):
            brew.Register(conv)

    def test_a_helper_is_a_function(self):
        with pytest.raises(TypeError, match="helper must be a function with a name, got 3"):
            brew.register(3)
        with pytest.raises(TypeError, match="helper must be a function with a name, got <function .*<lambda>"):
            brew.register(lambda model: None)

    def test_an_unknown_helper(self):
        with pytest.raises(AttributeError, match="brew has no helper 'convv'; .*; did you mean 'conv'"):
            _ = brew.convv
        with pytest.raises(AttributeError, match="brew has no helper 'qwerty'; model.net.<Operator> adds"):
            _ = brew.qwerty
        assert not brew.has_helper("convv")

    @pytest.mark.parametrize("args", [(), ("x", "y"), (None,)])
    def test_the_model_comes_first(self, args):
        with pytest.raises(RuntimeError, match="brew.relu: the first argument must be a ModelHelper"):
            brew.relu(*args)

    @pytest.mark.parametrize(
        "call, match",
        [
            (
                lambda m: brew.conv(m, "x", "y", 3, 8, kernal=3),
                "brew.conv: .*'kernel'; instead of 'kernal', did you mean 'kernel'?",
            ),
            (
                lambda m: brew.fc(m, "x", "y", dim_inn=3, dim_out=4),
                "brew.fc: .*'dim_in'; instead of 'dim_inn', did you mean 'dim_in'?",
            ),
            (
                lambda m: brew.transformer_block(m, "x", "y", 8, 2, casual=True),
                "brew.transformer_block: got an unexpected keyword argument 'casual'; did you mean 'causal'?",
            ),
            (lambda m: brew.fc(m, "x", "y", 3), "brew.fc: missing a required argument: 'dim_out'$"),
            (
                lambda m: brew.fc(m, "x", "y", in_features=8, out_features=4),
                "brew.fc: got 'in_features', 'out_features'; missing a required argument: 'dim_in'; "
                "instead of 'in_features', did you mean 'dim_in'",
            ),
            (lambda m: brew.accuracy(m, *range(9)), "brew.accuracy: too many positional arguments$"),
        ],
    )
    def test_arguments_that_do_not_fit(self, model, call, match):
        with pytest.raises(TypeError, match=match):
            call(model)

    def test_an_error_inside_a_helper_is_its_own(self, model):
        with pytest.raises(TypeError, match="^a blob must be a BlobReference or a string, got 3"):
            brew.relu(model, [3], "y")

    def test_the_model_by_name(self, model):
        assert brew.relu(model=model, blob_in="x", blob_out="y") == "y"


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda m: brew.conv(m, "x", "y", 3, 4, 3, engine="EIGEN"), "engine 'EIGEN' contradicts use_cudnn=True"),
        (lambda m: brew.conv(m, "x", "y", 3, 4, 3, order="CHWN"), "order must be 'NCHW' or 'NHWC', got 'CHWN'"),
        (lambda m: brew.conv(m, "x", "y", 3, 4, 3, group=2), "group must divide 3 and 4 channels, got 2"),
        (lambda m: brew.conv(m, "x", "y", 3, 4, [3, 3, 3]), "kernel must be one or two numbers"),
        (lambda m: brew.conv(m, "x", "y", 3, 4, 0), r"conv 'y': kernel must be positive integers, got \[0, 0\]"),
        (lambda m: brew.conv(m, "x", "y", 0, 4, 3), "conv 'y': dim_in must be a positive integer, got 0"),
        (lambda m: brew.conv(m, "x", "y", 3, -4, 3), "conv 'y': dim_out must be a positive integer, got -4"),
        (lambda m: brew.conv_transpose(m, "x", "y", 3, 0, 2), "conv_transpose 'y': dim_out must be .* integer, got 0"),
        (lambda m: brew.fc(m, "x", "y", 0, 4), "fc 'y': dim_in must be a positive integer, got 0"),
        (lambda m: brew.fc(m, "x", "y", 3, -1), "fc 'y': dim_out must be a positive integer, got -1"),
        (
            lambda m: brew.conv_nd(m, "x", "y", 3, 4, [3, 1.5]),
            r"kernel must be a whole number, or a list .* got",
        ),
        (
            lambda m: brew.conv(m, "x", "y", 3, 4, 3, strides_=2),
            "unknown argument 'strides_'; did you mean 'strides'.*It takes",
        ),
        (lambda m: brew.conv(m, "x", "y", 3, 4, 3, weight_init="Xavier"), "a fill must be"),
        (lambda m: brew.conv_nd(m, "x", "y", 3, 4, [3], order="NHWC"), "order must be 'NCHW' .*, got 'NHWC'"),
        (lambda m: brew.conv_transpose(m, "x", "y", 3, 4, [2, 3]), r"kernel must be a whole number, got \[2, 3\]"),
        (lambda m: brew.group_conv_deprecated(m, "x", "y", 5, 8, 3, group=2), "group must divide 5 and 8"),
        (lambda m: brew.fc(m, "x", "y", 3, 4, no_bias=True), "unknown argument 'no_bias'"),
        (lambda m: brew.dropout(m, "x", "y"), "dropout 'y': is_test is required"),
        (
            lambda m: brew.accuracy(m, ["x", "l"], "y", top=5),
            "unknown argument 'top'; did you mean 'top_k'.*It takes",
        ),
        (
            lambda m: brew.fc(m, "x", "y", 3, 4, weight_ini=1),
            "brew.fc: .*'weight_ini'; did you mean 'weight_init'",
        ),
        (lambda m: brew.add_weight_decay(m, 0), "weight_decay must be positive, got 0"),
    ],
)
def test_refusals(model, call, match):
    brew.fc(model, "before", "first", 2, 3)
    before = everything(model)
    with pytest.raises(ArgumentError, match=match):
        call(model)
    assert everything(model) == before


def everything(model):
    """All that a call of a helper adds to."""
    lists = (model.GetAllParams(), model.weights, model.biases, model.GetParams())
    return model.Proto().SerializeToString(), model.InitProto().SerializeToString(), [list(part) for part in lists]


def test_a_refused_layer_can_be_made_again_with_another_shape(model):
    with pytest.raises(ArgumentError, match="unknown argument 'strides_'"):
        brew.conv(model, "x", "y", 3, 4, 3, strides_=2)
    brew.conv(model, "x", "y", 3, 8, 5, stride=2)
    assert model.get_param_info(model.params[0]).shape == [8, 3, 5, 5]
    assert list(model.Proto().external_input) == ["x", "y_w", "y_b"]


def test_inputs_may_be_transformed(model):
    def shared_weight(model, blob_out, inputs):
        inputs[1] = BlobReference(f"{blob_out}_other_w")

    brew.conv(model, "x", "y", 3, 4, 3, transform_inputs=shared_weight)
    assert list(last(model).input) == ["x", "y_other_w", "y_b"]


def test_top_k_reaches_the_operator(model):
    brew.accuracy(model, ["scores", "label"], "accuracy", top_k=2)
    scores = np.float32([[3, 2, 1], [3, 2, 1], [3, 2, 1], [1, 2, 3]])
    assert run(model, scores=scores, label=np.int32([0, 1, 2, 2])).fetch("accuracy") == 0.75


def test_conv_transpose_without_bias(model):
    brew.conv_transpose(model, "x", "y", 2, 3, 2, stride=2, no_bias=True)
    assert model.params == ["y_w"]
    assert run(model, x=np.ones((1, 2, 3, 3), np.float32)).fetch("y").shape == (1, 3, 6, 6)


def test_group_convolution_by_parts(model):
    brew.group_conv_deprecated(model, "x", "y", 4, 6, 3, group=2, pad=1)
    brew.group_conv(model, "x", "z", 4, 6, 3, group=2, pad=1)
    workspace = run(model, x=np.random.default_rng(0).standard_normal((2, 4, 5, 5)).astype(np.float32))
    parts = [workspace.fetch(f"y_gconv_{i}_w") for i in range(2)]
    workspace.feed("z_w", np.concatenate(parts))
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(workspace.fetch("y"), workspace.fetch("z"), rtol=1e-5, atol=1e-6)
    assert model.weights == ["y_gconv_0_w", "y_gconv_1_w", "z_w"]


def test_channels_last_gives_what_channels_first_gives(model):
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
    for order, y in (("NCHW", "first"), ("NHWC", "last")):
        brew.conv(model, f"x_{order}", y, 4, 3, 3, order=order, pad=1)
        brew.max_pool(model, y, y + "_pooled", kernel=2, stride=2, order=order)
    workspace = run(model, x_NCHW=x, x_NHWC=x.transpose(0, 2, 3, 1).copy())
    workspace.feed("last_w", workspace.fetch("first_w").transpose(0, 2, 3, 1).copy())
    workspace.run_net_once(model.net)
    np.testing.assert_allclose(
        workspace.fetch("last_pooled").transpose(0, 3, 1, 2), workspace.fetch("first_pooled"), rtol=1e-5, atol=1e-6
    )


def test_max_pool_with_index(model):
    """Arguments of the model's scope are for other layers; the index is a blob of its own."""
    model.arg_scope["use_cudnn"] = False
    assert str(brew.max_pool_with_index(model, "x", "y", kernel=2, stride=2)) == "y"
    workspace = run(model, x=np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4))
    assert workspace.fetch("y").ravel().tolist() == workspace.fetch("y_index").ravel().tolist() == [5, 7, 13, 15]


def test_helpers_without_recorded_calls(model):
    """sigmoid, elu, add, arg_max, depth_concat are not in Caffe2, or cannot be called there."""
    brew.sigmoid(model, "x", "s")
    brew.elu(model, "x", "e", alpha=2.0)
    brew.add(model, ["x", "x"], "a")
    brew.arg_max(model, "x", "m", axis=1, keepdims=0)
    brew.depth_concat(model, ["x", "x"], "d", axis=1)
    x = np.float32([[-1, 2], [3, -4]])
    workspace = run(model, x=x)
    np.testing.assert_allclose(workspace.fetch("s"), 1 / (1 + np.exp(-x)), rtol=1e-6)
    np.testing.assert_allclose(workspace.fetch("e"), np.where(x > 0, x, 2 * np.expm1(x)), rtol=1e-6)
    np.testing.assert_array_equal(workspace.fetch("a"), 2 * x)
    np.testing.assert_array_equal(workspace.fetch("m"), [1, 0])
    np.testing.assert_array_equal(workspace.fetch("d"), np.concatenate([x, x], 1))


def test_helpers_that_add_one_operator(model):
    """Every row of the table: its operator, without the arguments that are for other layers, computes what it says."""
    x, y = np.float32([[-4, -0.5, 0.5], [1, 2, 9]]), np.float32([[1, 2, 3], [4, 5, 6]])
    erf = np.vectorize(math.erf)
    cases = {
        "abs": ("x", {}, abs(x)),
        "cast": ("x", {"to": "int32"}, x.astype(np.int32)),
        "clip": ("x", {"min": -1.0, "max": 1.0}, x.clip(-1, 1)),
        "copy": ("x", {}, x),
        "div": (["x", "y"], {}, x / y),
        "exp": ("x", {}, np.exp(x)),
        "expand_dims": ("x", {"dims": [0]}, x[None]),
        "flatten": ("x", {"axis": 0}, x.reshape(1, 6)),
        "gather": (["x", "rows"], {}, x[[1, 0, 1]]),
        "gelu": ("x", {}, x * (1 + erf(x / 2**0.5)) / 2),
        "hard_sigmoid": ("x", {}, (x / 6 + 0.5).clip(0, 1)),
        "leaky_relu": ("x", {"alpha": 0.1}, np.where(x > 0, x, 0.1 * x)),
        "log": ("y", {}, np.log(y)),
        "log_softmax": ("x", {}, x - np.log(np.exp(x).sum(axis=1, keepdims=True))),
        "maximum": (["x", "y"], {}, np.maximum(x, y)),
        "mish": ("x", {}, x * np.tanh(np.log1p(np.exp(x)))),
        "mul": (["x", "y"], {}, x * y),
        "pad_image": ("image", {"pad": 1}, np.pad(x, 1)[None, None]),
        "pow": ("y", {"exponent": 1.5}, y**1.5),
        "reduce_max": ("x", {"axes": [0], "keepdims": 0}, x.max(axis=0)),
        "reduce_mean": ("x", {"axes": [1]}, x.mean(axis=1, keepdims=True)),
        "relu6": ("x", {}, x.clip(0, 6)),
        "reshape": ("x", {"shape": [3, -1]}, x.reshape(3, 2)),
        "scale": ("x", {"scale": 3.0}, 3 * x),
        "slice": ("x", {"starts": [0, 1], "ends": [-1, 2]}, x[:, 1:2]),
        "softplus": ("x", {}, np.log1p(np.exp(x))),
        "sqrt": ("y", {}, np.sqrt(y)),
        "squeeze": ("image", {"dims": [0, 1]}, x),
        "stop_gradient": ("x", {}, x),
        "swish": ("x", {}, x / (1 + np.exp(-x))),
        "tile": ("x", {"tiles": 2, "axis": 1}, np.tile(x, (1, 2))),
        "where": (["which", "x", "y"], {}, np.where(x > 1, x, y)),
    }
    assert set(cases) == {helper.__name__ for helper in operators.HELPERS} - {"split"}
    for name, (blob_in, arguments_, _) in cases.items():
        assert getattr(brew, name)(model, blob_in, f"{name}_of", **arguments_) == f"{name}_of"
    parts = brew.split(model, "x", ["left", "right"], axis=1, split=[1, 2])
    workspace = run(model, x=x, y=y, image=x[None, None], rows=np.int32([1, 0, 1]), which=x > 1)
    for name, (_, _, want) in cases.items():
        np.testing.assert_allclose(workspace.fetch(f"{name}_of"), want, rtol=2e-6, atol=1e-6, err_msg=name)
    assert [workspace.fetch(part).tolist() for part in parts] == [x[:, :1].tolist(), x[:, 1:].tolist()]


def test_gates_of_channels(model):
    brew.squeeze_excite(model, "x", "y", 4, 2, activation="Swish", gate="HardSigmoid")
    brew.hard_swish(model, "x", "h")
    brew.depthwise(model, "x", "d", 4, 3, pad=1, no_bias=1)
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 5)).astype(np.float32)
    workspace = run(model, x=x)
    down, up = (workspace.fetch(f"y_{name}_w")[:, :, 0, 0] for name in ("squeeze", "excite"))
    inner = x.mean(axis=(2, 3)) @ down.T
    gates = ((inner / (1 + np.exp(-inner))) @ up.T / 6 + 0.5).clip(0, 1)
    np.testing.assert_allclose(workspace.fetch("y"), x * gates[:, :, None, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(workspace.fetch("h"), x * (x / 6 + 0.5).clip(0, 1), rtol=1e-5, atol=1e-6)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    want = np.einsum("nchwij,cij->nchw", windows, workspace.fetch("d_w")[:, 0])
    np.testing.assert_allclose(workspace.fetch("d"), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="squeeze_excite 'z': there is no operator 'Gate'"):
        brew.squeeze_excite(model, "x", "z", 4, 2, gate="Gate")


@pytest.mark.parametrize("shape", [(400, 3), (400, 2, 2, 2)])
def test_stochastic_depth_skips_whole_samples(model, shape):
    brew.stochastic_depth(model, "x", "y", 0.25, ndim=len(shape), is_test=False)
    assert (
        brew.stochastic_depth(model, "x", "z", 0.25, is_test=True)
        == "x"
        == brew.stochastic_depth(model, "x", "z", 0.0, is_test=False)
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = run(model, x=x).fetch("y").reshape(400, -1)
    kept = (y != 0).all(axis=1)
    assert (kept | (y == 0).all(axis=1)).all() and 0.65 < kept.mean() < 0.85
    np.testing.assert_allclose(y[kept], x.reshape(400, -1)[kept] / 0.75, rtol=1e-6)
    with pytest.raises(ArgumentError, match=r"stochastic_depth 'y': ratio must be a number in \[0, 1\), got 1.0"):
        brew.stochastic_depth(model, "x", "y", 1.0, is_test=False)


def test_sums_whose_result_gets_a_new_name():
    model = ModelHelper("net")
    for helper in (brew.sum, brew.add, brew.sub, brew.mat_mul):
        made = helper(model, ["x", "y"], 1)
        assert str(made) == model.net.Proto().op[-1].output[0] and len(model.net.Proto().op[-1].output) == 1
