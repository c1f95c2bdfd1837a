"""Convolutions: 2-D, N-D, transposed and grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.operators import IsOperator
from netbuilder.model.helpers.engine import convolution_arguments
from netbuilder.model.helpers.extents import check_extents
from netbuilder.model.helpers.nonlinearity import HARD_SIGMOID
from netbuilder.model.initializers import FillAndArguments, update_initializer
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.proto import ArgumentError

if TYPE_CHECKING:
    from netbuilder.model.model_helper import ModelHelper

__all__ = ["conv", "conv_nd", "conv_transpose", "depthwise", "group_conv", "group_conv_deprecated", "squeeze_excite"]

Blob = str | BlobReference
TransformInputs = Callable[[Any, Any, list[Any]], Any]


def conv(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None,
    dim_in: int,
    dim_out: int,
    kernel: int | Sequence[int],
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    WeightInitializer: Any = None,
    BiasInitializer: Any = None,
    group: int = 1,
    transform_inputs: TransformInputs | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Add a convolution of images with weights ``<blob_out>_w`` and bias ``<blob_out>_b``.

    Args:
        blob_in: images, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: name of the result; None: a name made from the net's.
        dim_in, dim_out: numbers of input and output channels.
        kernel: size of the kernel in pixels, or (height, width).
        weight_init, bias_init: (fill operator, its arguments); Xavier and zeros if None.
        WeightInitializer, BiasInitializer: initializer classes, see ``netbuilder.model.initializers``.
        group: number of groups of channels.
        transform_inputs: called with (model, blob_out, inputs); may change the list of inputs.
        kwargs: ``no_bias``, ``order``, ``use_cudnn``, ``engine``,
            ``cudnn_exhaustive_search`` (try all algorithms and use the fastest), ``ws_nbytes_limit``
            (bytes), and arguments of Conv: ``stride``, ``pad``, ``dilation``, ...

    Raises:
        ArgumentError: a number of channels or the kernel is not a positive integer; ``group`` does not divide the
            channels; an argument is unknown.
    """
    kernels = _as_list(kernel)
    if len(kernels) not in (1, 2):
        raise ArgumentError(
            f"conv {str(blob_out)!r}: kernel must be one or two numbers, got {kernel!r}; use conv_nd for more axes"
        )
    args = {"kernel": kernels[0]} if len(kernels) == 1 else {"kernel_h": kernels[0], "kernel_w": kernels[1]}
    return _conv(
        model, blob_in, blob_out, dim_in, dim_out, kernels * 2 if len(kernels) == 1 else kernels, args,
        (WeightInitializer, weight_init), (BiasInitializer, bias_init), group, transform_inputs, **kwargs,
    )  # fmt: skip


def conv_nd(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None,
    dim_in: int,
    dim_out: int,
    kernel: int | Sequence[int],
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    WeightInitializer: Any = None,
    BiasInitializer: Any = None,
    group: int = 1,
    transform_inputs: TransformInputs | None = None,
    order: str = "NCHW",
    **kwargs: Any,
) -> BlobReference:
    """Add a convolution over as many axes as ``kernel`` has numbers; otherwise like ``conv``.

    Raises:
        ArgumentError: ``order`` is not "NCHW".
    """
    if order != "NCHW":
        raise ArgumentError(f"conv_nd {str(blob_out)!r}: order must be 'NCHW' (channels first), got {order!r}")
    kernels = _as_list(kernel)
    return _conv(
        model, blob_in, blob_out, dim_in, dim_out, kernels, {"kernels": kernels},
        (WeightInitializer, weight_init), (BiasInitializer, bias_init), group, transform_inputs, order=order, **kwargs,
    )  # fmt: skip


def _as_list(kernel: int | Sequence[int]) -> list[int]:
    return list(kernel) if isinstance(kernel, Sequence) else [kernel]


