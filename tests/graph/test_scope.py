"""Name scopes and device scopes."""

import threading

import pytest

from netbuilder.graph import (
    CreateOperator,
    CurrentDeviceScope,
    CurrentNameScope,
    DeviceScope,
    EmptyDeviceScope,
    EmptyNameScope,
    NameScope,
)
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption


def gpu(index: int, **fields) -> DeviceOption:
    return DeviceOption(device_type=PROTO_CUDA, device_id=index, **fields)


def test_name_scopes_nest():
    assert CurrentNameScope() == ""
    with NameScope("a"):
        with NameScope("b"):
            assert CurrentNameScope() == "a/b/"
        assert CurrentNameScope() == "a/"
    assert CurrentNameScope() == ""


@pytest.mark.parametrize(
    ("prefix", "scope"), [("", "a/"), (None, "a/"), ("b", "a/b/"), ("b/c", "a/b/c/"), ("b/", "a/b//"), ("/b", "a//b/")]
)
def test_prefixes_as_caffe2_joins_them(prefix, scope):
    with NameScope("a"), NameScope(prefix):
        assert CurrentNameScope() == scope


def test_reset_starts_anew_and_empty_scope_leaves_all():
    with NameScope("a"):
        with NameScope("b", reset=True):
            assert CurrentNameScope() == "b/"
        with EmptyNameScope():
            assert CurrentNameScope() == ""
        assert CurrentNameScope() == "a/"


def test_scopes_are_back_after_an_exception():
    with NameScope("a"), DeviceScope(gpu(1)):
        with pytest.raises(KeyError), NameScope("b"), DeviceScope(gpu(2)), EmptyDeviceScope(), EmptyNameScope():
            raise KeyError
        assert CurrentNameScope() == "a/"
        assert CurrentDeviceScope() == gpu(1)
    assert CurrentNameScope() == ""
    assert CurrentDeviceScope() is None


def test_threads_have_scopes_of_their_own():
    seen = []
    with NameScope("a"), DeviceScope(gpu(1)):
        thread = threading.Thread(target=lambda: seen.append((CurrentNameScope(), CurrentDeviceScope())))
        thread.start()
        thread.join()
    assert seen == [("", None)]


@pytest.mark.parametrize(
    ("outer", "inner", "merged"),
    [
        (gpu(2), DeviceOption(device_type=PROTO_CPU, device_id=3), DeviceOption(device_type=PROTO_CPU, device_id=3)),
        (gpu(2, node_name="host"), gpu(1), gpu(1, node_name="host")),
        (gpu(2, node_name="host"), gpu(1, node_name="other"), gpu(1, node_name="other")),
        (gpu(2, extra_info=["x"]), gpu(1, extra_info=["y"]), gpu(1, extra_info=["x", "y"])),
        (gpu(2, random_seed=7, numa_node_id=1), gpu(1), gpu(1)),
    ],
)
def test_device_scopes_merge_as_caffe2_does(outer, inner, merged):
    with DeviceScope(outer), DeviceScope(inner):
        assert CurrentDeviceScope() == merged
    assert outer != merged  # the arguments are left alone


def test_node_name_argument():
    with DeviceScope(gpu(0, node_name="a"), node_name="b"):
        assert CurrentDeviceScope().node_name == "b"


def test_operators_take_scopes():
    with NameScope("s"), DeviceScope(gpu(1)):
        op = CreateOperator("Relu", "x", "y", control_input="c")
        placed = CreateOperator("Relu", "x", "y", device_option=gpu(0))
        with EmptyDeviceScope():
            free = CreateOperator("Relu", "x", "y")
    assert (op.input, op.output, op.control_input) == (["s/x"], ["s/y"], ["s/c"])
    assert op.device_option == gpu(1)
    assert placed.device_option == gpu(0)
    assert not free.HasField("device_option")


@pytest.mark.parametrize("make", [lambda: NameScope(3), lambda: DeviceScope("gpu"), lambda: DeviceScope(None)])
def test_refusals(make):
    with pytest.raises(TypeError, match="got"), make():
        pass
