"""What was read of a model is read again from a file: the same net, with the constants of the model."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from netbuilder.engines.choices import CACHE_VARIABLE  # noqa: E402
from netbuilder.exchange.onnx import ReferenceNodeWarning, kept_models, read_onnx, read_onnx_model  # noqa: E402
from netbuilder.proto import ParseError  # noqa: E402

WIDTH = 600  # the weights have more than 1 MiB


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "onnx"


@pytest.fixture
def only_kept(monkeypatch):
    """A function after whose call nothing is read but what was kept."""

    def refuse(*arguments):
        raise AssertionError("read anew")

    return lambda: [monkeypatch.setattr(read_onnx_model, name, refuse) for name in ("load_model", "onnx_library")]


def values(width=WIDTH):
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((width, width), np.float32), "b": rng.standard_normal(width, np.float32)}


def model_of(constants, kind="Relu"):
    """y = relu(x w + 2 b): 2 b is computed while reading; the batch is dynamic."""
    width = len(constants["b"])
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    tensors.append(numpy_helper.from_array(np.float32(2), "two"))
    nodes = [
        helper.make_node("Mul", ["b", "two"], ["twice"]),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "twice"], ["sum"]),
        helper.make_node(kind, ["sum"], ["y"]),
    ]
    shapes = {"x": ("N", width), "y": () if kind == "Det" else ("N", width)}
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(path, constants, **options):
    onnx.save(model_of(constants), path, **options)
    return path


def expected(x, constants):
    w, b = constants["w"].astype(np.float64), constants["b"].astype(np.float64)
    return np.maximum(x @ w + 2 * b, 0)


@pytest.mark.parametrize(
    "options", [{}, {"training": True}, {"shapes": {"x": (3, None)}}], ids=lambda each: "".join(each)
)
def test_a_model_is_read_from_what_was_kept(tmp_path, folder, only_kept, options):
    constants = values()
    path = saved(tmp_path / "model.onnx", constants)
    first = read_onnx(path, **options)
    assert len(list(folder.iterdir())) == 1
    only_kept()
    second = read_onnx(path, **options)
    assert second.net.SerializeToString() == first.net.SerializeToString()
    assert list(second.parameters) == list(first.parameters)
    for name, value in first.parameters.items():
        found = second.parameters[name]
        assert (found.dtype, found.flags.writeable) == (value.dtype, value.flags.writeable)
        assert np.array_equal(found, value)
    for name in ("inputs", "outputs", "extents", "dtypes", "specs", "reference_nodes", "trained", "joined"):
        assert getattr(second, name) == getattr(first, name), name
    x = np.random.default_rng(1).standard_normal((3, WIDTH), np.float32)
    np.testing.assert_allclose(second.predictor().run(x=x)["y"], expected(x, constants), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["w", "b"])
def test_a_changed_constant_is_another_model(tmp_path, folder, name):
    constants = values()
    path = tmp_path / "model.onnx"
    read_onnx(saved(path, constants))
    constants[name].flat[7] += 100
    found = read_onnx(saved(path, constants))
    assert len(list(folder.iterdir())) == 2
    x = np.ones((1, WIDTH), np.float32)
    np.testing.assert_allclose(found.predictor().run(x=x)["y"], expected(x, constants), rtol=1e-4, atol=1e-3)


def test_an_unchanged_file_is_not_hashed_again(tmp_path, folder, monkeypatch):
    constants = values()
    path = saved(tmp_path / "model.onnx", constants)
    read_onnx(path)
    assert len(list(folder.iterdir())) == 1  # a file that was written just now may change without another time
    monkeypatch.setattr(kept_models, "_SETTLED", -1)
    first = read_onnx(path)
    assert len(list(folder.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(kept_models.hashlib, "sha256", lambda text, new=kept_models.hashlib.sha256: _Once(new(text)))
        assert read_onnx(path).net == first.net
    constants["b"][3] = 50
    found = read_onnx(saved(path, constants))  # another time
    x = np.ones((1, WIDTH), np.float32)
    np.testing.assert_allclose(found.predictor().run(x=x)["y"], expected(x, constants), rtol=1e-4, atol=1e-3)


class _Once:
    """A hash of what it is given first; it refuses more."""

    def __init__(self, found):
        self.hexdigest, self.digest = found.hexdigest, found.digest


def elsewhere(path, constants):
    """A model with its constants in the file "weights"."""
    return saved(path, constants, save_as_external_data=True, location="weights", size_threshold=0)


@pytest.mark.parametrize("some_inside", [False, True], ids=["all elsewhere", "some in the model"])
def test_constants_in_another_file(some_inside, tmp_path, folder, monkeypatch):
    """They are read from there; the model is read anew if that file has changed, or may have."""
    constants, path = values(), tmp_path / "model.onnx"
    if some_inside:
        model = model_of(constants)
        onnx.external_data_helper.set_external_data(model.graph.initializer[0], "weights")
        onnx.save(model, path)
    else:
        elsewhere(path, constants)
    read_onnx(path)
    assert not folder.exists()  # the file was written just now and may change without another time
    monkeypatch.setattr(kept_models, "_SETTLED", -1)
    first = read_onnx(path)
    with monkeypatch.context() as patch:
        for name in ("load_model", "onnx_library"):
            patch.setattr(read_onnx_model, name, lambda *arguments: pytest.fail("read anew"))
        second = read_onnx(path)
    assert second.net == first.net and second.parameters.keys() == first.parameters.keys()
    for name, value in first.parameters.items():
        found = second.parameters[name]
        assert (found.dtype, found.flags.writeable) == (value.dtype, value.flags.writeable)
        assert np.array_equal(found, value)
    content = bytearray((tmp_path / "weights").read_bytes())
    content[4:8] = np.float32(100).tobytes()
    (tmp_path / "weights").write_bytes(content)
    constants["w"].flat[1] = 100
    x = np.ones((1, WIDTH), np.float32)
    for _ in range(2):
        got = read_onnx(path).predictor().run(x=x)["y"]
        np.testing.assert_allclose(got, expected(x, constants), rtol=1e-4, atol=1e-3)
    (tmp_path / "weights").unlink()
    with pytest.raises(ParseError, match="'weights', which does not exist"):
        read_onnx(path)


def test_other_options_and_other_code_read_anew(tmp_path, folder, only_kept, monkeypatch):
    path = saved(tmp_path / "model.onnx", values())
    read_onnx(path)
    only_kept()
    for options in ({"training": True}, {"shapes": {"x": (2, None)}}, {"most_folded": 1 << 20}):
        with pytest.raises(AssertionError, match="read anew"):
            read_onnx(path, **options)
    monkeypatch.setattr(kept_models, "_surroundings", lambda: "another version")
    with pytest.raises(AssertionError, match="read anew"):
        read_onnx(path)


def test_a_damaged_file_is_written_again(tmp_path, folder):
    path = saved(tmp_path / "model.onnx", values())
    first = read_onnx(path)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])
    second = read_onnx(path)
    assert second.net == first.net and kept.read_bytes() == whole


@pytest.mark.filterwarnings("ignore", category=ReferenceNodeWarning)
@pytest.mark.parametrize("case", ["small", "small elsewhere", "reference", "computed"])
def test_models_that_are_not_kept(tmp_path, folder, monkeypatch, case):
    """Small ones, and those with nodes of the reference, with large results."""
    path = tmp_path / "model.onnx"
    if case == "small":
        saved(path, values(20))
    elif case == "small elsewhere":
        monkeypatch.setattr(kept_models, "_SETTLED", -1)
        elsewhere(path, values(20))
    elif case == "reference":
        onnx.save(model_of(values(), "Det"), path)
    else:
        monkeypatch.setattr(kept_models, "_MOST", 100)
        saved(path, values())
    read_onnx(path)
    kept = list(folder.iterdir()) if folder.exists() else []
    assert len(kept) == (case == "small elsewhere")  # the hash of the model's own file
