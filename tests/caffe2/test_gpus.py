"""Functions for GPUs that scripts call."""

import pytest

from netbuilder.caffe2.python import utils, workspace
from netbuilder.engines.arrays import array_module
from netbuilder.proto import PROTO_CUDA, DeviceError


class TestGPUs:
    def test_without_any(self, monkeypatch):
        monkeypatch.setattr("netbuilder.caffe2.gpus.gpu_count", lambda: 0)
        assert (workspace.GetCUDAVersion(), workspace.GetCuDNNVersion()) == (0, 0)
        assert workspace.GetDeviceProperties(0) is None and workspace.GetGPUMemoryInfo() is None

    def test_what_they_are(self, one_gpu):
        found = workspace.GetDeviceProperties(0)
        free, total = workspace.GetGPUMemoryInfo(0)
        assert workspace.GetCUDAVersion() >= 12000 and isinstance(found["name"], str) and found["major"] >= 6
        assert 0 < free <= total and abs(total - found["totalGlobalMem"]) < total // 10

    def test_memory_in_use(self, one_gpu):
        held = array_module(PROTO_CUDA).zeros(1 << 20, "uint8")
        found = utils.GetGPUMemoryUsageStats()
        assert found["total"] == found["total_by_gpu"].sum() > 0
        assert found["total_by_gpu"][0] >= held.nbytes
        assert (found["max_by_gpu"] >= found["total_by_gpu"]).all() and found["max_total"] == found["max_by_gpu"].sum()

    def test_memory_of_none(self, monkeypatch):
        monkeypatch.setattr("netbuilder.engines.arrays._cupy", lambda: None)
        with pytest.raises(DeviceError, match="no NVIDIA GPU can be used"):
            utils.GetGPUMemoryUsageStats()
