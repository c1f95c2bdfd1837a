"""Errors for missing modules and names give the name, and the reason or the existing names."""

import importlib

import pytest

import netbuilder.caffe2
from netbuilder.caffe2.reexports import REEXPORTS

IMPORTS = {
    "import caffe2.python.lstm_benchmark": "has no module python.lstm_benchmark: use netbuilder-benchmark lstm",
    "from caffe2.python import lstm_benchmark": "has no module python.lstm_benchmark: use netbuilder-benchmark",
    "from netbuilder.caffe2.python import layers": "has no module python.layers: layer models are not supported; "
    r"use ModelHelper and brew \(see docs/caffe2.md\)$",
    "from caffe2.python.examples import resnet50_trainer": "has no module python.examples.*: Caffe2's scripts",
    "from caffe2.python.onnx import onnxifi": "python.onnx.onnxifi: use onnx.backend and onnx.frontend",
    "from caffe2.python import worksapce": r"python.worksapce; nearest: python.workspace \(see docs/caffe2.md\)",
    "import caffe2.qwerty.gloo": "has no module qwerty; it has proto.caffe2_legacy_pb2, .*python.workspace",
    "from caffe2.python.models import __sym_init__": "python.models.__sym_init__: nothing is downloaded; the files",
    "import caffe2.python.models.__sym_init__": "python.models.__sym_init__: nothing is downloaded; the files",
    "from caffe2.proto import prof_dag_pb2": "has no module proto.prof_dag_pb2",
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_modules(statement):
    with pytest.raises(ModuleNotFoundError, match="netbuilder.caffe2 .*" + IMPORTS[statement]):
        exec(statement)


NAMES = {
    "python.core": ("Nett", "has no python.core.Nett; nearest: Net"),
    "python.optimizer": ("build_yelowfin", "has no python.optimizer.build_yelowfin; nearest: build_yellowfin"),
    "python.workspace": ("FetchBolb", "has no python.workspace.FetchBolb; nearest: FetchBlob"),
    "python.brew": (
        "video_input",
        "has no python.brew.video_input: its operators are not supported",
    ),
    "python.models.resnet": ("qqq", "has no python.models.resnet.qqq; it has .*create_resnet50"),
    "proto.caffe2_pb2": ("NetDeff", "has no proto.caffe2_pb2.NetDeff; nearest: NetDef"),
    "python": ("nothing_at_all", "has no python.nothing_at_all"),
}


@pytest.mark.parametrize("module", NAMES)
def test_names(module):
    name, text = NAMES[module]
    loaded = __import__(f"caffe2.{module}", fromlist=["*"])
    with pytest.raises(AttributeError, match=text):
        getattr(loaded, name)
    assert not hasattr(loaded, name) and getattr(loaded, name, 3) == 3
    if module != "python":
        with pytest.raises(ImportError, match=text):
            exec(f"from caffe2.{module} import {name}")


MEMBERS = {
    "VideoInput": "its operators are not supported",
    "FC_Prune": "Caffe2 itself has no such operator",
    "add_param_DEPRECATED": "use create_param or AddParameter",
}


def test_helpers_of_brew_are_suggested():
    from caffe2.python import brew

    with pytest.raises(AttributeError, match="has no python.brew.fcc; nearest: fc "):
        brew.fcc  # noqa: B018
    with pytest.raises(AttributeError, match="has no python.brew.Fc; nearest: fc "):
        brew.Fc  # noqa: B018


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_models_and_nets(name):
    from caffe2.python import cnn

    model = cnn.CNNModelHelper(name="refusing")
    with pytest.raises(AttributeError, match=f"{name}.*{MEMBERS[name]}"):
        getattr(model, name)
    assert not hasattr(model.net, name)


def test_scripts_can_ask_whether_a_module_is_there():
    try:
        from caffe2.python import layer_model_helper
    except ImportError:
        layer_model_helper = None
    assert layer_model_helper is None


@pytest.mark.parametrize("module", REEXPORTS)
def test_names_that_modules_take_over(module):
    loaded = importlib.import_module(f"caffe2.python.{module}")
    for part in REEXPORTS[module].split("; "):
        home, _, names = part.partition(": ")
        for name in names.split():
            assert getattr(loaded, name) is getattr(importlib.import_module(f"caffe2.python.{home}"), name)
    exec(f"from caffe2.python.{module} import {name}")


def test_names_of_the_language_are_plain_errors():
    with pytest.raises(AttributeError, match="has no attribute '__nothing__'"):
        netbuilder.caffe2.__nothing__  # noqa: B018
