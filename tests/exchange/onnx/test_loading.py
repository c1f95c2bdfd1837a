"""ONNX files are read with little more memory than their constants take, however these are stored."""

import tracemalloc

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from netbuilder.engines.arrays import aligned_zeros  # noqa: E402
from netbuilder.exchange.onnx import loading, read_onnx  # noqa: E402
from netbuilder.proto import ParseError  # noqa: E402

KINDS = {"raw": np.float32, "doubles": np.float64, "halves": np.float16, "whole": np.int64}


def model_of(constants, listed=()):
    """A model that adds each constant to an input of its name; those in ``listed`` are stored in a typed field."""
    names = list(constants)
    infos = [
        helper.make_tensor_value_info(f"{prefix}{name}", helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for prefix in ("x_", "y_")
        for name, value in constants.items()
    ]
    nodes = [helper.make_node("Add", [f"x_{name}", name], [f"y_{name}"]) for name in names]
    tensors = [
        helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape, value.ravel().tolist())
        if name in listed
        else numpy_helper.from_array(value, name)
        for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", infos[: len(names)], infos[len(names) :], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def some(shape, seed=0):
    rng = np.random.default_rng(seed)
    return {name: (9 * rng.random(shape)).astype(dtype) for name, dtype in KINDS.items()}


@pytest.mark.parametrize("listed", [(), KINDS], ids=["raw", "typed"])
@pytest.mark.parametrize("shape", [(3,), (100, 70)], ids=str)
def test_constants_are_those_of_the_file(tmp_path, listed, shape):
    constants = some(shape)
    path = tmp_path / "model.onnx"
    onnx.save(model_of(constants, listed), path)
    for model in (path, onnx.load(path)):
        found = read_onnx(model, reference=False).parameters
        assert {name: value.dtype for name, value in found.items()} == {name: np.dtype(t) for name, t in KINDS.items()}
        assert all(np.array_equal(found[name], value) for name, value in constants.items())


def test_constants_in_other_files(tmp_path):
    constants = some((100, 70))
    path = tmp_path / "model.onnx"
    onnx.save(model_of(constants), path, save_as_external_data=True, location="weights", size_threshold=0)
    found = read_onnx(path).parameters
    assert all(np.array_equal(found[name], value) for name, value in constants.items())


@pytest.mark.parametrize("external", [False, True])
def test_memory_of_reading(tmp_path, external, monkeypatch):
    monkeypatch.setattr(loading, "lasting_zeros", aligned_zeros)  # memory of NumPy's, which tracemalloc sees
    constants = {"w": np.ones((1024, 2048), np.float32), "v": np.ones((1024, 2048), np.float32)}
    path = tmp_path / "model.onnx"
    onnx.save(model_of(constants), path, **({"save_as_external_data": True, "location": "w"} if external else {}))
    read_onnx(model_of(some((2,))))  # what is imported once
    tracemalloc.start()
    try:
        read = read_onnx(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (
        sum(value.nbytes for value in read.parameters.values())
        < peak
        < 1.3 * sum(value.nbytes for value in constants.values())
    )


def test_files_that_are_cut_off(tmp_path):
    data = model_of(some((40, 50))).SerializeToString()
    path = tmp_path / "model.onnx"
    rng = np.random.default_rng(0)
    for length in sorted({1, 2, 50, len(data) - 1, *rng.integers(3, len(data), 30).tolist()}):
        path.write_bytes(data[:length])
        with pytest.raises(ParseError, match=r"model.onnx' is not an ONNX model"):
            read_onnx(path)


def test_a_constant_that_does_not_match_its_data(tmp_path):
    model = model_of({"w": np.ones((64, 64), np.float32)})
    model.graph.initializer[0].dims[0] = 65
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ParseError, match=r"constant 'w' of dims \[65, 64\] and type 1 does not match its data"):
        read_onnx(path)
