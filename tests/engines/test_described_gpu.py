"""Described GPUs: those that come with netbuilder, files of one's own, refusals, and what plans see of them."""

import json

import numpy as np
import pytest

from netbuilder.engines.cuda import cublas
from netbuilder.engines.described_gpu import DescribedGPU, described_gpu, known_gpus, planned_for, read_gpu
from netbuilder.engines.engine import find_engine
from netbuilder.engines.layouts import new_buffer, new_bytes
from netbuilder.engines.tf32 import has_tf32
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, DeviceError

OWN = {
    "name": "a small one", "compute_capability": 75, "bandwidth": 1e12,
    "rates": {"float64": 1e12, "float32": 1e13, "tf32": 1e13, "bfloat16": 1e13, "float16": 1e14},
}  # fmt: skip


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.json").write_text(json.dumps(OWN))
    return read_gpu(str(tmp_path / "small.json"))


@pytest.mark.parametrize("name", known_gpus())
def test_those_that_come_with_netbuilder(name):
    gpu = read_gpu(name)
    assert gpu.name.startswith("NVIDIA ") and name in gpu.name.lower()
    assert 1e12 < gpu.bandwidth < 1e13 and gpu.rates["bfloat16"] > gpu.rates["tf32"] > gpu.rates["float32"]


def test_a_file_of_ones_own(small):
    assert small == DescribedGPU(**OWN)
    assert small.seconds(2e14, 1e12, "float16") == 2.0  # bound by operations
    assert small.seconds(1e14, 3e12, "float16") == 3.0  # bound by bytes


def test_an_unknown_name_is_told_a_similar_one():
    with pytest.raises(DeviceError, match="'h10' is neither .* nor a JSON file with name, .*; did you mean 'h100'"):
        read_gpu("h10")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": None}, "name must be text, got None"),
        ({"bandwidth": 0}, "bandwidth must be a positive number, got 0"),
        ({"compute_capability": "9.0"}, "compute_capability must be a positive number, got '9.0'"),
        ({"rates": {"float32": 1}}, "rates must have a number for each of float64, float32"),
        ({"rates": {**OWN["rates"], "tf32": True}}, "rate of tf32 must be a positive number, got True"),
        ({"cores": 3}, r"described by an object with .*, got \['bandwidth', 'compute_capability', 'cores'"),
    ],
)
def test_wrong_descriptions_are_refused(tmp_path, change, match):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**OWN, **change}))
    with pytest.raises(DeviceError, match=match):
        read_gpu(str(path))


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (tmp_path / "wrong.json").write_text("{")
    with pytest.raises(DeviceError, match=r"wrong\.json cannot be read as JSON"):
        read_gpu(str(tmp_path / "wrong.json"))


def test_engines_are_available_inside_only(small):
    engines = [find_engine(name) for name in ("CUDA", "CUDNN")]
    before = [engine.available() for engine in engines]
    with planned_for(small):
        assert described_gpu() is small and all(engine.available() for engine in engines)
        assert not has_tf32(0) and not cublas.serves(0, "bfloat16", 8) and cublas.serves(0, "float16", 8)
        with planned_for(read_gpu("a100")):
            assert has_tf32(0) and cublas.serves(0, "bfloat16", 8)
    assert described_gpu() is None and [engine.available() for engine in engines] == before


def test_buffers_take_no_memory(small):
    with planned_for(small):
        large = new_buffer(TensorSpec((1 << 20, 1 << 18), np.dtype(np.float32)), (PROTO_CUDA, 0))  # 1 TiB
        assert large.shape == (1 << 20, 1 << 18) and large[-1, -1] == 0
        assert new_bytes(1 << 40, (PROTO_CUDA, 0)).nbytes == 1 << 40