def _conv(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None,
    dim_in: int,
    dim_out: int,
    kernels: list[int],
    args: dict[str, Any],
    weight: tuple[Any, FillAndArguments | None],
    bias: tuple[Any, FillAndArguments | None],
    group: int,
    transform_inputs: TransformInputs | None,
    /,
    *,
    no_bias: bool = False,
    order: str = "NCHW",
    use_cudnn: bool = False,
    cudnn_exhaustive_search: bool = False,
    ws_nbytes_limit: int | None = None,
    engine: str | None = None,
    **kwargs: Any,
) -> BlobReference:
    out = blob_out or model.net.NextName()
    check_extents("conv", out, dim_in=dim_in, dim_out=dim_out)
    if group < 1 or dim_in % group or dim_out % group:
        raise ArgumentError(f"conv {str(out)!r}: group must divide {dim_in} and {dim_out} channels, got {group}")
    if any(not hasattr(extent, "__index__") or extent < 1 for extent in kernels):
        raise ArgumentError(f"conv {str(out)!r}: kernel must be positive integers, got {kernels}")
    library = convolution_arguments(
        use_cudnn=use_cudnn,
        order=order,
        cudnn_exhaustive_search=cudnn_exhaustive_search,
        ws_nbytes_limit=ws_nbytes_limit,
        engine=engine,
    )
    inner = [dim_in // group]
    shape = [dim_out, *inner, *kernels] if order == "NCHW" else [dim_out, *kernels, *inner]
    inputs = [blob_in, *_weight_and_bias(model, out, shape, dim_out, weight, None if no_bias else bias)]
    if transform_inputs is not None:
        transform_inputs(model, out, inputs)
    if group != 1:
        library["group"] = group
    result: BlobReference = model.net.Conv(inputs, out, **args, **library, **kwargs)
    return result


def _weight_and_bias(
    model: ModelHelper,
    out: Blob,
    shape: list[int],
    dim_out: int,
    weight: tuple[Any, FillAndArguments | None],
    bias: tuple[Any, FillAndArguments | None] | None,
) -> list[BlobReference]:
    fill = update_initializer(*weight, ("XavierFill", {}))
    made = [model.create_param(out + "_w", shape, fill, ParameterTags.WEIGHT)]
    if bias is not None:
        fill = update_initializer(*bias, ("ConstantFill", {}))
        made.append(model.create_param(out + "_b", [dim_out], fill, ParameterTags.BIAS))
    return made


def conv_transpose(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None,
    dim_in: int,
    dim_out: int,
    kernel: int,
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    use_cudnn: bool = False,
    order: str = "NCHW",
    cudnn_exhaustive_search: bool = False,
    ws_nbytes_limit: int | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Add a transposed convolution, which upsamples images by ``stride``.

    Args:
        kernel: size of the square kernel in pixels.
        kwargs: ``no_bias``, ``engine``, and arguments of ConvTranspose: ``stride``, ``pad``, ``adj``, ...
            The others are those of ``conv``.
    """
    out = blob_out or model.net.NextName()
    if not isinstance(kernel, int):
        raise ArgumentError(f"conv_transpose {str(out)!r}: kernel must be one integer, got {kernel!r}")
    check_extents("conv_transpose", out, dim_in=dim_in, dim_out=dim_out, kernel=kernel)
    no_bias = kwargs.pop("no_bias", False)
    library = convolution_arguments(
        use_cudnn=use_cudnn,
        order=order,
        cudnn_exhaustive_search=cudnn_exhaustive_search,
        ws_nbytes_limit=ws_nbytes_limit,
        engine=kwargs.pop("engine", None),
    )
    window = [kernel, kernel]
    shape = [dim_in, dim_out, *window] if order == "NCHW" else [dim_in, *window, dim_out]
    params = _weight_and_bias(model, out, shape, dim_out, (None, weight_init), None if no_bias else (None, bias_init))
    result: BlobReference = model.net.ConvTranspose([blob_in, *params], out, kernel=kernel, **library, **kwargs)
    return result


def group_conv(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None,
    dim_in: int,
    dim_out: int,
    kernel: int | Sequence[int],
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    group: int = 1,
    **kwargs: Any,
) -> BlobReference:
    """Add a grouped convolution: ``conv`` with another position of the argument ``group``."""
    return conv(
        model, blob_in, blob_out, dim_in, dim_out, kernel, weight_init=weight_init, bias_init=bias_init, group=group,
        **kwargs,
    )  # fmt: skip


def depthwise(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob | None,
    dim: int,
    kernel: int | Sequence[int],
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Add a convolution of each of ``dim`` channels by itself; the other arguments are those of ``conv``."""
    return conv(
        model, blob_in, blob_out, dim, dim, kernel, weight_init=weight_init, bias_init=bias_init, group=dim, **kwargs
    )


def squeeze_excite(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob,
    dim: int,
    squeezed: int,
    *,
    activation: str = "Relu",
    gate: str = "Sigmoid",
    weight_init: FillAndArguments | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Multiply each channel by a gate, which two 1x1 convolutions compute from the means of all channels.

    The convolutions are ``<blob_out>_squeeze`` and ``<blob_out>_excite``.

    Args:
        blob_in: images, (N, C, H, W), or (N, H, W, C) with ``order="NHWC"``.
        blob_out: name of the result.
        dim: number of channels C.
        squeezed: number of channels between the convolutions.
        activation, gate: the operators after the first and the second convolution, such as "Swish" and "HardSigmoid".
            HardSigmoid is x / 6 + 1 / 2, clipped to [0, 1].
        kwargs: arguments of both convolutions, as for ``conv``.

    Source: Hu, Shen and Sun, "Squeeze-and-Excitation Networks", 2017, arXiv:1709.01507.
    """
    check_extents("squeeze_excite", blob_out, dim=dim, squeezed=squeezed)
    order = kwargs.get("order", "NCHW")
    x: BlobReference = model.net.AveragePool(blob_in, blob_out + "_means", global_pooling=1, order=order)
    for name, op_type, extents in (("squeeze", activation, (dim, squeezed)), ("excite", gate, (squeezed, dim))):
        if not IsOperator(op_type):
            raise ArgumentError(f"squeeze_excite {str(blob_out)!r}: there is no operator {op_type!r}")
        x = conv(model, x, f"{blob_out}_{name}", *extents, 1, weight_init=weight_init, **kwargs)
        arguments = HARD_SIGMOID if op_type == "HardSigmoid" else {}
        x = getattr(model.net, op_type)(x, f"{blob_out}_{name}d", **arguments)
    result: BlobReference = model.net.Mul([blob_in, x], blob_out)
    return result


def group_conv_deprecated(
    model: ModelHelper,
    blob_in: Blob,
    blob_out: Blob,
    dim_in: int,
    dim_out: int,
    kernel: int,
    weight_init: FillAndArguments | None = None,
    bias_init: FillAndArguments | None = None,
    group: int = 1,
    use_cudnn: bool = False,
    order: str = "NCHW",
    cudnn_exhaustive_search: bool = False,
    ws_nbytes_limit: int | None = None,
    **kwargs: Any,
) -> BlobReference:
    """Add a grouped convolution as one operator per group, for old models; new models should use ``group_conv``.

    Group ``i`` has the parameters ``<blob_out>_gconv_<i>_w`` and ``_b``.
    """
    if group < 1 or dim_in % group or dim_out % group:
        raise ArgumentError(
            f"group_conv_deprecated {str(blob_out)!r}: group must divide {dim_in} and {dim_out} channels, got {group}"
        )
    library: dict[str, Any] = {
        "use_cudnn": use_cudnn,
        "order": order,
        "cudnn_exhaustive_search": cudnn_exhaustive_search,
        "ws_nbytes_limit": ws_nbytes_limit,
    }
    parts = model.net.DepthSplit(
        blob_in,
        [f"_{blob_out}_gconv_split_{i}" for i in range(group)],
        split=[dim_in // group] * group,
        order=order,
    )
    convolved = [
        conv(
            model, part, f"{blob_out}_gconv_{i}", dim_in // group, dim_out // group, kernel,
            weight_init=weight_init, bias_init=bias_init, **library, **kwargs,
        )
        for i, part in enumerate(parts if isinstance(parts, tuple) else [parts])
    ]  # fmt: skip
    joined: BlobReference = model.net.Concat(convolved, [blob_out, f"_{blob_out}_concat_dims"], order=order)[0]
    return joined
