"""A double of cuDNN's frontend: graphs are checked as cuDNN checks them, and computed node by node with NumPy.

A graph is refused (``cudnnGraphNotSupportedError``) where cuDNN 9.28 refuses it for an H100, as test_graphs_on_h100.py
finds, and anything that is not valid raises. They run on emulated GPUs, whose memory is the host's: elements of memory
are widened to float64, a tensor between two operations is rounded to float32, or to the type that the graph gives it, a
result to its type. Products of float32 are exact unless the graph lets kernels round their factors to TF32, which then
is done here, too.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import math
import pickle
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from emulated_gpu import machine
from emulated_gpu.machine import Touches
from netbuilder.engines.cudnn import compiled, library

__all__ = ["OPTIONS", "POINTWISE", "CudnnDouble", "Invalid", "NotSupported", "cudnn_double"]


class NotSupported(Exception):
    """What cuDNN raises for a graph that none of its engines computes, and for a plan that is refused."""


class Invalid(AssertionError):
    """A graph, or a call, that is wrong."""


_Type = enum.Enum("_Type", "NOT_SET FLOAT HALF BFLOAT16 BOOLEAN")
_Note = enum.Enum("_Note", "TENSOR_CORE DOWN_CONVERT_INPUTS NONDETERMINISTIC REDUCED_PRECISION_REDUCTION")
_BYTES = {_Type.FLOAT: 4, _Type.HALF: 2, _Type.BFLOAT16: 2, _Type.BOOLEAN: 1}
WORKSPACE = 777  # bytes that each graph asks for, and overwrites
ALIGNMENT = 16  # of addresses, which kernels rely on
PLANS = 3  # of each graph, of which the second is refused


class _Tensor:
    def __init__(self, name, dim=None, stride=None, data_type=_Type.NOT_SET, uid=None, by_value=False):
        self.name = name
        self.dim, self.stride = (None if each is None else tuple(each) for each in (dim, stride))
        self.type, self.uid, self.by_value = data_type, uid, by_value
        self.maker = None
        self.is_output = False

    def set_dim(self, dim):
        self.dim = tuple(dim)
        return self

    def set_stride(self, stride):
        self.stride = tuple(stride)
        return self

    def set_output(self, value):
        self.is_output = value
        return self

    def set_data_type(self, data_type):
        self.type = data_type
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    @property
    def in_memory(self):
        return not self.by_value and (self.maker is None or self.is_output)

    @property
    def nbytes(self):
        return math.prod(self.dim) * _BYTES[self.type]


class _Node:
    def __init__(self, kind, inputs, outputs, **options):
        self.kind, self.inputs, self.outputs, self.options = kind, inputs, outputs, options


POINTWISE = {
    "add": ("a", "b"),
    "sub": ("a", "b"),
    "mul": ("a", "b"),
    "bias": ("input", "bias"),
    "relu": ("input",),
    "rsqrt": ("input",),
    "cmp_gt": ("input", "comparison"),
    "cmp_lt": ("input", "comparison"),
}


OPTIONS = {"relu": ("upper_clip",)}


class _Graph:
    own = ()

    def __init__(self, cudnn, **options):
        options = {"intermediate_data_type": _Type.FLOAT, "compute_data_type": _Type.FLOAT, **options}
        unknown = options.keys() - {"intermediate_data_type", "compute_data_type", "handle", "device_property"}
        if unknown or options["compute_data_type"] is not _Type.FLOAT:
            raise Invalid(f"a graph computes in float32, and has no options {unknown}")
        if options["intermediate_data_type"] is not _Type.FLOAT:
            raise Invalid("what is between two operations is float32")
        self.cudnn, self.tensors, self.nodes = cudnn, [], []
        self.refused, self.state, self.limit = set(), "empty", None
        self.built = None

    def __repr__(self):
        tensors = [(t.name, t.dim, t.stride, t.type.name, t.uid, t.is_output) for t in self.tensors]
        return f"{[(node.kind, node.options) for node in self.nodes]} {tensors}"

    # Building.

    def tensor(self, *, dim, stride, data_type, name="", uid, is_pass_by_value=False):
        made = _Tensor(name, dim, stride, data_type, uid, is_pass_by_value)
        if any(other.uid == uid for other in self.tensors):
            raise Invalid(f"two tensors have the number {uid}")
        self.tensors.append(made)
        return made

    def _add(self, kind, inputs, count=1, **options):
        outputs = [_Tensor(f"{kind}.{i}") for i in range(count)]
        node = _Node(kind, inputs, outputs, **options)
        for each in outputs:
            each.maker = node
        self.nodes.append(node)
        self.tensors += outputs
        return outputs[0] if count == 1 else outputs

    def __getattr__(self, kind):
        names = POINTWISE.get(kind)
        if names is None:
            raise AttributeError(f"the frontend's graph has no {kind}")

        def build(**given):
            options = {name: given.pop(name) for name in OPTIONS.get(kind, ()) if name in given}
            assert given.keys() == set(names), f"{kind} takes {names}"
            return self._add(kind, [given[name] for name in names], **options)

        return build

    def conv_fprop(self, *, image, weight, **window):
        return self._add("conv_fprop", [image, weight], window=window)

    def conv_dgrad(self, *, loss, filter, **window):
        return self._add("conv_dgrad", [loss, filter], window=window)

    def conv_wgrad(self, *, image, loss, **window):
        return self._add("conv_wgrad", [image, loss], window=window)

    def matmul(self, *, A, B):
        return self._add("matmul", [A, B])

    def reduction(self, *, input, mode):
        assert mode == "ADD"
        return self._add("reduction", [input])

    def batchnorm(self, *, input, scale, bias, in_running_mean, in_running_var, epsilon, momentum):
        assert in_running_mean is in_running_var is momentum is None
        return [*self._add("batchnorm", [input, scale, bias, epsilon], 3), None, None]

    def batchnorm_backward(self, *, grad, input, scale, mean, inv_variance):
        return self._add("batchnorm_backward", [grad, input, scale, mean, inv_variance], 3)

    # What cuDNN checks.

    def validate(self):
        for node in self.nodes:
            for tensor, dims in zip(node.outputs, _infer(node)):
                if tensor.dim is None:
                    tensor.dim = dims
                elif dims is not None and tensor.dim != dims:
                    raise Invalid(f"{node.kind}: the result has the extents {dims}, not {tensor.dim}")
                if tensor.type is _Type.NOT_SET:
                    tensor.type = _Type.FLOAT
        for tensor in self.tensors:
            if tensor.by_value:
                if tensor.type is not _Type.FLOAT or math.prod(tensor.dim) != 1:
                    raise Invalid(f"{tensor.name}: a number passed by value is one float32")
            elif tensor.in_memory:
                if tensor.uid is None:
                    raise Invalid(f"{tensor.name}: has no number")
                if not _packed(tensor):
                    raise Invalid(f"{tensor.name}: strides {tensor.stride} of {tensor.dim} leave gaps")
        self.state = "valid"

    def build_operation_graph(self):
        assert self.state == "valid"
        self.state = "operations"

    def create_execution_plans(self, modes):
        assert self.state == "operations" and modes
        reason = self.cudnn.why_not(self)
        if reason:
            raise NotSupported(reason)
        self.state = "plans"

    def deselect_numeric_notes(self, notes):
        self.refused |= set(notes)

    def deselect_workspace_greater_than(self, nbytes):
        self.limit = nbytes

    def check_support(self):
        assert self.state == "plans"
        if any(node.kind == "matmul" for node in self.nodes) and _Note.TENSOR_CORE in self.refused:
            raise NotSupported("matrix products are computed by tensor cores only")
        kinds = {node.kind for node in self.nodes}
        if "reduction" in kinds and kinds & {"conv_fprop", "conv_dgrad"} and _Note.TENSOR_CORE in self.refused:
            raise NotSupported("sums of convolutions are computed by tensor cores only")
        if self.limit is not None and self.limit < WORKSPACE:
            raise NotSupported("no plan needs so little memory")

    def build_plans(self, policy):
        self.check_support()
        self.built = 0

    def serialize(self):
        assert self.built is not None, "no plan was built"
        return list(pickle.dumps((self.tensors, self.nodes, self.refused, self.limit, self.built)))

    def deserialize(self, handle, data):
        assert type(data) is list and not self.tensors  # the frontend takes no bytes
        if self.cudnn.handles[handle][0] != _runtime().getDevice():
            raise Invalid("a handle is used on another GPU than the current one")
        if not self.cudnn.takes_plans:
            raise NotSupported("the plan is of another version")
        try:
            self.tensors, self.nodes, self.refused, self.limit, self.built = pickle.loads(bytes(data))
        except (pickle.UnpicklingError, EOFError, ValueError) as error:
            raise RuntimeError("parse error") from error
        self.cudnn.restored.append(self)

    def get_execution_plan_count(self):
        return PLANS

    def get_plan_name_at_index(self, index):
        return f"eng{index}"

    def build_plan_at_index(self, index):
        self.check_support()
        if index == 1:
            raise NotSupported("[cudnn_frontend] Error: Deselecting execution plan")
        self.built = index

    def get_workspace_size(self):
        return WORKSPACE

    def get_workspace_size_plan_at_index(self, index):
        return WORKSPACE if index == self.built else 0

    # Computing.

    def execute_plan_at_index(self, pointers, workspace, index, *, handle):
        assert self.built == index
        self.execute(pointers, workspace, handle=handle)

    def execute(self, pointers, workspace, *, handle):
        assert self.built is not None, "no plan was built"
        memory = [tensor for tensor in self.tensors if tensor.in_memory]
        if pointers.keys() != {tensor.uid for tensor in self.tensors if tensor.in_memory or tensor.by_value}:
            raise Invalid(f"bound are {sorted(pointers)}, not the tensors of the graph")
        if crooked := [tensor.name for tensor in memory if pointers[tensor.uid] % ALIGNMENT]:
            raise Invalid(f"{crooked} do not begin at multiples of {ALIGNMENT} bytes")
        reads = [t for t in memory if t.maker is None]
        writes = [t for t in memory if t.maker is not None]
        self._check_overlaps(pointers, workspace, reads, writes)
        scratch = workspace, WORKSPACE
        self.cudnn.ran(self, handle, pointers, scratch, reads, writes, lambda: self._compute(pointers, workspace))

    def _check_overlaps(self, pointers, workspace, reads, writes):
        """An output may have the memory of an input only if each element depends on its own place alone."""
        pointwise = all(node.kind in POINTWISE for node in self.nodes)
        ranges = [(pointers[t.uid], pointers[t.uid] + t.nbytes, t) for t in (*reads, *writes)]
        ranges.append((workspace, workspace + WORKSPACE, None))
        for (a, b, one), (c, d, other) in itertools.combinations(ranges, 2):
            if a >= d or c >= b or (one in reads and other in reads):
                continue
            same = one is not None and other is not None and (a, b, one.type) == (c, d, other.type)
            if not (pointwise and same):
                raise Invalid(f"{one and one.name} and {other and other.name} have the same memory")

    def _compute(self, pointers, workspace):
        ctypes.memset(workspace, 0xFF, WORKSPACE)
        values = {}
        for tensor in self.tensors:
            if tensor.by_value:
                values[tensor] = np.float64(ctypes.c_float.from_address(pointers[tensor.uid]).value)
            elif tensor.in_memory and tensor.maker is None:
                values[tensor] = _load(pointers[tensor.uid], tensor)
        for node in self.nodes:
            given = [values[tensor] for tensor in node.inputs]
            with np.errstate(all="ignore"):
                for tensor, value in zip(node.outputs, _COMPUTE[node.kind](node, *self._factors(node, given))):
                    values[tensor] = value if tensor.type is _Type.BOOLEAN else _rounded(value, tensor.type)
        for tensor in self.tensors:
            if tensor.in_memory and tensor.maker is not None:
                _store(pointers[tensor.uid], tensor, values[tensor])

    def _factors(self, node, given):
        """Round the factors of a product of float32 to TF32, if that is allowed."""
        products = ("conv_fprop", "conv_dgrad", "conv_wgrad", "matmul")
        if node.kind not in products or _Note.TENSOR_CORE in self.refused or node.inputs[0].type is not _Type.FLOAT:
            return given
        return [_tf32(value) for value in given]


def _tf32(value):
    bits = np.float32(value).view(np.uint32)
    return np.float64(((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32))


def _bfloat16(value):
    """The 16 bits of the nearest numbers of that type."""
    wide = np.ascontiguousarray(value, np.float32)
    bits = wide.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)


def _rounded(value, kind):
    """Numbers of float64 as they are between two operations: of float32, or of a type of 16 bits that was asked for."""
    if kind is _Type.BFLOAT16:
        return np.float64((_bfloat16(value).astype(np.uint32) << 16).view(np.float32))
    return np.float64(np.asarray(value).astype(np.float16 if kind is _Type.HALF else np.float32))


def _packed(tensor):
    step = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride, tensor.dim) if n > 1):
        if stride != step:
            return False
        step *= extent
    return True


def _channels_last(tensor):
    return tensor.dim[1] == 1 or tensor.stride[1] == 1 or math.prod(tensor.dim[2:]) == 1


def _view(pointer, tensor):
    kind = {_Type.FLOAT: np.float32, _Type.HALF: np.float16, _Type.BFLOAT16: np.uint16, _Type.BOOLEAN: np.bool_}
    raw = (ctypes.c_uint8 * tensor.nbytes).from_address(pointer)
    flat = np.frombuffer(raw, kind[tensor.type])
    strides = [stride * flat.itemsize for stride in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat, tensor.dim, strides)


def _load(pointer, tensor):
    values = _view(pointer, tensor)
    if tensor.type is _Type.BFLOAT16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def _store(pointer, tensor, value):
    value = np.broadcast_to(value, tensor.dim)
    if tensor.type is _Type.BFLOAT16:
        value = _bfloat16(value)
    with np.errstate(all="ignore"):
        _view(pointer, tensor)[...] = value


# Extents.


def _broadcast(node):
    return [tuple(max(extents) for extents in zip(*(tensor.dim for tensor in node.inputs)))]


def _infer(node):
    """The extents of a node's results; None where the caller has to give them."""
    if node.kind in POINTWISE:
        return _broadcast(node)
    if node.kind == "conv_fprop":
        x, w = node.inputs
        window = node.options["window"]
        if x.dim[1] % w.dim[1] or w.dim[0] % (x.dim[1] // w.dim[1]):
            raise Invalid(f"images {x.dim} and filters {w.dim} do not match")
        extents = [
            (n + before + after - (dilation * (k - 1) + 1)) // stride + 1
            for n, k, before, after, stride, dilation in zip(
                x.dim[2:], w.dim[2:], window["pre_padding"], window["post_padding"], window["stride"],
                window["dilation"], strict=True,
            )
        ]  # fmt: skip
        return [(x.dim[0], w.dim[0], *extents)]
    if node.kind == "matmul":
        a, b = node.inputs
        if a.dim[0] != b.dim[0] or a.dim[2] != b.dim[1]:
            raise Invalid(f"matrices {a.dim} and {b.dim} do not match")
        return [(a.dim[0], a.dim[1], b.dim[2])]
    if node.kind == "batchnorm":
        channels = (1, node.inputs[0].dim[1], *(1 for _ in node.inputs[0].dim[2:]))
        return [node.inputs[0].dim, channels, channels]
    if node.kind == "batchnorm_backward":
        return [node.inputs[1].dim, node.inputs[2].dim, node.inputs[2].dim]
    return [None] * len(node.outputs)


# Numbers.


def _windows(x, window, kernel, out):
    """Views of padded images, one for each element of the window; and the padded images."""
    before, after = window["pre_padding"], window["post_padding"]
    strides, dilations = window["stride"], window["dilation"]
    reach = [
        max(n + b + a, (o - 1) * s + d * (k - 1) + 1)
        for n, b, a, o, s, d, k in zip(x.shape[2:], before, after, out, strides, dilations, kernel)
    ]
    padded = np.zeros((*x.shape[:2], *reach))
    inside = tuple(slice(b, b + n) for b, n in zip(before, x.shape[2:]))
    padded[(..., *inside)] = x
    places = {
        tap: (..., *(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in zip(tap, dilations, strides, out)))
        for tap in itertools.product(*map(range, kernel))
    }
    return padded, inside, places


def _groups(node):
    """The groups of a convolution, or of its gradient to data."""
    images = node.inputs[0] if node.kind == "conv_fprop" else node.outputs[0]
    return images.dim[1] // node.inputs[1].dim[1]


def _grouped(array, axis, groups):
    """Split an axis into (groups, rest)."""
    return array.reshape(*array.shape[:axis], groups, array.shape[axis] // groups, *array.shape[axis + 1 :])


def _fprop(node, x, w):
    groups, out = x.shape[1] // w.shape[1], node.outputs[0].dim[2:]
    padded, _, places = _windows(x, node.options["window"], w.shape[2:], out)
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *out))
    filters = _grouped(w, 0, groups)
    for tap, place in places.items():
        y += np.einsum("ngc...,gmc->ngm...", _grouped(padded[place], 1, groups), filters[(..., *tap)])
    return [y.reshape(node.outputs[0].dim)]


