"""cuDNN's graphs: what each kind of graph computes, of tensors that are known by shape, order and element type only.

A recipe is a description that can be compared: equal recipes make the same graph. Its tensors have names, by which a
compiled graph is bound to memory (see ``compiled``). All sums are computed in float32.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, Literal, Protocol

from netbuilder.engines.cuda.gpu_layout import rounded
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "CHANNELS_LAST",
    "ROW_MAJOR",
    "TRANSPOSED",
    "AddPerChannel",
    "BatchNormalization",
    "BatchNormalizationGradient",
    "Builder",
    "ChannelSums",
    "Convolution",
    "DataGradient",
    "DataGradientSums",
    "FilterGradient",
    "Normalization",
    "Product",
    "Recipe",
    "Tensor",
    "Window",
    "per_channel",
]

CHANNELS_LAST, ROW_MAJOR, TRANSPOSED = "channels last", "row major", "transposed"
"""Orders of a tensor's elements in memory. TRANSPOSED is for matrices: the last axis has the largest stride."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as cuDNN sees it.

    Args:
        shape: batch, channels and two or three image axes; of a stack of matrices: stack, rows, columns.
        order: of its elements.
        elements: the type of its elements: float32, float16 or bfloat16.
    """

    shape: tuple[int, ...]
    order: str
    elements: str

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the strides, in elements."""
        axes = list(range(len(self.shape)))  # slowest first
        if self.order == CHANNELS_LAST:
            axes = [0, *axes[2:], 1]
        elif self.order == TRANSPOSED:
            axes = [*axes[:-2], axes[-1], axes[-2]]
        strides, step = [0] * len(axes), 1
        for axis in reversed(axes):
            strides[axis], step = step, step * self.shape[axis]
        return tuple(strides)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * (4 if self.elements == "float32" else 2)


def per_channel(image: Tensor, elements: str = "float32") -> Tensor:
    """Return the tensor with one number for each channel of images."""
    return Tensor((1, image.shape[1], *(1 for _ in image.shape[2:])), CHANNELS_LAST, elements)


@dataclass(frozen=True)
class Window:
    """How the windows of a convolution slide, one number for each image axis.

    Args:
        strides: steps between windows.
        dilations: distances between the elements of a window.
        before, after: padding; never negative.
    """

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def arguments(self) -> dict[str, list[int]]:
        """Return the arguments of the frontend's functions."""
        return {
            "pre_padding": [*self.before],
            "post_padding": [*self.after],
            "stride": [*self.strides],
            "dilation": [*self.dilations],
        }


