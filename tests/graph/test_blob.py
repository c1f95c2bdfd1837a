"""Blob references and the names the library makes."""

import copy
import pickle

import pytest

from netbuilder.graph import BlobReference, NameScope, Net, ScopedBlobReference, ScopedName
from netbuilder.graph.blob import (
    autosplit_name,
    blob_name,
    device_prefix,
    gradient_name,
    is_gradient_name,
    seed_name,
    strip_gradient,
    strip_prefix,
    with_prefix,
)
from netbuilder.proto import PROTO_CPU, NetError
from netbuilder.proto.arguments import make_argument


def test_equality_and_hash_are_those_of_the_name():
    a = BlobReference("a")
    assert a == BlobReference("a", Net("n")) and a == "a" and "a" == a
    assert a != BlobReference("b") and a != "b" and a != 3
    assert {a: 1}["a"] == 1 and {"a": 1}[a] == 1
    assert sorted([BlobReference("b"), "c", a]) == ["a", "b", "c"]


def test_joining_with_strings_gives_references():
    net = Net("n")
    a = BlobReference("a", net)
    assert isinstance(a + "_w", BlobReference) and (a + "_w").Net() is net
    assert "x/" + a == "x/a" and isinstance("x/" + a, BlobReference)
    for other in (3, a):
        with pytest.raises(TypeError, match="appends a string"):
            a + other


@pytest.mark.parametrize(
    ("name", "scope", "rest"), [("a/b/c", "a/b/", "c"), ("c", "", "c"), ("a/", "a/", ""), ("", "", "")]
)
def test_scope_and_rest_of_a_name(name, scope, rest):
    assert BlobReference(name).GetNameScope() == scope
    assert BlobReference(name).GetUnscopedName() == rest


def test_references_are_made_from_all_that_names_a_blob():
    assert [str(BlobReference(name)) for name in ("a", b"a", BlobReference("a"))] == ["a"] * 3
    assert repr(BlobReference("a")) == 'BlobReference("a")'
    assert blob_name(b"a") == blob_name(BlobReference("a")) == "a"
    with pytest.raises(TypeError, match="BlobReference or a string, got 3"):
        blob_name(3)


def test_references_are_immutable_and_copy_as_themselves():
    a = BlobReference("a", Net("n"))
    assert copy.copy(a) is a and copy.deepcopy(a) is a
    assert pickle.loads(pickle.dumps(a)) == a
    with pytest.raises(AttributeError):
        a.something = 1


def test_operators_on_a_reference():
    net = Net("n")
    h = net.Relu("x", "h")
    assert h.Sum(["a", "b"], "s") == "s"
    assert h.Relu() == f"{net}/Relu"
    assert h.Add("a", "t", broadcast=1) == "t"
    assert [list(op.input) for op in net.Proto().op[1:]] == [["h", "a", "b"], ["h"], ["h", "a"]]
    with pytest.raises(AttributeError, match="did you mean .*Relu"):
        _ = h.Rleu


def test_a_reference_without_net_says_what_to_call():
    with pytest.raises(AttributeError, match=r"its net is not known, .*; call it on a net: net.Relu"):
        BlobReference("a").Relu([], "y")
    assert not hasattr(BlobReference("a"), "shape")


def test_a_reference_does_not_look_like_its_net():
    net = Net("n")
    a = net.Relu("x", "a")
    assert not any(hasattr(a, name) for name in ("Proto", "Clone", "Name", "op_len", "_net_names", "shape"))
    held = make_argument("blobs", [a, net.Relu(a, "b")])
    assert held.strings == [b"a", b"b"] and not held.nets


def test_scoped_names():
    with NameScope("s"):
        assert ScopedName("x") == "s/x"
        assert ScopedName(BlobReference("x")) == "x"
        net = Net("n")
        reference = ScopedBlobReference("x", net)
        assert reference == "s/x" and reference.Net() is net
        assert ScopedBlobReference(reference) is reference


def test_names_of_gradients():
    assert gradient_name(BlobReference("cpu_0/w")) == "cpu_0/w_grad"
    assert strip_gradient("cpu_0/w_grad") == "cpu_0/w"
    assert is_gradient_name("w_grad") and not is_gradient_name("w")
    assert seed_name("loss") == "loss_autogen_grad"
    assert autosplit_name("w_grad", 3) == "_w_grad_autosplit_3"
    with pytest.raises(NetError, match="'w' is not a gradient: the name of a gradient ends in '_grad'"):
        strip_gradient("w")


def test_prefixes_of_replicas():
    assert device_prefix(PROTO_CPU, 12) == "cpu_12"
    assert with_prefix("cpu_12", BlobReference("w")) == with_prefix("cpu_12/", "cpu_12/w") == "cpu_12/w"
    assert strip_prefix("cpu_12/a/w") == "a/w" and strip_prefix("cpu/w") == "cpu/w"
    assert strip_prefix("cpu_1/w", "cpu_12") == "cpu_1/w" and strip_prefix("cpu_12/w", "cpu_12") == "w"
    with pytest.raises(NetError, match="device type 2"):
        device_prefix(2, 0)