def _dgrad(node, dy, w):
    dims = node.outputs[0].dim
    groups = dims[1] // w.shape[1]
    padded, inside, places = _windows(np.zeros(dims), node.options["window"], w.shape[2:], dy.shape[2:])
    rows, filters = _grouped(dy, 1, groups), _grouped(w, 0, groups)
    for tap, place in places.items():
        part = np.einsum("ngm...,gmc->ngc...", rows, filters[(..., *tap)])
        padded[place] += part.reshape(dims[0], dims[1], *dy.shape[2:])
    return [padded[(..., *inside)]]


def _wgrad(node, x, dy):
    dims = node.outputs[0].dim
    groups = x.shape[1] // dims[1]
    padded, _, places = _windows(x, node.options["window"], dims[2:], dy.shape[2:])
    rows = _grouped(dy, 1, groups)
    rows = rows.reshape(*rows.shape[:3], -1)
    dw = np.zeros(dims)
    for tap, place in places.items():
        images = _grouped(padded[place], 1, groups)
        part = np.einsum("ngmp,ngcp->gmc", rows, images.reshape(*images.shape[:3], -1))
        dw[(..., *tap)] = part.reshape(dims[:2])
    return [dw]


def _other_axes(x):
    return (0, *range(2, x.ndim))


def _batchnorm(node, x, scale, bias, epsilon):
    mean = x.mean(axis=_other_axes(x), keepdims=True)
    inverse = 1 / np.sqrt(np.square(x - mean).mean(axis=_other_axes(x), keepdims=True) + epsilon)
    return [(x - mean) * inverse * scale + bias, mean, inverse]


