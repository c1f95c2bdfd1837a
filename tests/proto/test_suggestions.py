"""Similar names, in the errors about a name that is not known."""

import inspect
import operator
import re

import pytest

from house import library_modules
from netbuilder import optimizers
from netbuilder.exchange.onnx import export_onnx
from netbuilder.model import ModelHelper
from netbuilder.optimizers import build_adam, build_sgd
from netbuilder.proto.suggestions import did_you_mean, mismatch, similar
from netbuilder.runtime import Workspace


@pytest.mark.parametrize(
    "name, known, found",
    [
        ("paddding", ["pad", "stride"], ["pad"]),  # 6 of 11 letters, too few for a ratio
        ("dim", ["dimensions_of_it", "in"], ["dimensions_of_it"]),
        ("di", ["dimensions_of_it"], []),
        ("paddding", ["pa"], []),
        ("--paddding", ["--", "--p", "--pad"], ["--pad"]),
        ("loss", ["losses", "cpu_1/loss", "cpu_0/loss"], ["cpu_1/loss", "cpu_0/loss"]),
        ("w1", [f"w{i}" for i in range(2, 9)], []),
        ("kernal", {"kernel": 1, "stride": 2}, ["kernel"]),
        ("nothing", ["x"], []),
        ("--pretrained", ["--trace"], []),
        ("--imgsz", ["--weights"], []),
        ("--lr", ["--trace", "--learning-rate"], ["--learning-rate"]),
        ("--wd", ["--weight-decay", "--width"], ["--weight-decay"]),
        ("", ["data"], []),
        ("Linear", ["iter", "fc"], ["fc"]),
        ("linear", ["iter", "Linear", "fc"], ["Linear"]),
    ],
)
def test_similar(name, known, found):
    assert similar(name, known) == found and similar(name, known, 1) == found[:1]


def test_one_form():
    assert did_you_mean("dat", ["data", "date", "label"]) == "; did you mean 'date' or 'data'?"
    assert did_you_mean("dat", ["label"]) == ""


def test_arguments_that_do_not_match():
    def function(devices, kernel=3, *, stride=1):
        pass

    signature = inspect.signature(function)
    assert mismatch(signature, [[0]], {"stride": 2}) == ""
    said = mismatch(signature, [[0]], {"kernal": 1, "strid": 2, "qwerty": 3})
    assert said.endswith("; instead of 'kernal', did you mean 'kernel'?; instead of 'strid', did you mean 'stride'?")
    assert "did you mean" not in mismatch(signature, [[0]], {"device": [0]})  # devices is given
    assert mismatch(signature, [], {}) == "missing a required argument: 'devices'"
    said = mismatch(signature, [], {"strid": 1, "qwerty": 2})
    assert said.startswith("got unexpected keyword arguments 'strid', 'qwerty'; missing a required argument: 'devices'")


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Workspace(sed=3), "Workspace: .*; instead of 'sed', did you mean 'seed'"),
        (lambda: ModelHelper(init_param=True), "ModelHelper: .*; instead of 'init_param', did you mean 'init_params'"),
        (lambda: build_sgd(None, learning_rate=1), "build_sgd: got .*; missing .*; instead of 'learning_rate', did"),
        (lambda: build_adam(None, rate=1, beta=1), "build_adam: got 'rate', 'beta'; missing a required argument: 'bas"),
        (lambda: export_onnx("x.onnx", None, opset_version=17), "export_onnx: .*; instead of 'opset_v.* 'opset'"),
        (lambda: build_adam(None, lr=1), "build_adam: got 'lr'; missing .*; instead of 'lr', did you mean 'base_lear"),
    ],
)  # fmt: skip
def test_objects_and_optimizers_name_similar_arguments(make, said):
    with pytest.raises(TypeError, match=said):
        make()


def test_a_package_whose_names_are_imported_names_similar_ones():
    with pytest.raises(AttributeError, match="did you mean 'build_adamw'"):
        operator.attrgetter("build_adamW")(optimizers)


def test_suggesting_keeps_the_signature():
    assert list(inspect.signature(Workspace).parameters)[:2] == ["engines", "threads"]
    assert list(inspect.signature(ModelHelper).parameters)[:2] == ["name", "init_params"]
    assert list(inspect.signature(build_sgd).parameters)[:2] == ["model", "base_learning_rate"]


def test_messages_suggest_names_in_one_form():
    """Other modules neither look for similar names by themselves nor write the text."""
    for module in library_modules():
        if module.name != "netbuilder.proto.suggestions":
            text = re.sub(r">>> .*|\"; did .*", "", module.path.read_text())
            assert not re.search("difflib|did you mean", text), module.name
