"""MergeSingleScalarFeatureTensors and its kin: features of samples merged into one list each."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.features import feature_tensors
from netbuilder.ops.features.feature_tensors import (
    MergeDenseFeatureTensors,
    MergeMultiListFeatureTensors,
    MergeMultiListFeatureTensorsGradient,
    MergeMultiMapFeatureTensors,
    MergeMultiMapFeatureTensorsGradient,
    MergeMultiScalarFeatureTensors,
    MergeMultiScalarFeatureTensorsGradient,
    MergeSingleListFeatureTensors,
    MergeSingleListFeatureTensorsGradient,
    MergeSingleMapFeatureTensors,
    MergeSingleMapFeatureTensorsGradient,
    MergeSingleScalarFeatureTensors,
    MergeSingleScalarFeatureTensorsGradient,
)
from netbuilder.proto import ArgumentError, NetError, ShapeError
from suite import OperatorSuite, f32, floats, refusal

FEATURES = 2
IDS = (11, 12)


def draw_groups(data, fields):
    """Draw what each feature gives, by name: absent samples are empty."""
    samples = data.draw(st.integers(0, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    groups = []
    for _ in range(FEATURES):
        group = {"presence": rng.integers(0, 2, samples).astype(bool)}
        group["lengths"] = rng.integers(0, 3, samples).astype(np.int32)
        if "presence" in fields:
            group["lengths"] *= group["presence"]
        count = samples if fields == ("values", "presence") else int(group["lengths"].sum())
        group["keys"] = rng.integers(0, 9, count)
        if "values_lengths" in fields:
            group["values_lengths"] = rng.integers(0, 3, count).astype(np.int32)
            count = int(group["values_lengths"].sum())
            group["values_keys"] = rng.integers(0, 9, count)
        group["values"] = data.draw(floats(count))
        groups.append(group)
    return groups


def entries(groups, fields):
    """Yield (sample, feature's number, key, keys of the values, values) in the order of the outputs."""
    taken = [{"entry": 0, "value": 0} for _ in groups]
    for s in range(len(groups[0]["presence" if "presence" in fields else "lengths"])):
        for f, group in enumerate(groups):
            if "presence" in fields and not group["presence"][s]:
                continue
            repeats = 1 if "presence" in fields else int(group["lengths"][s])
            for _ in range(repeats):
                entry = s if "presence" in fields else taken[f]["entry"]
                taken[f]["entry"] += 1
                key = IDS[f] if "presence" in fields else group["keys"][entry]
                if fields[-2:] == ("keys", "values") or fields == ("values", "presence"):
                    places = np.array([entry])
                else:
                    count = int((group["values_lengths"] if "values_lengths" in fields else group["lengths"])[entry])
                    places = taken[f]["value"] + np.arange(count)
                    taken[f]["value"] += count
                yield s, f, key, places


class _Merge(OperatorSuite):
    @property
    def wrt(self):
        fields = self.operator.fields
        return tuple(f * len(fields) + fields.index("values") for f in range(FEATURES))

    @property
    def d_outputs(self):
        return (len(self.operator.outputs) - 1,)

    @property
    def refusals(self):
        op = self.operator()
        bad = refusal(op, [f32(2)] * (len(self.operator.fields) + 1), "of each feature, got", NetError)
        if not hasattr(op, "feature_ids"):
            return (bad,)
        right = [f32(2)] * len(self.operator.fields)
        return (bad, refusal(self.operator(), right, "an id for each of the 1 features", ArgumentError))

    def draw(self, data):
        fields = self.operator.fields
        op = self.operator(feature_ids=IDS) if "presence" in fields else self.operator()
        given = [group[name] for group in draw_groups(data, fields) for name in fields]
        return op.with_arity(len(given), len(self.operator.outputs)), given

    def reference(self, op, *given):
        fields = self.operator.fields
        groups = [dict(zip(fields, given[i : i + len(fields)])) for i in range(0, len(given), len(fields))]
        found = list(entries(groups, fields))
        samples = len(groups[0]["presence" if "presence" in fields else "lengths"])

        def values(name):
            return np.concatenate([np.zeros(0), *(groups[f][name][places] for _, f, _, places in found)])

        made = {
            "lengths": np.array([sum(entry[0] == s for entry in found) for s in range(samples)], int),
            "keys": np.array([key for _, _, key, _ in found], int),
            "values_lengths": np.array([len(places) for *_, places in found], int),
            "values": values("values"),
        }
        if "values_keys" in self.operator.outputs:
            made["values_keys"] = values("values_keys" if "values_keys" in fields else "keys")
        return [made[name] for name in self.operator.outputs]


class TestMergeSingleScalarFeatureTensors(_Merge):
    operator = MergeSingleScalarFeatureTensors


class TestMergeSingleListFeatureTensors(_Merge):
    operator = MergeSingleListFeatureTensors


class TestMergeSingleMapFeatureTensors(_Merge):
    operator = MergeSingleMapFeatureTensors


class TestMergeMultiScalarFeatureTensors(_Merge):
    operator = MergeMultiScalarFeatureTensors


class TestMergeMultiListFeatureTensors(_Merge):
    operator = MergeMultiListFeatureTensors


class TestMergeMultiMapFeatureTensors(_Merge):
    operator = MergeMultiMapFeatureTensors


class _Gradient(OperatorSuite):
    no_gradient = "a gradient operator"

    @property
    def refusals(self):
        inputs = [f32(2)] * (len(self.operator.fields) + 2)
        if len(self.operator.fields) == 1:
            inputs = [f32(2)]
        return (refusal(self.operator(), inputs, "and the gradient of the values, got", NetError),)

    def draw(self, data):
        forward = getattr(feature_tensors, self.operator.__name__.removesuffix("Gradient"))
        groups = draw_groups(data, forward.fields)
        count = sum(len(places) for *_, places in entries(groups, forward.fields))
        given = [group[name] for group in groups for name in self.operator.fields]
        self.groups = groups
        return self.operator().with_arity(len(given) + 1, FEATURES), [*given, data.draw(floats(count))]

    def reference(self, op, *given):
        forward = getattr(feature_tensors, self.operator.__name__.removesuffix("Gradient"))
        made = [np.zeros(len(group["values"])) for group in self.groups]
        at = 0
        for _, f, _, places in entries(self.groups, forward.fields):
            made[f][places] = given[-1][at : at + len(places)]
            at += len(places)
        return made


class TestMergeSingleScalarFeatureTensorsGradient(_Gradient):
    operator = MergeSingleScalarFeatureTensorsGradient


class TestMergeSingleListFeatureTensorsGradient(_Gradient):
    operator = MergeSingleListFeatureTensorsGradient


class TestMergeSingleMapFeatureTensorsGradient(_Gradient):
    operator = MergeSingleMapFeatureTensorsGradient


class TestMergeMultiScalarFeatureTensorsGradient(_Gradient):
    operator = MergeMultiScalarFeatureTensorsGradient


class TestMergeMultiListFeatureTensorsGradient(_Gradient):
    operator = MergeMultiListFeatureTensorsGradient


class TestMergeMultiMapFeatureTensorsGradient(_Gradient):
    operator = MergeMultiMapFeatureTensorsGradient


class TestMergeDenseFeatureTensors(OperatorSuite):
    operator = MergeDenseFeatureTensors
    no_gradient = "it has none"
    refuses_nothing = "shapes are seen when it runs; see test_what_does_not_fit"

    def draw(self, data):
        samples = data.draw(st.integers(0, 3))
        present = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 2, (samples, 2)).astype(bool)
        return MergeDenseFeatureTensors(feature_ids=IDS), [data.draw(floats(samples, 2)), present]

    def reference(self, op, x, present):
        found = [(s, f) for s in range(len(x)) for f in range(2) if present[s, f]]
        return [
            present.sum(axis=1),
            np.array([IDS[f] for _, f in found], int),
            np.array([x[place] for place in found]),
        ]


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        (
            MergeDenseFeatureTensors(),
            [np.zeros((2, 2)), np.ones((2, 2), bool)],
            "a column for each of the 0 feature_ids",
        ),
        (
            MergeMultiScalarFeatureTensors().with_arity(3, 3),
            [np.int32([2]), np.int64([1, 2]), np.zeros(1)],
            r"values must have as many rows as the lengths say, got \[1\]",
        ),
        (
            MergeSingleScalarFeatureTensors(feature_ids=IDS).with_arity(4, 3),
            [np.zeros(2), np.ones(2, bool), np.zeros(3), np.ones(3, bool)],
            r"presence of all features must have the same size, got \[2, 3\]",
        ),
        (
            MergeSingleMapFeatureTensors(feature_ids=(11,)).with_arity(4, 5),
            [np.int32([1, 1, 1]), np.int64([1, 2, 3]), np.zeros(3), np.ones(4, bool)],
            "lengths and presence must have one element per sample each, got 3 and 4",
        ),
        (
            MergeSingleListFeatureTensorsGradient().with_arity(3, 1),
            [np.int32([1, 1, 1]), np.ones(1, bool), np.zeros(3)],
            "lengths and presence must have one element per sample each, got 3 and 1",
        ),
        (
            MergeMultiScalarFeatureTensorsGradient().with_arity(2, 1),
            [np.int32([2]), np.zeros(3)],
            "there are 2 merged values, but dY has shape",
        ),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_what_does_not_fit(op, inputs, message):
    with pytest.raises(ShapeError, match=message):
        run_plain(op, inputs)