def _batchnorm_backward(node, dy, x, scale, mean, inverse):
    axes, count = _other_axes(x), x.size / x.shape[1]
    normal = (x - mean) * inverse
    dscale, dbias = (dy * normal).sum(axis=axes, keepdims=True), dy.sum(axis=axes, keepdims=True)
    return [scale * inverse * (dy - dbias / count - normal * dscale / count), dscale, dbias]


def _reduce(node, x):
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, node.outputs[0].dim)) if n != m)
    return [x.sum(axis=axes, keepdims=True)]


_COMPUTE = {
    "add": lambda node, a, b: [a + b],
    "sub": lambda node, a, b: [a - b],
    "mul": lambda node, a, b: [a * b],
    "bias": lambda node, a, b: [a + b],
    "relu": lambda node, x: [np.minimum(np.maximum(x, 0), node.options.get("upper_clip", np.inf))],
    "rsqrt": lambda node, x: [1 / np.sqrt(x)],
    "cmp_gt": lambda node, a, b: [a > b],
    "cmp_lt": lambda node, a, b: [a < b],
    "conv_fprop": _fprop,
    "conv_dgrad": _dgrad,
    "conv_wgrad": _wgrad,
    "matmul": lambda node, a, b: [a @ b],
    "reduction": _reduce,
    "batchnorm": _batchnorm,
    "batchnorm_backward": _batchnorm_backward,
}


