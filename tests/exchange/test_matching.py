"""Blobs of a checkpoint matched with those of a model."""

import numpy as np
import pytest

from netbuilder.exchange.matching import LoadReport, match_blobs
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import NetError


def specs(**shapes):
    return {name.replace("__", "/"): TensorSpec(shape, np.dtype(np.float32)) for name, shape in shapes.items()}


def test_equal_names_match():
    match = match_blobs(specs(a=(1,), b=(2,)), specs(a=(1,), b=(2,)))
    assert match.targets == {"a": "a", "b": "b"}
    assert match.skipped == match.left == {}


def test_mismatches_are_reported_on_both_sides():
    stored = specs(a=(1,), b=(2,), old=(3,))
    stored["kind"] = TensorSpec((1,), np.dtype(np.int64))
    match = match_blobs(stored, specs(a=(1,), b=(5,), new=(3,), kind=(1,)))
    assert match.targets == {"a": "a"}
    shape = "shape (2,) in the checkpoint, (5,) in the model"
    kind = "elements of type int64 in the checkpoint, float32 in the model"
    assert match.skipped == {"b": shape, "old": "the model has no blob of this name", "kind": kind}
    assert match.left == {"b": shape, "kind": kind, "new": "the checkpoint has no blob of this name"}
    assert not match.intended


def test_scopes_of_devices_in_the_checkpoint():
    match = match_blobs(specs(gpu_0__a__w=(1,), gpu_1__a__w=(1,), b=(2,)), specs(a__w=(1,), b=(2,)))
    assert match.targets == {"a/w": "gpu_0/a/w", "b": "b"}
    assert match.skipped == {"gpu_1/a/w": "a copy of 'gpu_0/a/w', on another device"}
    assert match.intended == {"gpu_1/a/w"}
    same = match_blobs(specs(gpu_0__w=(1,)), specs(gpu_0__w=(1,)))
    assert same.targets == {"gpu_0/w": "gpu_0/w"}


def test_renames():
    match = match_blobs(
        specs(old__a=(1,), old__b=(2,), c=(3,)), specs(new__a=(1,), new__b=(2,), d=(3,)),
        rename={"old/*": "new/*", "c": "d"},
    )  # fmt: skip
    assert match.targets == {"new/a": "old/a", "new/b": "old/b", "d": "c"}
    wrong = match_blobs(specs(a=(1,)), specs(b=(2,)), rename={"a": "b"})
    assert wrong.skipped["a"] == "renamed to 'b', shape (1,) in the checkpoint, (2,) in the model"


def test_blobs_omitted():
    match = match_blobs(specs(fc_w=(1,), fc_b=(1,), conv=(1,)), specs(fc_w=(1,), fc_b=(1,), conv=(1,)), skip="fc_*")
    assert match.targets == {"conv": "conv"}
    assert match.left == dict.fromkeys(("fc_w", "fc_b"), "left out by skip='fc_*'")
    assert match.intended == {"fc_w", "fc_b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rename": {"x": "b"}}, "rename: the checkpoint has no blob 'x'; it has a, b"),
        ({"rename": {"x*": "b*"}}, r"rename: the checkpoint has no blob 'x\*'"),
        ({"rename": {"a*": "b"}}, "both names must end in"),
        ({"rename": {"a": "b"}}, "rename: '[ab]' and '[ab]' would both be loaded into 'b'"),
        ({"skip": ["c"]}, "skip: the model has no blob 'c'; it has a, b"),
    ],
)
def test_entries_that_fit_nothing(options, message):
    with pytest.raises(NetError, match=message):
        match_blobs(specs(a=(1,), b=(1,)), specs(a=(1,), b=(1,)), **options)


def test_the_report_is_a_table():
    report = LoadReport("'c'", ("a",), {"b": "why"}, {"d": "so"})
    assert str(report).splitlines() == [
        "'c': 1 blobs loaded, 1 skipped, 1 re-initialized",
        "  loaded          a",
        "  skipped         b: why",
        "  re-initialized  d: so",
    ]
