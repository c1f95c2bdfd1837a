"""Scopes that use other scopes' parameters: chains, cycles, shapes. tests/recorded tests the resulting names."""

import threading

import pytest

from netbuilder.graph import NameScope
from netbuilder.model import ModelHelper, ParameterSharing, brew
from netbuilder.model.parameter_sharing import parameter_name
from netbuilder.proto import NetError, UsageError


def name_in(scope):
    with NameScope(scope):
        return str(parameter_name("w"))


def test_chains_are_followed():
    with ParameterSharing({"b": "a", "c": "b/z"}):
        found = {scope: name_in(scope) for scope in ("a", "b", "c", "b/z", "c/q", "d", "bb", "")}
    assert found == {
        "a": "a/w",
        "b": "a/w",
        "c": "a/z/w",
        "b/z": "a/z/w",
        "c/q": "a/z/q/w",
        "d": "d/w",
        "bb": "bb/w",
        "": "w",
    }


def test_a_block_that_raises_leaves_no_trace():
    with pytest.raises(KeyError), ParameterSharing({"b": "a"}):
        raise KeyError
    assert name_in("b") == "b/w"


def test_blocks_of_other_threads_do_not_count():
    found = []
    with ParameterSharing({"b": "a"}):
        thread = threading.Thread(target=lambda: found.append(name_in("b")))
        thread.start()
        thread.join()
        assert name_in("b") == "a/w"
    assert found == ["b/w"]


@pytest.mark.parametrize("scopes", [{"a": "a"}, {"a": "a/b"}, {"": "a"}])
def test_a_scope_inside_itself_is_refused(scopes):
    with pytest.raises(NetError, match="the scope itself or inside it"), ParameterSharing(scopes):
        pass


@pytest.mark.parametrize("scopes", [{"a": "b", "b": "a"}, {"a": "b/c", "b": "a"}, {"a": "b", "b": "c", "c": "a/x"}])
def test_circles_are_refused(scopes):
    with pytest.raises(NetError, match="the scopes form a cycle: "), ParameterSharing(scopes):
        pass


def test_a_circle_with_the_block_around_is_refused():
    with ParameterSharing({"a": "b"}), pytest.raises(NetError, match="cycle"), ParameterSharing({"b": "a"}):
        pass
    assert name_in("a") == "a/w"


def test_another_shape_is_refused():
    model = ModelHelper("shapes")
    with ParameterSharing({"b": "a"}):
        with NameScope("a"):
            brew.fc(model, "x", "fc", 2, 2)
        with NameScope("b"), pytest.raises(UsageError, match="'a/fc_w' exists already with shape"):
            brew.fc(model, "x", "fc", 2, 3)
    assert model.params == ["a/fc_w", "a/fc_b"]


@pytest.mark.parametrize("wrong", [["a"], {"a": 3}, {3: "a"}])
def test_scopes_are_strings(wrong):
    with pytest.raises(TypeError, match="ParameterSharing: "), ParameterSharing(wrong):
        pass
