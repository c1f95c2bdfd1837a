"""Our CUDA kernels without a GPU: those of each operator and update, for the types of elements that it takes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from netbuilder.engines.cuda.all_finite import all_finite_kernel, set_kernel
from netbuilder.engines.cuda.channels import CHANNEL_FUSIONS, CHANNELS
from netbuilder.engines.cuda.copies import ELEMENTS, MOST_AXES, padded_kernel, parts_kernel, transposed_kernel
from netbuilder.engines.cuda.dense import bias_kernel, column_sums
from netbuilder.engines.cuda.gpu_layout import BFLOAT16, image_spec, row_major_spec
from netbuilder.engines.cuda.gradient_pair import gradient_pair
from netbuilder.engines.cuda.kernel import Kernel, known_kernels
from netbuilder.engines.cuda.losses import ROWS
from netbuilder.engines.cuda.lrn import lrn_kernel
from netbuilder.engines.cuda.noted_errors import checked_kernel
from netbuilder.engines.cuda.pixels import MOST_CHANNELS, pixels_kernel
from netbuilder.engines.cuda.row_order import count_kernel, place_kernel, scan_kernel
from netbuilder.engines.cuda.row_sums import ADDED, add_kernel, gather_kernel, scatter_kernel, sum_kernel
from netbuilder.engines.cuda.segments import REDUCTIONS, SPREADS, reduction_kernel, spread_kernel
from netbuilder.engines.cuda.shifted_sums import (
    factors_step,
    normalize_by_statistics_step,
    normalize_step,
    statistics_of_sums_step,
    statistics_step,
)
from netbuilder.engines.cuda.table import DENSE, JOINT_UPDATES, KERNELS, ROW_UPDATES, WITH_SUMS
from netbuilder.engines.cuda.updates import join_updates
from netbuilder.engines.cudnn import kernels_norm, kernels_pool
from netbuilder.engines.cudnn.reorders import copies_kernel
from netbuilder.engines.joined_updates import JoinedOperator, JoinedUpdates
from netbuilder.engines.nccl import copies_of_words
from netbuilder.engines.traced import UPDATES, update_form
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from netbuilder.proto import NetError, OperatorDef
from netbuilder.proto.arguments import make_op

__all__ = ["join", "make_kernels", "of_tables", "over_rows", "pool", "prepared", "update_rows"]

_TYPES = [np.dtype(name) for name in ("float32", "float16", "float64", "int32", "bool")]
_LIMITS = (math.inf, 6.0)  # of the results of Relu and of ReluN
_MOST = 3  # numbers of inputs and outputs that are tried of an operator
_LARGE = 1 << 31  # elements: indices need 64 bits
_ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "Cast": [{"to": name} for name in ("float", "float16", "double", "int32", "int64", "bool", "uint8")],
    "LearningRate": [{"base_lr": 0.1, "policy": "fixed"}, {"base_lr": 0.1, "policy": "step", "stepsize": 2}],
    "MomentumSGD": [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "MomentumSGDUpdate": [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
}
"""Arguments of operators, where the defaults do not make all variants."""
_OF_SCALING = {"scale": "float32", "steps": "int32", "condition": "bool", "finite": "bool"}


def make_kernels() -> tuple[dict[str, Kernel], list[str]]:
    """Make the kernels of the table.

    Returns:
        The kernels by name; and the operators that need other inputs than are tried here.
    """
    missing = [
        op_type
        for op_type in sorted(
            KERNELS.keys()
            - {*REDUCTIONS, *SPREADS, *ROWS, *ROW_UPDATES, *JOINT_UPDATES, *ADDED, *_OTHERS, *CHANNELS, *DENSE}
        )
        if not any([*prepared(op_type)])
    ]
    for op_type in sorted(UPDATES):
        join(op_type)
    for dtype in map(np.dtype, ("int8", "uint8", "int16", "uint16", "int32", "int64")):
        checked_kernel(dtype)
    set_kernel()
    all_finite_kernel(tuple(dict.fromkeys(elements for _, elements in _stored())))
    _sum_rows()
    for op_type in ROWS:
        over_rows(op_type)
    _over_channels()
    pool()
    of_tables()
    _over_neighbors()
    _of_pixels()
    for op_type in sorted(_UNITS):
        _recurrent_units(op_type)
    for op_type in sorted(ROW_UPDATES | JOINT_UPDATES):
        update_rows(op_type)
    copies_kernel()
    for width in ELEMENTS:
        copies_of_words(width, [1])
    _running_statistics()
    _dense_layers()
    return known_kernels(), missing


def _running_statistics() -> None:
    """Make the kernel for the running statistics of normalizations over several numbers of elements."""
    op = decode(find("SpatialBN"), make_op("SpatialBN", [*"xsbmv"], [*"ymvcd"]))
    works = [kernels_norm.running_statistics(op, count, TensorSpec((3,), np.dtype(np.float32))) for count in (1, 8, 50)]
    works[0].make([work.member for work in works])


def _of_pixels() -> None:
    """Make the kernels that normalize pixels: alone, and as many as are read at once."""
    for given, channels, last in product(("uint8", "float32"), (1, 3, MOST_CHANNELS), (False, True)):
        for elements, most in (("float32", 4), ("float16", 8), (BFLOAT16, 8)):
            for width in (1, most):
                pixels_kernel(given, channels, last, elements, width)


def _dense_layers() -> None:
    """Make the kernels of the bias, and those of its gradient, the sums of columns."""
    for (dtype, elements), relu in product(_stored(), (False, True)):
        wide = "float64" if dtype == np.float64 else "float32"
        bias_kernel(wide, dtype.name, elements, relu)
        for shape in ((4, 10), (1000, 10), (1 << 15, 1)):  # the last one is added by several blocks
            assert column_sums(row_major_spec(TensorSpec(shape, dtype), elements)) is not None


def _sum_rows() -> None:
    """Make the kernels for segments of rows."""
    single = np.dtype(np.float32)
    for x in _TYPES[:3]:
        wide = single if x == np.float16 else x
        for how, weights, indices in product(
            ("sum", "mean", "max"), (None, wide), (None, np.dtype(np.int32), np.dtype(np.int64))
        ):
            reduction_kernel(how, x, x if indices is None else wide, weights, indices)
            spread_kernel(how, x, weights)


_UNITS = {f"{unit}Unit{gradient}" for unit in ("GRU", "LSTM") for gradient in ("", "Gradient")}
_OTHERS = _UNITS | set(
    """
    BatchGather ChannelShuffle ChannelShuffleGradient Concat DepthConcat DepthSplit ExpandDims Flatten FlattenToVec
    Gather LRN LRNGradient NCHW2NHWC NHWC2NCHW NormalizeImages ResizeLike ScatterWeightedSum Slice SliceGradient Split
    Squeeze SumRepeatedRows Transpose
    """.split()
)
_INDICES = [np.dtype(np.int32), np.dtype(np.int64)]


def of_tables() -> None:
    """Make the kernels that sort row numbers, gather rows, and add them, and those that copy parts and transpose."""
    scan_kernel()
    for itemsize in ELEMENTS:
        parts_kernel(itemsize)
        for axes in range(1, MOST_AXES + 1):
            transposed_kernel(itemsize, axes)
            padded_kernel(itemsize, axes)
    for several, given in product((False, True), (None, *_INDICES)):
        count_kernel(given)
        place_kernel(given, several)
        place_kernel(given, several, False)
    for indices in _INDICES:
        for itemsize in ELEMENTS:
            gather_kernel(itemsize, indices)
        for dtype in _TYPES[:3]:
            sum_kernel(indices, dtype)
    for how, dtype in product(ADDED.values(), _TYPES[:4]):
        add_kernel(how, dtype)
    single = np.dtype(np.float32)
    for dtype, pairs in product(_TYPES[:3], (1, 2)):
        scatter_kernel(dtype, single, (single,) * pairs)


def _over_neighbors() -> None:
    """Make the kernels of LRN."""
    op = decode(find("LRN"), make_op("LRN", ["x"], ["y"], size=5, alpha=1e-4, beta=0.75))
    for elements, backward in product(("float32", "float16", "float64", BFLOAT16), (False, True)):
        lrn_kernel(op, backward, elements)
        lrn_kernel(op, False, elements, True)


def _recurrent_units(op_type: str) -> None:
    """Make the kernels of a step of a recurrent cell."""
    cls: Any = find(op_type)
    for dtype, lengths, drops in product((_TYPES[0], _TYPES[2]), (None, *_INDICES), (0, 1)):
        state, step = TensorSpec((2, 3), dtype), TensorSpec((1,), np.dtype(np.int32))
        specs = [*[state] * cls.states, state.with_shape((2, 3 * cls.gates))]
        specs += [] if lengths is None else [TensorSpec((2,), lengths)]
        specs += [step, *[state] * (2 * cls.states * cls.backward)]
        blobs = [f"x{i}" for i in range(len(specs))]
        outs = [f"y{j}" for j in range(cls.states + cls.backward)]
        op = decode(cls, make_op(op_type, blobs, outs, drop_states=drops, sequence_lengths=int(lengths is not None)))
        assert KERNELS[op_type](op, SimpleNamespace(), *specs) is not None, (op_type, specs)


def update_rows(op_type: str) -> None:
    """Make the kernels of an update of rows, of one element and of several."""
    by_row = {"RowWiseSparseAdagrad": "moment", "RowWiseSparseAdam": "moment_2"}.get(op_type)
    count, number, double = np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.float64)
    for op, dtype, row in product(_operators(op_type), _TYPES[:3], ((), (3,))):
        known = {
            "indices": TensorSpec((4,), count), "grad": TensorSpec((4, *row), dtype), "iter": TensorSpec((1,), count),
            "lr": TensorSpec((1,), number), "alpha": TensorSpec((1,), number), "n_z": TensorSpec((5, *row, 2), dtype),
            **dict.fromkeys(("grad_sq_sum", "seq_b"), TensorSpec((1,), number)),
            **dict.fromkeys(("last_seen", "prev_iter"), TensorSpec((5,), count)),
            **dict.fromkeys(("counter", "update_counter"), TensorSpec((5,), double)),
        }  # fmt: skip
        if by_row is not None:
            known[by_row] = TensorSpec((5,), dtype)
        names = [name.rstrip("?") for name in type(op).inputs[: op.n_in]]
        specs = [known.get(name, TensorSpec((5, *row), dtype)) for name in names]
        with contextlib.suppress(NetError, ValueError):  # of an element type that it does not take
            made: Any = KERNELS[op_type](op, SimpleNamespace(), *specs)
            assert made is not None, (op, specs)


def _stored() -> Iterator[tuple[np.dtype[Any], str]]:
    """Yield the floating types of values, with the type in which their elements are stored."""
    for dtype in _TYPES[:3]:
        yield dtype, dtype.name
    yield from ((np.dtype(np.float32), elements) for elements in (BFLOAT16, "float16"))


def over_rows(op_type: str) -> None:
    """Make the kernels of an operator over rows: for few, some and many columns, and for types of its inputs."""
    spatial, gradient = op_type.startswith("Spatial"), op_type.endswith("Gradient")
    cls, ctx = find(op_type), SimpleNamespace()
    matrices = [(2, 10, 3, 4), (2, 1, 3, 4)] if spatial else [(4, 1), (4, 10), (4, 1000)]
    labels, weights = [np.dtype(np.int32), np.dtype(np.int64)], [None, np.dtype(np.float32)]
    arguments = [{}, {"label_prob": 1}] if op_type.startswith("SoftmaxWithLoss") else [{}]
    for given, shape, (dtype, elements) in product(arguments, matrices, _stored()):
        x = TensorSpec(shape, dtype)
        first = image_spec(x, "NCHW", elements) if spatial else row_major_spec(x, elements)
        places = (shape[0], *shape[2:])
        by_class, one = "label_prob" in given or op_type == "CrossEntropy", x.with_shape(())
        for label, weight in product([dtype] if by_class else labels, weights if "WithLoss" in op_type else [None]):
            target = TensorSpec(shape if by_class else places, label)
            extra = [] if weight is None else [TensorSpec(places, weight)]
            if "WithLoss" in op_type:
                specs = [first, target, *extra, *([x, one] if gradient else [])]
            elif op_type in ("AveragedLoss", "Softmax"):
                specs = [first]
            elif op_type == "SoftmaxGradient":
                specs = [x, first]
            else:
                specs = [first, target, *([x.with_shape(places)] if gradient else [])]
            blobs, outs = [f"x{k}" for k in range(len(specs))], ["y", "loss"] if "Loss" in op_type else ["y"]
            op = decode(cls, make_op(op_type, blobs, outs[: len(cls.outputs)], **given))
            assert ROWS[op_type](op, ctx, *specs) is not None, (op_type, specs)


def _over_channels() -> None:
    """Make the kernels of batch normalization over parts of a batch, alone and fused."""
    ctx: Any = SimpleNamespace()
    outputs = {"ChannelStats": 3, "ChannelBackpropStats": 2, "SpatialBN": 5, "SpatialBNGradient": 3}
    for (dtype, elements), shape, last in product(
        _stored(), [(2, 64, 5, 5), (2, 6, 3, 3), (2, 3, 4, 4)], (False, True)
    ):
        wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        plain, c, one = TensorSpec(shape, dtype), TensorSpec(shape[1:2], wide), TensorSpec((1,), wide)
        x = image_spec(plain, "NCHW", elements) if last and dtype != np.float64 else row_major_spec(plain, elements)
        given = {
            "ChannelStats": ([x], [x, one]),
            "ChannelBackpropStats": ([x, c, c, x],),
            "SpatialBN": ([x, *[c] * 6], [x, *[c] * 6, one]),
            "SpatialBNGradient": ([x, c, x, *[c] * 4], [x, c, x, *[c] * 4, one], [x, c, x, *[c] * 4, one, one]),
        }
        if dtype != np.float64:
            op = decode(find("SpatialBNGradient"), make_op("SpatialBNGradient", [*"xsdmv"], [*"ycb"]))
            forms = ((False, False), (False, True), (True, True))
            for (add, shared), limit, computes in product(forms, _LIMITS, (False, True)):
                gradient_pair(op, x, c, add=add, shared=shared, limit=limit, computes=computes)
            for limit in _LIMITS:
                normalize_by_statistics_step(op, x, {}, limit=limit)
            for add, most in product((False, True), (None, *_LIMITS)):
                normalize_step(op, x, {}, add=add, limit=most)
            statistics_step(op, x, {})
            statistics_of_sums_step(op, x, {})
            factors_step(op, x, "float16", {})
        for op_type, variants in given.items():
            for specs in variants:
                outs, blobs = [f"y{k}" for k in range(outputs[op_type])], [f"x{k}" for k in range(len(specs))]
                if op_type == "SpatialBN":
                    blobs[3:5] = outs[1:3]
                arguments: dict[str, Any] = {"num_batches": 2} if op_type.startswith("SpatialBN") else {}
                op = decode(find(op_type), make_op(op_type, blobs, outs, **arguments))
                assert CHANNELS[op_type](op, ctx, *specs) is not None, (op_type, specs)
                for make, count in _fused_channels(op_type):
                    assert make(op, ctx, *specs, *[x] * count) is not None, (op_type, specs, count)


def _fused_channels(op_type: str) -> Iterator[tuple[Any, int]]:
    """Yield the kernels that begin with an operator of batch normalization, and how many more images they read."""
    for fusion in CHANNEL_FUSIONS:
        if op_type in (fusion.types[0], fusion.types[-1]):
            yield fusion.make, ("Sum" in fusion.types) + (op_type != "SpatialBN")


def pool() -> None:
    """Make the kernels of pooling."""
    windows: list[dict[str, Any]] = [{"kernel": 3, "stride": 2, "pad": 1}, {"global_pooling": 1}]
    images = (2, 3, 7, 8), (2, 16, 7, 8)  # channels one by one, and 16 bytes of them at once
    for kind, shape, window, (dtype, elements) in product(("Max", "Average"), images, windows, _stored()):
        if dtype == np.float64:
            continue
        ctx: Any = SimpleNamespace(precision=elements if dtype == np.float32 else "float32")
        for whole in range(1 if kind == "Max" else 2):
            given = {**window, **({"count_include_pad": 1} if whole else {})}
            op = decode(find(f"{kind}Pool"), make_op(f"{kind}Pool", ["x"], ["y"], **given))
            x = image_spec(TensorSpec(shape, dtype), "NCHW", elements)
            (plain,) = op.infer(x.plain)
            y, kernels = image_spec(plain, "NCHW", elements), kernels_pool
            backward = decode(
                find(f"{kind}PoolGradient"), make_op(f"{kind}PoolGradient", ["x", "y", "d"], ["e"], **given)
            )
            forward, gradient = (
                (kernels.max_pool, kernels.max_pool_gradient)
                if kind == "Max"
                else (kernels.average_pool, kernels.average_pool_gradient)
            )
            assert forward(op, ctx, x) is not None and gradient(backward, ctx, x, y, y) is not None


def prepared(op_type: str) -> Iterator[bool]:
    """Yield, for each variant of an operator's inputs, whether there is a kernel."""
    ctx: Any = SimpleNamespace(
        op_def=OperatorDef(type=op_type),
        run=SimpleNamespace(position=lambda shape, per_sample=False: (0, 0)),
        enabled=lambda name: True,
        published=lambda input, key: None,
    )
    for op, specs in _variants(op_type):
        yield KERNELS[op_type](op, ctx, *specs) is not None


