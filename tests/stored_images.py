"""Random images and numbers per channel as GPUs store them, and what an operator computes of them in float64."""

import numpy as np

from checks import interpret
from netbuilder.engines.cuda.gpu_layout import BFLOAT16, array_dtype, elements_of, image_spec, row_major_spec
from netbuilder.engines.gpu import gpu
from netbuilder.ops.core.extensions import Capturable
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto.arguments import make_op
from on_gpu import launched
from prepared import FakePlan

__all__ = ["SHAPES", "Case", "got", "put", "reference", "rounded"]

SHAPES = {
    "vectors": (3, 64, 7, 8),
    "odd": (3, 5, 7, 3),
    "several blocks of channels": (2, 520, 3, 3),
    "many rows": (16, 8, 33, 32),
    "pixels": (6, 24, 1, 1),
    "one axis": (5, 6, 9),
    "matrix": (7, 12),
    "one": (1, 1, 1, 1),
}
TOLERANCES = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12, BFLOAT16: 1.2e-2}


def rounded(array, elements):
    if elements == BFLOAT16:
        return (array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return array.astype(elements).astype(np.float64)


def put(array, spec):
    """The memory of a value in the layout of a spec."""
    elements = elements_of(spec)
    if spec.layout is not None and not spec.layout.is_row_major:
        array = np.moveaxis(array, 1, -1)
    if elements == BFLOAT16:
        array = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    array = np.ascontiguousarray(array.astype(array_dtype(elements)))
    return array if spec.layout is None else array.reshape(-1).view(np.uint8)


def got(buffer, spec):
    elements, shape = elements_of(spec), spec.shape
    values = buffer.reshape(-1).view(array_dtype(elements))
    if elements == BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if spec.layout is not None and not spec.layout.is_row_major:
        return np.moveaxis(values.reshape(shape[0], *shape[2:], shape[1]), -1, 1)
    return values.reshape(shape)


class Case:
    """Random images and numbers, stored in some way."""

    def __init__(self, shape, stored, order="NCHW"):
        self.elements, _, last = stored.partition(" ")
        self.dtype = np.dtype(np.float32 if self.elements == BFLOAT16 else self.elements)
        self.wide = np.dtype(np.float64 if self.dtype == np.float64 else np.float32)
        plain = TensorSpec(shape, self.dtype)
        self.image = (image_spec if last else lambda s, _, e: row_major_spec(s, e))(plain, order, self.elements)
        self.tolerance, self.order = TOLERANCES[self.elements], order
        self.channels = shape[1 if order == "NCHW" else -1]
        self.rng = np.random.default_rng(5)

    def images(self, count=1):
        return [rounded(self.rng.standard_normal(self.image.shape), self.elements) for _ in range(count)]

    def numbers(self, low=0.5, high=1.5):
        return self.rng.uniform(low, high, self.channels).astype(self.wide).astype(np.float64)

    def op(self, op_type, n_in, n_out, **arguments):
        names, outs = [f"x{k}" for k in range(n_in)], [f"y{k}" for k in range(n_out)]
        if op_type == "SpatialBN":
            names[3:5] = outs[1:3]
        return decode(find(op_type), make_op(op_type, names, outs, order=self.order, **arguments))

    def run(self, make, op, inputs, *, overwrite=None):
        """What a kernel computes; twice, with the same bits."""
        specs = [self.image if each.shape == self.image.shape else TensorSpec(each.shape, self.wide) for each in inputs]
        made = make(op, FakePlan(), *specs)
        assert made is not None and made.get(Capturable)
        assert [spec.layout for spec in made.inputs] == [spec.layout for spec in specs], "nothing is converted"
        found = []
        for _ in range(2):
            with launched() as launches, gpu(0) as here:
                ins = [here.xp.asarray(put(array, spec)) for array, spec in zip(inputs, made.inputs)]
                outs = [here.xp.asarray(np.full_like(put(np.zeros(s.shape), s), 3)) for s in made.outputs]
                if overwrite is not None:
                    outs[overwrite[1]] = ins[overwrite[0]]
                for i, j in ((3, 1), (4, 2)) if op.type == "SpatialBN" else ():
                    outs[j] = ins[i]
                call = made.bind(ins, outs, here.xp.empty(made.scratch, np.uint8) if made.scratch else None)
                call()
                assert len(launches) == 1
                found.append([got(out.get(), spec) for out, spec in zip(outs, made.outputs)])
        assert all(a.tobytes() == b.tobytes() for a, b in zip(*found))
        return found[0]

    def compare(self, name, result, wanted, scale=None, tolerance=None):
        scale = np.abs(wanted).max(initial=1e-3) if scale is None else scale
        np.testing.assert_allclose(result, wanted, rtol=0, atol=(tolerance or self.tolerance) * scale, err_msg=name)


def reference(op, inputs):
    """The outputs of an operator in float64."""
    names = [f"x{k}" for k in range(len(inputs))]
    outs = [f"y{k}" for k in range(op.n_out)]
    fields = {name: getattr(op, name) for name in ("order", "num_batches", "epsilon", "momentum") if hasattr(op, name)}
    if op.type == "SpatialBN":
        names[3:5] = outs[1:3]
    values = interpret([make_op(op.type, names, outs, **fields)], dict(zip(names, inputs)))
    return [np.asarray(values[name]) for name in outs]
