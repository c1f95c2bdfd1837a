"""Lookups in tables of 8, 4 and 2 bits; sums to the last bit are golden cases."""

import numpy as np
import pytest
from hypothesis import strategies as st

from checks import run_plain
from netbuilder.ops.quantized import quantized_lookups
from netbuilder.proto import ShapeError
from quantized_rows import draw_rows, u8
from suite import OperatorSuite, f32, floats, i32, i64, refusal

ROWS = 5
KINDS = ("Sum", "WeightedSum", "Mean")


class _Lookup(OperatorSuite):
    """Draws segments, and weights if there are any; ``bits`` None: scale and bias are an input."""

    no_gradient = "as in Caffe2"
    bits, pruned = 8, False
    rtol, atol = 1e-5, 1e-5

    def draw(self, data):
        lengths = np.array(data.draw(st.lists(st.integers(0, 4), max_size=4)), np.int32)
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        kind = data.draw(st.sampled_from([np.int32, np.int64]))
        if self.bits is None:
            codes, pairs = rng.integers(0, 256, (ROWS, 2, 3), dtype=np.uint8), data.draw(floats(ROWS, 2))
            wide = pairs.astype(np.float64)[:, :, None, None]
            table, self.values, last = codes, codes * wide[:, 0] + wide[:, 1], [pairs]
        else:
            table, self.values = draw_rows(data, self.bits, "<f4" if self.bits == 8 else "<f2", rows=ROWS)
            last = []
        mapping = np.arange(ROWS, dtype=np.int32)
        if self.pruned:
            mapping = data.draw(st.sampled_from([rng.integers(-1, ROWS, 7), np.zeros(1, int)])).astype(np.int32)
            last = [mapping]
        one_row = mapping.size == 1  # nothing is pruned
        if not one_row:
            self.values = self.values[mapping] * (mapping >= 0).reshape(-1, *[1] * (self.values.ndim - 1))
        indices = rng.integers(0, len(self.values), lengths.sum()).astype(kind)
        self.weighted = "Weighted" in self.operator.__name__
        weights = [data.draw(floats(len(indices)))] if self.weighted else []
        return self.operator(), [table, *weights, indices, lengths, *last]

    def reference(self, op, table, *rest):
        weights, (indices, lengths) = (rest[0], rest[1:3]) if self.weighted else (np.ones(len(rest[0])), rest[:2])
        y, at = np.zeros((len(lengths), *self.values.shape[1:])), 0
        for s, n in enumerate(lengths.tolist()):
            for k in range(at, at + n):
                y[s] += weights[k] * self.values[indices[k]] / (n if "Mean" in op.type else 1)
            at += n
        return [y]


def inputs_of(cls, table, indices, lengths, last=()):
    return [table, *([f32(*indices.shape)] if "WEIGHTS" in cls.inputs else []), indices, lengths, *last]


def suite_of(cls, bits, pruned=False):
    """Return the test class of one operator."""
    name = cls.__name__
    last = [i32(4)] if pruned else [f32(3, 2)] if bits is None else []
    bad = [
        refusal(cls(), inputs_of(cls, u8(3, 12), f32(4), i32(2), last), "INDICES must be a vector of int32 or int64"),
        refusal(cls(), inputs_of(cls, u8(3, 12), i64(4), f32(2), last), "LENGTHS must be a vector of int32 or int64"),
    ]
    if bits is not None:
        bad.append(refusal(cls(), inputs_of(cls, u8(3, 2, 12), i32(4), i32(2), last), "DATA must be a matrix"))
        bad.append(refusal(cls(), inputs_of(cls, f32(3, 12), i32(4), i32(2), last), "rows of more than . bytes"))
    else:
        bad.append(refusal(cls(), inputs_of(cls, u8(3, 12), i32(4), i32(2), [f32(2, 2)]), "scale_bias must have shape"))
    if pruned:
        text = "COMPRESSED_INDICES_MAPPING must be a vector"
        bad.append(refusal(cls(), inputs_of(cls, u8(3, 12), i32(4), i32(2), [f32(2)]), text))
    if "WEIGHTS" in cls.inputs:
        given = [u8(3, 12), f32(3), i32(4), i32(2), *last]
        bad.append(refusal(cls(), given, r"weights must have shape \(4,\) and type float32"))
    return type(f"Test{name}", (_Lookup,), {"operator": cls, "bits": bits, "pruned": pruned, "refusals": tuple(bad)})


for _bits in (8, 4, 2):
    for _kind in KINDS:
        for _name, _pruned in ((f"{_kind}Fused{_bits}BitRowwise", False), (f"{_kind}{_bits}BitRowwiseSparse", True)):
            _cls = getattr(quantized_lookups, f"SparseLengths{_name}")
            globals()[f"Test{_cls.__name__}"] = suite_of(_cls, _bits, _pruned)
for _kind in (*KINDS, "WeightedMean"):
    _cls = getattr(quantized_lookups, f"SparseLengths{_kind}8BitsRowwise")
    globals()[f"Test{_cls.__name__}"] = suite_of(_cls, None)

TABLE = np.zeros((3, 12), np.uint8)
LENGTHS = np.int32([2, 1])


@pytest.mark.parametrize(
    ("name", "inputs", "error", "message"),
    [
        ("SumFused8BitRowwise", [TABLE, np.int32([0, 1, 5]), LENGTHS], IndexError, r"must lie in \[0, 3\), got 5"),
        ("SumFused4BitRowwise", [TABLE, np.int64([0, -1, 1]), LENGTHS], IndexError, r"must lie in \[0, 3\), got -1"),
        ("SumFused8BitRowwise", [TABLE, np.int32([0, 1]), LENGTHS], ShapeError, "must be the number of rows, 2, got 3"),
        (
            "Sum2BitRowwiseSparse",
            [TABLE, np.int32([0, 1, 2]), LENGTHS, np.int32([0, -1])],
            IndexError,
            r"must lie in \[0, 2\), got 2",
        ),
        (
            "Mean4BitRowwiseSparse",
            [TABLE, np.int32([0, 1, 2]), LENGTHS, np.int32([0, -1, 7])],
            IndexError,
            r"COMPRESSED_INDICES_MAPPING must lie in \[-1, 3\), got 7",
        ),
    ],
)
def test_what_does_not_fit(name, inputs, error, message):
    with pytest.raises(error, match=message):
        run_plain(getattr(quantized_lookups, f"SparseLengths{name}")(), inputs)