def _operators(op_type: str) -> Iterator[Any]:
    """Yield instances of an operator, with the least numbers of inputs and outputs that it takes, and with more."""
    cls, found = find(op_type), 0
    for arguments, n_in, n_out in product(_ARGUMENTS.get(op_type, [{}]), range(8), range(1, 5)):
        blobs, outs = [f"x{k}" for k in range(n_in)], [f"y{k}" for k in range(n_out)]
        for i, j in cls.must_inplace:
            if i < n_in and j < n_out:
                blobs[i] = outs[j]
        if found >= _MOST * len(_ARGUMENTS.get(op_type, [{}])):
            return
        with contextlib.suppress(NetError, ValueError):
            yield decode(cls, make_op(op_type, blobs, outs, **arguments))
            found += 1


def _variants(op_type: str) -> Iterator[tuple[Any, list[TensorSpec]]]:
    """Yield an operator with specs of inputs that it takes."""
    small, image = (2, 3, 4), (2, 3, 4, 4)
    shapes: Iterable[tuple[tuple[int, ...], ...]] = (
        (small,) * 8,
        (small, (4,), *[small] * 6),
        (image, *[(3,)] * 7),
        ((2,), (2,), *[small] * 6),
        (image, *[(2,)] * 7),
        *([((_LARGE,),) * 8] if op_type == "Relu" else []),
        *([((1 << 15,),) * 8] if op_type in WITH_SUMS else []),  # more than a block adds
    )
    for op in _operators(op_type):
        for shape, first, last in product(shapes, _TYPES, (None, np.dtype(bool), np.dtype(np.int64))):
            if op.n_in == 0 or (last is not None and op.n_in < 2):
                continue
            specs = [TensorSpec(extent, first) for extent in shape[: op.n_in]]
            if last is not None:
                specs[-1] = specs[-1].with_dtype(last)
            specs = _with_numbers(op, specs)
            try:
                op.infer(*specs)
            except (NetError, TypeError, ValueError, IndexError, NotImplementedError):
                continue
            yield op, specs