def _why_not_computed(graph, node):
    """Why no engine computes the images of a convolution, or of its gradient to filters, as it reads them."""
    images, other = node.inputs
    if node.kind == "conv_fprop":
        if images.type is not other.type:
            return "computed images must be rounded to the type of the filters"
        return "no computed images of groups" if _groups(node) > 1 else ""
    kinds = [each.kind for each in graph.nodes]
    half = all(t.type is _Type.HALF for t in graph.tensors if t.in_memory)
    grouped = images.dim[1] != node.outputs[0].dim[1]
    narrow = any(each.dim[1] % 8 for each in node.inputs)
    if kinds != ["mul", "add", "relu", "conv_wgrad"] or not half or grouped or narrow:
        return "the gradient to filters scales 8 n channels in float16 and then rectifies them, not in groups"
    return ""


class CudnnDouble:
    """What a program sees as the module ``cudnn``.

    Attributes:
        ran_graphs: the kinds of the operations of each graph that was run, in order.
        graphs: all graphs that were made.
        restored: those that got a plan by ``deserialize``.
        takes_plans: whether ``deserialize`` takes them.
        own: the methods that the module does not have.
    """

    own = ("ran", "why_not")
    graph_class = _Graph

    data_type = _Type
    numerical_note = _Note
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    build_plan_policy = SimpleNamespace(HEURISTICS_CHOICE="HEURISTICS_CHOICE", ALL="ALL")
    reduction_mode = SimpleNamespace(ADD="ADD")
    cudnnGraphNotSupportedError = NotSupported

    def __init__(self):
        self.handles, self._numbers = {}, itertools.count(7000)
        self.ran_graphs, self.graphs, self.restored = [], [], []
        self.takes_plans = True
        self.unsupported = set()  # kinds of operations that a test wants refused

    def backend_version(self):
        return 92800

    def create_device_properties(self, given):
        return SimpleNamespace(serialize=lambda: f"GPU {given}")

    def create_handle(self):
        number = next(self._numbers)
        self.handles[number] = [_runtime().getDevice(), None]
        return number

    def destroy_handle(self, handle):
        device, _ = self.handles.pop(handle)
        if device != _runtime().getDevice():
            raise Invalid("a handle is freed on another GPU than its own")
        _runtime().deviceSynchronize()

    def set_stream(self, *, handle, stream):
        self.handles[handle][1] = stream

    def pygraph(self, **options):
        made = _Graph(self, **options)
        self.graphs.append(made)
        return made

    def why_not(self, graph):
        """Why no engine of cuDNN computes a graph; "" if one does."""
        kinds = {node.kind for node in graph.nodes}
        if kinds & self.unsupported:
            return f"{kinds & self.unsupported} was switched off"
        for node in graph.nodes:
            memory = [t for t in (*node.inputs, *node.outputs) if t.in_memory]
            narrow = any(_BYTES[t.type] == 2 for t in memory)
            if node.kind == "matmul":
                if any(_BYTES[t.type] == 2 and t.dim[t.stride[1:].index(1) + 1] % 2 for t in node.inputs):
                    return "rows of 16-bit matrices must begin at multiples of 4 bytes"
            elif not all(_channels_last(t) for t in memory if len(t.dim) > 3):
                return f"{node.kind}: all images must have channels last"
            if node.kind == "add" and node.inputs[0].maker and node.inputs[0].maker.kind == "batchnorm":
                if node.outputs[0].is_output:
                    return "a sum after a normalization needs a Relu after it"
            computed = node.kind in ("conv_fprop", "conv_wgrad") and node.inputs[0].maker is not None
            if computed and (reason := _why_not_computed(graph, node)):
                return reason
            if node.kind in ("conv_fprop", "conv_dgrad") and "reduction" in kinds and _groups(node) > 1:
                return "no sums of convolutions in groups"
            if node.kind.startswith("batchnorm"):
                if node.inputs[0].dim[1] % (8 if narrow else 4):
                    return f"{node.kind}: channels must be a multiple of 4, with 16 bits of 8"
                if node.kind == "batchnorm_backward" and node.inputs[0].maker is not None and narrow:
                    if not node.inputs[0].is_output:
                        return "the gradient of the Relu must be an output"
        return ""

    def ran(self, graph, handle, pointers, scratch, reads, writes, do):
        """Run a graph on the stream of a handle; ``scratch`` is where its workspace begins, and its size."""
        device, stream = self.handles[handle]
        if device != _runtime().getDevice() or stream != _current_stream():
            raise Invalid("a handle is used on another GPU or stream than the current one")
        kinds = tuple(node.kind for node in graph.nodes)
        self.ran_graphs.append(kinds)
        read, written = ([(pointers[t.uid], t.nbytes) for t in some] for some in (reads, writes))
        machine.call(stream, "cudnn " + " ".join(kinds), do, Touches(read, [*written, scratch]))


def _runtime():
    from cupy.cuda import runtime

    return runtime


def _current_stream():
    from cupy.cuda import get_current_stream

    return get_current_stream().ptr


@contextmanager
def cudnn_double(*, keeps=False):
    """Let netbuilder take the double for cuDNN; yields it.

    Args:
        keeps: plans are kept on file, and built by processes, as by default; else each is built here.
    """
    made = CudnnDouble()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "found_library", lambda: (made, ""))
        patch.setattr(library, "thread_handles", library.new_handles())
        patch.setattr(compiled, "built_graphs", {})
        if not keeps:
            patch.setattr(compiled, "cache_folder", lambda: None)
        yield made
