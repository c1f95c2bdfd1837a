"""What to install for the CUDA at hand, and packages that conflict."""

import importlib.metadata

import pytest

from netbuilder.engines import arrays, gpu_packages
from netbuilder.proto import DeviceError
from netbuilder.proto.extras import CUDNN, NCCL


@pytest.fixture
def installed(monkeypatch):
    """Return a function that lets only packages of these names be installed."""

    def only(*names):
        def version(name):
            if name not in names:
                raise importlib.metadata.PackageNotFoundError(name)
            return "1.0"

        monkeypatch.setattr(gpu_packages.importlib.metadata, "version", version)
        gpu_packages.cuda_major.cache_clear()

    yield only
    gpu_packages.cuda_major.cache_clear()


@pytest.mark.parametrize(
    "names, major",
    [
        ([], 12),
        (["cupy-cuda12x"], 12),
        (["cupy-cuda13x"], 13),
        (["nvidia-cudnn-cu13"], 13),  # as torch installs it
        (["nvidia-nccl-cu13"], 13),
        (["cupy-cuda12x", "nvidia-cudnn-cu13"], 12),  # what runs is CuPy
        (["cupy-cuda11x", "nvidia-cudnn-cu12"], 12),
    ],
)
def test_messages_name_the_packages_for_what_is_installed(installed, names, major):
    installed(*names)
    extra = "netbuilder-nn[gpu]" if major == 12 else "netbuilder-nn[gpu-cuda13]"
    assert gpu_packages.cuda_major() == major
    assert gpu_packages.how_to_install() == f"pip install '{extra}'"
    assert gpu_packages.how_to_install(CUDNN) == f"pip install 'nvidia-cudnn-cu{major}>=9.8,<10'"
    assert gpu_packages.how_to_install(NCCL) == f"pip install 'nvidia-nccl-cu{major}'"


def test_a_cupy_that_was_built_here_is_asked(installed, monkeypatch):
    installed("cupy")
    monkeypatch.setattr(gpu_packages, "_runtime", lambda: 13)
    assert gpu_packages.cuda_major() == 13


@pytest.mark.parametrize(
    "names, text",
    [
        (
            ["cupy-cuda12x", "cupy-cuda13x", "nvidia-cudnn-cu13"],
            "cupy-cuda12x and cupy-cuda13x are installed, and both are CuPy; pip uninstall cupy-cuda12x cupy-cuda13x, "
            "then pip install 'netbuilder-nn[gpu-cuda13]'",
        ),
        (
            ["cupy-cuda12x", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"],
            "nvidia-cudnn-cu12 and nvidia-cudnn-cu13 are installed, and have the same files; pip uninstall "
            "nvidia-cudnn-cu12 nvidia-cudnn-cu13, then pip install 'nvidia-cudnn-cu12>=9.8,<10'",
        ),
        (
            ["cupy-cuda12x", "nvidia-cudnn-cu13"],
            "cupy-cuda12x is for CUDA 12, nvidia-cudnn-cu13 for CUDA 13; pip uninstall cupy-cuda12x, then "
            "pip install 'netbuilder-nn[gpu-cuda13]'",
        ),
    ],
)
def test_packages_that_conflict(installed, names, text):
    installed(*names)
    assert gpu_packages.conflicts() == [text]


@pytest.mark.parametrize("second", ["cupy-cuda13x", "nvidia-cudnn-cu13"])
def test_two_packages_of_cupy_turn_gpus_off_and_those_of_cudnn_do_not(installed, monkeypatch, second):
    installed("cupy-cuda12x", second)

    class Cuda:
        class runtime:
            getDeviceCount = staticmethod(lambda: 2)

        is_available = staticmethod(lambda: True)

    monkeypatch.setattr(arrays.importlib, "import_module", lambda name: type("CuPy", (), {"cuda": Cuda}))
    arrays._cupy.cache_clear()
    try:
        if second == "nvidia-cudnn-cu13":
            assert arrays.gpu_count() == 2
            return
        with pytest.warns(RuntimeWarning, match="no GPU is used: .*pip uninstall"):
            assert arrays.gpu_count() == 0
        with pytest.raises(DeviceError, match="pip uninstall"):
            arrays.array_module(1)
    finally:
        arrays._cupy.cache_clear()


@pytest.mark.parametrize(
    "names", [[], ["cupy-cuda13x", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"], ["nvidia-cudnn-cu13"]]
)
def test_packages_of_one_cuda_do_not_conflict(installed, names):
    installed(*names)
    assert gpu_packages.conflicts() == []