def _with_numbers(op: Any, specs: list[TensorSpec]) -> list[TensorSpec]:
    """Return specs in which rates and counters are one number."""
    for i, name in enumerate(type(op).inputs[: op.n_in]):
        if name.rstrip("?") in ("lr", "iter", "iteration", "w0"):
            dtype = specs[i].dtype if name in ("lr", "w0") else np.dtype(np.int64)
            specs[i] = TensorSpec((1,), dtype)
        elif name.rstrip("?") in ("alpha", "grad_sq_sum", "lr_max", "seq_b", "trust", "wd"):
            specs[i] = specs[i].with_shape((1,))
        elif name == "n_z":
            specs[i] = specs[i].with_shape((*specs[0].shape, 2))
        elif name in _OF_SCALING and op.type in ("DivideBlobs", "RestoreBlobs", "UpdateGradientScale"):
            specs[i] = TensorSpec((1,), np.dtype(_OF_SCALING[name]))
    return specs


def join(op_type: str) -> None:
    """Make the kernels of joined updates by one operator, also of tensors stored with 16 bits."""
    ctx: Any = SimpleNamespace(op_def=OperatorDef(type=op_type))
    for op, dtype in product(_operators(op_type), _TYPES[:3]):
        specs = _with_numbers(op, [TensorSpec((3, 4), dtype)] * op.n_in)
        try:
            op.infer(*specs)
        except (NetError, TypeError, ValueError):
            continue
        if update_form(op, specs, is_gpu=True) is None:
            continue
        outs = tuple(range(op.n_in, op.n_in + op.n_out))
        chain = [JoinedOperator(op, tuple(range(op.n_in)), outs)]
        join_updates(ctx, JoinedUpdates([chain], specs, outs))
        if dtype == np.float32:
            stored = [row_major_spec(spec, BFLOAT16) if spec.ndim > 1 else spec for spec in specs]
            join_updates(ctx, JoinedUpdates([chain], stored, outs))