class Builder:
    """Builds one graph of the frontend.

    Args:
        cudnn: the frontend.
        graph: the graph, empty.

    Attributes:
        graph: the graph; its functions add operations.
        uids: the numbers of all tensors that calls are given, by name.
        tensors: those that are in the GPU's memory.
        results: the names of those that the graph writes.
        scalars: the numbers that the graph reads from the host's memory, by name.
    """

    def __init__(self, cudnn: Any, graph: Any) -> None:
        self._cudnn = cudnn
        self.graph = graph
        self.uids: dict[str, int] = {}
        self.tensors: dict[str, Tensor] = {}
        self.results: list[str] = []
        self.scalars: dict[str, float] = {}

    def type_of(self, elements: str) -> Any:
        """Return the frontend's name of an element type."""
        return getattr(self._cudnn.data_type, _TYPES[elements])

    def _uid(self, name: str) -> int:
        return self.uids.setdefault(name, len(self.uids) + 1)

    def input(self, name: str, tensor: Tensor) -> Any:
        """Add a tensor that is in memory."""
        self.tensors[name] = tensor
        return self.graph.tensor(
            name=name,
            dim=[*tensor.shape],
            stride=[*tensor.strides],
            data_type=self.type_of(tensor.elements),
            uid=self._uid(name),
        )

    def scalar(self, name: str, value: float, axes: int) -> Any:
        """Add a number that is broadcast over tensors with so many axes."""
        self.scalars[name] = value
        ones = [1] * axes
        return self.graph.tensor(
            name=name, dim=ones, stride=ones, data_type=self.type_of("float32"), is_pass_by_value=True,
            uid=self._uid(name),
        )  # fmt: skip

    def output(self, name: str, node: Any, tensor: Tensor) -> None:
        """Write the result of an operation to memory."""
        self.tensors[name] = tensor
        self.results.append(name)
        node.set_dim([*tensor.shape]).set_stride([*tensor.strides])
        node.set_output(True).set_data_type(self.type_of(tensor.elements)).set_uid(self._uid(name))

    def relu(self, node: Any, limit: float) -> Any:
        """Add a Relu with a largest result, which may be inf."""
        return self.graph.relu(input=node, **({} if limit == math.inf else {"upper_clip": limit}))

    def relu_gradient(self, dy: Any, y: Any, image: Tensor, limit: float) -> Any:
        """Add dy where 0 < y < limit, else 0; the limit is rounded as the ``image`` y is."""
        g, bounds = self.graph, [(self.graph.cmp_gt, "zero", 0.0)]
        bounds += [(g.cmp_lt, "limit", rounded(limit, image.elements))] if limit != math.inf else []
        for compare, name, bound in bounds:
            passes = compare(input=y, comparison=self.scalar(name, bound, len(image.shape)))
            dy = g.mul(a=dy, b=passes.set_data_type(self._cudnn.data_type.BOOLEAN))
        return dy

    def normalized(self, x: Tensor) -> tuple[Any, Any]:
        """Add (x - mean) * inverse, and that times scale plus bias, of numbers for each channel, in float32."""
        g, channels = self.graph, per_channel(x)
        apart = g.sub(a=self.input("x", x), b=self.input("mean", channels))
        normal = g.mul(a=apart, b=self.input("inverse", channels))
        scaled = g.mul(a=normal, b=self.input("scale", channels))
        return normal, g.add(a=scaled, b=self.input("bias", channels))

    def channel_sums(self, name: str, node: Any, image: Tensor) -> None:
        """Write the sums over all axes but that of the channels, in float32, of images with the extents of others."""
        self.output(name, self.graph.reduction(input=node, mode=self.sum_mode), per_channel(image))

    @property
    def sum_mode(self) -> Any:
        return self._cudnn.reduction_mode.ADD


_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}


class Recipe(Protocol):
    """The description of a graph; hashable."""

    @property
    def io(self) -> str:
        """The element type of the tensors that the graph mostly reads and writes."""

    @property
    def exact(self) -> bool:
        """Whether products of float32 must not be rounded to TF32."""

    def build(self, to: Builder) -> None:
        """Add the operations to a graph."""


@dataclass(frozen=True)
class _Products:
    """Base of the graphs that multiply; ``tf32``: float32 may be rounded to 10 bits before it is multiplied."""

    tf32: bool = field(default=False, kw_only=True)

    @property
    def io(self) -> str:
        raise NotImplementedError

    @property
    def exact(self) -> bool:
        return self.io == "float32" and not self.tf32


@dataclass(frozen=True)
class Convolution(_Products):
    """y = relu(convolution of x and w + b + z), where bias, addend and Relu are optional.

    With ``shifted_sums``, sums and sumsq are those of y - shift and of its square for each channel, of y in float32.
    With ``normalizes``, what is convolved is the Relu of the normalized x, rounded to the type of x; ``limit`` is the
    largest result of that Relu.
    """

    x: Tensor
    w: Tensor
    y: Tensor
    window: Window
    b: Tensor | None = None
    z: Tensor | None = None
    relu: bool = False
    shifted_sums: bool = False
    normalizes: bool = False
    limit: float = math.inf

    @property
    def io(self) -> str:
        return self.x.elements

    def build(self, to: Builder) -> None:
        g = to.graph
        if self.normalizes:
            image = to.relu(to.normalized(self.x)[1], self.limit).set_data_type(to.type_of(self.x.elements))
        else:
            image = to.input("x", self.x)
        y = g.conv_fprop(image=image, weight=to.input("w", self.w), **self.window.arguments)
        if self.b is not None:
            y = g.bias(input=y, bias=to.input("b", self.b))
        if self.z is not None:
            y = g.add(a=y, b=to.input("z", self.z))
        if self.relu:
            y = g.relu(input=y)
        to.output("y", y, self.y)
        if self.shifted_sums:
            apart = g.sub(a=y, b=to.input("shift", per_channel(self.y)))
            to.channel_sums("sums", apart, self.y)
            to.channel_sums("sumsq", g.mul(a=apart, b=apart), self.y)


