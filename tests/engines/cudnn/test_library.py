"""Whether cuDNN can be used, and what to install; its handles."""

import importlib
import types

import pytest

from cudnn_double import CudnnDouble, cudnn_double
from netbuilder.engines.cudnn import library
from netbuilder.engines.engine import find_engine
from netbuilder.engines.gpu import gpu
from netbuilder.engines.gpu_packages import how_to_install
from netbuilder.proto import DeviceError
from netbuilder.proto.extras import gpu_requirements
from on_gpu import gpus


def found(monkeypatch, module):
    def load(name):
        if isinstance(module, Exception):
            raise module
        return module

    others = importlib.import_module
    monkeypatch.setattr(
        library.importlib, "import_module", lambda name: load(name) if name == "cudnn" else others(name)
    )
    monkeypatch.setattr(library, "found_library", library.load)


def failing():
    raise RuntimeError("Unable to find symbol")


@pytest.mark.emulated
@pytest.mark.parametrize(
    "module, text",
    [
        (ModuleNotFoundError("No module named 'cudnn'"), "pip install 'nvidia-cudnn-frontend>=1.14,<1.19'"),
        (types.SimpleNamespace(backend_version=failing), "pip install 'nvidia-cudnn-cu12>=9.8,<10'"),
        (OSError("libcudnn.so.9: cannot open"), "OSError: libcudnn.so.9: cannot open); pip install 'nvidia-cudnn-cu12"),
        (AssertionError("Multiple libcudnn"), "AssertionError: Multiple libcudnn); pip install 'nvidia-cudnn-cu12"),
        (types.SimpleNamespace(backend_version=lambda: 90700), "older than 90800"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, module, text):
    found(monkeypatch, module)
    engine = find_engine("CUDNN")
    assert not engine.available()
    assert text in engine.why_unavailable()
    with pytest.raises(DeviceError, match="pip install"):
        library.cudnn()


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(library, "gpu_count", lambda: 0)
    assert not library.available()
    assert how_to_install() in library.why_unavailable()


@pytest.mark.emulated
def test_a_handle_works_on_the_current_stream_of_its_gpu():
    with gpus(2), cudnn_double() as cudnn:
        assert library.available() and library.version() == "9.28.0" and library.why_unavailable() == ""
        with gpu(0) as here:
            first = library.handle()
            assert library.handle() == first
            other = here.xp.cuda.Stream()
            with other:
                assert library.handle() == first
                assert cudnn.handles[first][1] == other.ptr
            library.handle()
            assert cudnn.handles[first][1] != other.ptr
        with gpu(1):
            assert library.handle() != first


def test_the_double_has_what_the_frontend_has():
    """Names that the engine uses exist in the real frontend, where it is installed."""
    cudnn = pytest.importorskip("cudnn")
    graph = {name for name in vars(CudnnDouble) if not name.startswith("_")} - {"ran", "why_not"}
    assert graph <= set(dir(cudnn))


def test_the_versions_that_messages_name_are_those_that_are_installed():
    oldest = f"{library.OLDEST // 10000}.{library.OLDEST // 100 % 100}"
    assert f"nvidia-cudnn-cu13>={oldest},<{library.OLDEST // 10000 + 1}" in gpu_requirements(13)
