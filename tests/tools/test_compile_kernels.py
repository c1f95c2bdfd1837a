"""The tool that compiles our CUDA kernels: what it makes, what it says without NVRTC, and the compiler's verdict."""

import json
import re
import sys
import types

import pytest

from netbuilder.engines.cuda.kernel import OPTIONS, known_kernels
from netbuilder.proto import DeviceError
from netbuilder.tools import compile_kernels
from netbuilder.tools.kernels import catalog, nvrtc_cuda, recording_cuda


@pytest.fixture(scope="module")
def few():
    """Kernels of a few operators, of each kind that there is."""
    for op_type in ("Cast", "Dropout", "Relu", "Sum", "Add", "Storm", "LayerNorm"):
        assert any([*catalog.prepared(op_type)]), op_type
    for op_type in ("Adam", "MomentumSGDUpdate"):
        catalog.join(op_type)
    for op_type in ("SoftmaxWithLoss", "SpatialSoftmaxWithLossGradient"):
        catalog.over_rows(op_type)
    catalog.pool()
    catalog.of_tables()
    for op_type in ("RowWiseSparseAdam", "SparseFtrl", "SparseStorm"):
        catalog.update_rows(op_type)
    titles = "cast|dropout|relu|sum|add|storm|layer_norm|updates|softmax_with_loss(_gradient)?|max_pool"
    titles += "|average_pool_gradient|row_updates|row_order_place|row_sums|rows_gathered|rows_scattered"
    chosen = [name for name in known_kernels() if re.match(f"nb_({titles})_[0-9a-f]+$", name)]
    return {name: known_kernels()[name] for name in sorted(chosen)}


def test_the_catalog_has_every_type_of_elements(few):
    text = "".join(kernel.source for kernel in few.values())
    for words in (
        "const float*",
        "const double*",
        "half_value(",
        "const int*",
        "bool*",
        "i64 size",
        "uniform(",
        "switch",
        "bfloat16_value(",
        "unsigned* ended",
    ):
        assert words in text, words
    assert len(few) > 50


def test_without_the_compiler_it_names_the_packages(monkeypatch, capsys):
    monkeypatch.setattr(nvrtc_cuda, "wheel_folders", lambda part: [])
    monkeypatch.setattr(nvrtc_cuda.ctypes, "CDLL", _missing)
    assert compile_kernels.main([]) == 1
    assert "pip install nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12" in capsys.readouterr().err


def _missing(name):
    raise OSError(name)


class FakeCompiler:
    version = "1.0"

    def compile(self, source, architecture, options, names):
        return "error: no" if source == "bad" and architecture == "sm_90" else None


def test_what_is_refused_is_told(monkeypatch, capsys, tmp_path, few):
    monkeypatch.setattr(compile_kernels, "Nvrtc", FakeCompiler)
    monkeypatch.setattr(compile_kernels, "make_kernels", lambda: (few, ["Softmax"]))
    (tmp_path / "k.json").write_text(json.dumps({"source": "bad", "options": ["-DA=1", "-Ix"], "names": ["f<int>"]}))
    assert recording_cuda.recorded(tmp_path) == [("k", "bad", ("-DA=1",), ("f<int>",))]
    assert compile_kernels.main([str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "k for sm_90:\nerror: no" in told and f"sm_90: {len(few)} compiled, 1 refused" in told
    assert f"sm_80: {len(few) + 1} compiled, 0 refused" in told and "record them (RECORDED=folder): Softmax" in told
    assert compile_kernels.main(["--architectures", "sm_80", "--every", "7"]) == 0
    told = capsys.readouterr().out
    some = -(-len(few) // 7)
    assert f"{some} of {len(few)} own kernels and 0 recorded" in told and f"sm_80: {some} compiled, 0 refused" in told


PROGRAM = """
import sys
from cupy.cuda import compiler
compiler._compile_with_cache_cuda(f"source for {sys.argv[1:]}", ("-DA=1",), name_expressions=["f<int>"])
"""


@pytest.mark.parametrize("how", [["program.py"], ["-m", "program"]], ids=["script", "module"])
@pytest.mark.parametrize("option", ["--record FOLDER", "--record=FOLDER"])
def test_the_kernels_of_a_program_are_recorded(how, option, monkeypatch, capsys, tmp_path):
    compiled = []
    compiler = types.ModuleType("cupy.cuda.compiler")
    compiler._compile_with_cache_cuda = lambda source, options, **named: compiled.append(source)
    cuda = types.ModuleType("cupy.cuda")
    cuda.compiler = compiler
    for module in (types.ModuleType("cupy"), cuda, compiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    given = option.replace("FOLDER", "stored").split()
    assert compile_kernels.main([*given, *how, "-m", "--architectures", "x"]) == 0
    source = "source for ['-m', '--architectures', 'x']"
    assert compiled == [source]
    assert [kernel[1:] for kernel in recording_cuda.recorded(tmp_path / "stored")] == [
        (source, ("-DA=1",), ("f<int>",))
    ]
    with pytest.raises(SystemExit):
        compile_kernels.main(given)
    assert "--record: give a program" in capsys.readouterr().err


def test_recorded_kernels_need_the_headers_of_cupy(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compile_kernels, "Nvrtc", FakeCompiler)
    monkeypatch.setattr(compile_kernels, "make_kernels", lambda: ({}, []))
    kernel = {"source": "#include <cupy/complex.cuh>", "options": [], "names": []}
    (tmp_path / "k.json").write_text(json.dumps(kernel))
    for installed, status in ((False, 1), (True, 0)):
        monkeypatch.setattr(compile_kernels, "has_cupy_headers", lambda installed=installed: installed)
        assert compile_kernels.main([str(tmp_path)]) == status
    assert "include headers of CuPy; pip install cupy-cuda12x" in capsys.readouterr().err


@pytest.mark.slow
def test_nvrtc_compiles_them(few):
    try:
        compiler = nvrtc_cuda.Nvrtc()
    except DeviceError as error:
        pytest.skip(str(error))
    assert "error" in (compiler.compile("int x = ;", "sm_90") or "")
    for name, kernel in [*few.items()][:: max(1, len(few) // 25)]:
        for architecture in compile_kernels.ARCHITECTURES:
            assert compiler.compile(kernel.source, architecture, (*OPTIONS, "-ftz=true")) is None, name