@dataclass(frozen=True)
class DataGradient(_Products):
    """dx of a convolution, from dy and w."""

    dy: Tensor
    w: Tensor
    dx: Tensor
    window: Window

    @property
    def io(self) -> str:
        return self.dy.elements

    def build(self, to: Builder) -> None:
        loss, weight = to.input("dy", self.dy), to.input("w", self.w)
        to.output("dx", to.graph.conv_dgrad(loss=loss, filter=weight, **self.window.arguments), self.dx)


@dataclass(frozen=True)
class DataGradientSums(_Products):
    """dz, and the sums over it for the gradient of the normalization before the Relu whose result y is convolved.

    dz is the gradient of the Relu, which is given the convolution's dx, or the sum of that and of an addend. dbias is
    the sum of dz for each channel, dscale that of its products with the normalized x, of dz in float32.
    ``activation`` says what happens to y: it is read, or computed again from x, or that and written; ``limit`` is its
    largest value.
    """

    dy: Tensor
    w: Tensor
    x: Tensor
    window: Window
    add: bool = False
    activation: Literal["read", "computed", "written"] = "read"
    limit: float = math.inf

    @property
    def io(self) -> str:
        return self.dy.elements

    def build(self, to: Builder) -> None:
        g, channels = to.graph, per_channel(self.x)
        loss, weight = to.input("dy", self.dy), to.input("w", self.w)
        dz = g.conv_dgrad(loss=loss, filter=weight, **self.window.arguments)
        dz.set_dim([*self.x.shape]).set_stride([*self.x.strides])
        if self.add:
            dz = g.add(a=dz, b=to.input("addend", self.x))
        if self.activation == "read":
            apart = g.sub(a=to.input("x", self.x), b=to.input("mean", channels))
            normal, y = g.mul(a=apart, b=to.input("inverse", channels)), to.input("y", self.x)
        else:
            normal, y = to.normalized(self.x)
        dz = to.relu_gradient(dz, y, self.x, self.limit)
        to.output("dz", dz, self.x)
        if self.activation == "written":
            to.output("y", to.relu(y, self.limit), self.x)
        to.channel_sums("dbias_sum", dz, self.x)
        to.channel_sums("dscale_sum", g.mul(a=normal, b=dz), self.x)


@dataclass(frozen=True)
class FilterGradient(_Products):
    """dw of a convolution, from x and dy.

    With ``scales``, what was convolved is relu(x factor + offset), of numbers for each channel in the type of x, and at
    most ``limit``.
    """

    x: Tensor
    dy: Tensor
    dw: Tensor
    window: Window
    scales: bool = False
    limit: float = math.inf

    @property
    def io(self) -> str:
        return self.x.elements

    def build(self, to: Builder) -> None:
        g, image, loss = to.graph, to.input("x", self.x), to.input("dy", self.dy)
        if self.scales:
            factor, offset = (to.input(name, per_channel(self.x, self.x.elements)) for name in ("factor", "offset"))
            image = to.relu(g.add(a=g.mul(a=image, b=factor), b=offset), self.limit)
        to.output("dw", g.conv_wgrad(image=image, loss=loss, **self.window.arguments), self.dw)


@dataclass(frozen=True)
class Product(_Products):
    """y = relu(a b + bias) of stacks of matrices, where bias and Relu are optional."""

    a: Tensor
    b: Tensor
    y: Tensor
    bias: Tensor | None = None
    relu: bool = False

    @property
    def io(self) -> str:
        return self.a.elements

    def build(self, to: Builder) -> None:
        g = to.graph
        y = g.matmul(A=to.input("a", self.a), B=to.input("b", self.b))
        if self.bias is not None:
            y = g.add(a=y, b=to.input("bias", self.bias))
        if self.relu:
            y = g.relu(input=y)
        to.output("y", y, self.y)


@dataclass(frozen=True)
class _Pointwise:
    """Base of the graphs that do not multiply matrices; ``x`` is what they read most of."""

    x: Tensor

    @property
    def io(self) -> str:
        return self.x.elements

    @property
    def exact(self) -> bool:
        return False


@dataclass(frozen=True)
class BatchNormalization(_Pointwise):
    """y = relu(normalized x + z), with the statistics of the batch: mean and inverse deviation of each channel.

    Addend and Relu are optional; ``limit`` is the largest result of the Relu, None: there is none. ``epsilon`` is added
    to the variance, which is the biased one.
    """

    epsilon: float
    z: Tensor | None = None
    limit: float | None = None

    def build(self, to: Builder) -> None:
        g, channels = to.graph, per_channel(self.x)
        axes = len(self.x.shape)
        y, mean, inverse, *_ = g.batchnorm(
            input=to.input("x", self.x),
            scale=to.input("scale", channels),
            bias=to.input("bias", channels),
            in_running_mean=None,
            in_running_var=None,
            epsilon=to.scalar("epsilon", self.epsilon, axes),
            momentum=None,
        )
        to.output("mean", mean, channels)
        to.output("inverse", inverse, channels)
        if self.z is not None:
            y = g.add(a=y, b=to.input("z", self.z))
        if self.limit is not None:
            y = to.relu(y, self.limit)
        to.output("y", y, self.x)


@dataclass(frozen=True)
class BatchNormalizationGradient(_Pointwise):
    """dx, dscale and dbias from dy, x and the statistics of the batch.

    With a ``limit``, y is the result of the Relu after the normalization, which is at most that, and dy the gradient of
    y; dz, the gradient of what the Relu was given, is written too: without it cuDNN 9 has no kernels for elements of 16
    bits. With ``add``, too, the gradient of y is the sum of dy and of an addend.
    """

    limit: float | None = None
    add: bool = False

    def build(self, to: Builder) -> None:
        g, channels = to.graph, per_channel(self.x)
        dy = to.input("dy", self.x)
        if self.add:
            dy = g.add(a=dy, b=to.input("addend", self.x))
        if self.limit is not None:
            dy = to.relu_gradient(dy, to.input("y", self.x), self.x, self.limit)
            to.output("dz", dy, self.x)
        dx, dscale, dbias = g.batchnorm_backward(
            grad=dy,
            input=to.input("x", self.x),
            scale=to.input("scale", channels),
            mean=to.input("mean", channels),
            inv_variance=to.input("inverse", channels),
        )
        to.output("dx", dx, self.x)
        to.output("dscale", dscale, channels)
        to.output("dbias", dbias, channels)


@dataclass(frozen=True)
class Normalization(_Pointwise):
    """y = relu((x - mean) / sqrt(variance + epsilon) * scale + bias + z), with given statistics.

    Addend and Relu are optional; ``limit`` is the largest result of the Relu, None: there is none.
    """

    epsilon: float
    z: Tensor | None = None
    limit: float | None = None

    def build(self, to: Builder) -> None:
        g, channels = to.graph, per_channel(self.x)
        scale, bias, mean, variance = (to.input(name, channels) for name in ("scale", "bias", "mean", "variance"))
        shifted = g.add(a=variance, b=to.scalar("epsilon", self.epsilon, len(self.x.shape)))
        y = g.mul(a=g.sub(a=to.input("x", self.x), b=mean), b=g.rsqrt(input=shifted))
        y = g.add(a=g.mul(a=y, b=scale), b=bias)
        if self.z is not None:
            y = g.add(a=y, b=to.input("z", self.z))
        to.output("y", y if self.limit is None else to.relu(y, self.limit), self.x)


@dataclass(frozen=True)
class ChannelSums(_Pointwise):
    """sums = the sum of x over all axes but that of the channels."""

    sums: Tensor

    def build(self, to: Builder) -> None:
        to.output("sums", to.graph.reduction(input=to.input("x", self.x), mode=to.sum_mode), self.sums)


@dataclass(frozen=True)
class AddPerChannel(_Pointwise):
    """y = relu(x + b), where b has one number for each channel; Relu is optional."""

    b: Tensor
    relu: bool = False

    def build(self, to: Builder) -> None:
        y = to.graph.add(a=to.input("x", self.x), b=to.input("b", self.b))
        to.output("y", to.graph.relu(input=y) if self.relu else y, self.x)
