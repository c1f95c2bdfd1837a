"""CNNModelHelper: the model of older scripts, with layers as its methods."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.missing_names import reason_of
from netbuilder.caffe2.python.model_helper import ModelHelper
from netbuilder.graph import BlobReference
from netbuilder.model import brew
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, NetError
from netbuilder.proto.arguments import make_device_option

__all__ = ["CNNModelHelper"]

__getattr__ = names_of(__name__)

Fill = tuple[str, dict[str, Any]]


class CNNModelHelper(ModelHelper):
    """A model whose methods add layers, as ``brew``'s functions do.

    Args:
        order: "NCHW" or "NHWC", for all layers.
        name: of the model; None: "CNN".
        use_cudnn, cudnn_exhaustive_search, ws_nbytes_limit: for all layers.
        init_params, skip_sparse_optim, param_model: see ``ModelHelper``.

    >>> model = CNNModelHelper(name="cnn_example")
    >>> model.FC("x", "y", 3, 2)
    BlobReference("y")
    """

    def __init__(
        self,
        order: str = "NCHW",
        name: str | None = None,
        use_cudnn: bool = True,
        cudnn_exhaustive_search: bool = False,
        ws_nbytes_limit: int | None = None,
        init_params: bool = True,
        skip_sparse_optim: bool = False,
        param_model: ModelHelper | None = None,
    ) -> None:
        if order not in ("NCHW", "NHWC"):
            raise NetError(f"CNNModelHelper: order must be 'NCHW' or 'NHWC', got {order!r}")
        arguments = {"order": order, "use_cudnn": use_cudnn, "cudnn_exhaustive_search": cudnn_exhaustive_search}
        if ws_nbytes_limit:
            arguments["ws_nbytes_limit"] = ws_nbytes_limit
        super().__init__(
            name="CNN" if name is None else name,
            init_params=init_params,
            skip_sparse_optim=skip_sparse_optim,
            param_model=param_model,
            arg_scope=arguments,
        )
        self.order = order
        self.use_cudnn = use_cudnn
        self.cudnn_exhaustive_search = cudnn_exhaustive_search
        self.ws_nbytes_limit = ws_nbytes_limit

    def __getattr__(self, name: str) -> Any:
        if reason := reason_of(f"python.cnn.CNNModelHelper.{name}"):
            raise AttributeError(f"CNNModelHelper has no {name}: {reason}")
        return super().__getattr__(name)

    # Layers; they take the arguments of brew's function without the model.

    def Conv(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.conv``."""
        return brew.conv(self, *args, **kwargs)

    def ConvNd(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.conv_nd``."""
        return brew.conv_nd(self, *args, **kwargs)

    def ConvTranspose(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.conv_transpose``."""
        return brew.conv_transpose(self, *args, **kwargs)

    def GroupConv(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.group_conv``."""
        return brew.group_conv(self, *args, **kwargs)

    def GroupConv_Deprecated(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.group_conv_deprecated``."""
        return brew.group_conv_deprecated(self, *args, **kwargs)

    def FC(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.fc``."""
        return brew.fc(self, *args, **kwargs)

    def Dropout(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.dropout``."""
        return brew.dropout(self, *args, **kwargs)

    def LRN(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.lrn``."""
        return brew.lrn(self, *args, **kwargs)

    def Softmax(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.softmax``."""
        return brew.softmax(self, *args, **kwargs)

    def SpatialBN(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.spatial_bn``."""
        return brew.spatial_bn(self, *args, **kwargs)

    def SpatialGN(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.spatial_gn``."""
        return brew.spatial_gn(self, *args, **kwargs)

    def ImageInput(self, blob_in: Any, blob_out: Any, use_gpu_transform: bool = False, **kwargs: Any) -> Any:
        """Add ``brew.image_input``, in the model's order."""
        return brew.image_input(self, blob_in, blob_out, self.order, use_gpu_transform, **kwargs)

    def InstanceNorm(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.instance_norm``."""
        return brew.instance_norm(self, *args, **kwargs)

    def Relu(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.relu``."""
        return brew.relu(self, *args, **kwargs)

    def PRelu(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.prelu``."""
        return brew.prelu(self, *args, **kwargs)

    def Concat(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.concat``."""
        return brew.concat(self, *args, **kwargs)

    def DepthConcat(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.depth_concat``."""
        return brew.depth_concat(self, *args, **kwargs)

    def Sum(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.sum``."""
        return brew.sum(self, *args, **kwargs)

    def Transpose(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.transpose``."""
        return brew.transpose(self, *args, **kwargs)

    def Iter(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.iter``."""
        return brew.iter(self, *args, **kwargs)

    def Accuracy(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.accuracy``."""
        return brew.accuracy(self, *args, **kwargs)

    def MaxPool(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.max_pool``."""
        return brew.max_pool(self, *args, **kwargs)

    def MaxPoolWithIndex(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.max_pool_with_index``."""
        return brew.max_pool_with_index(self, *args, **kwargs)

    def PadImage(self, blob_in: Any, blob_out: Any, **kwargs: Any) -> BlobReference:
        """Add the operator PadImage."""
        padded: BlobReference = self.net.PadImage(blob_in, blob_out, **kwargs)
        return padded

    def AveragePool(self, *args: Any, **kwargs: Any) -> BlobReference:
        """Add ``brew.average_pool``."""
        return brew.average_pool(self, *args, **kwargs)

    def AddWeightDecay(self, weight_decay: float) -> None:
        """Add ``brew.add_weight_decay``: the constants from which old scripts build weight decay."""
        brew.add_weight_decay(self, weight_decay)

    # Fills and devices by name.

    @property
    def XavierInit(self) -> Fill:
        """The Xavier initialization."""
        return "XavierFill", {}

    @property
    def MSRAInit(self) -> Fill:
        """The initialization of He et al."""
        return "MSRAFill", {}

    @property
    def ZeroInit(self) -> Fill:
        """The fill with zeros."""
        return "ConstantFill", {}

    def ConstantInit(self, value: float) -> Fill:
        """Return the fill with ``value``."""
        return "ConstantFill", {"value": value}

    @property
    def CPU(self) -> DeviceOption:
        """The CPU."""
        return make_device_option(PROTO_CPU)

    @property
    def GPU(self) -> DeviceOption:
        """The first GPU."""
        return make_device_option(PROTO_CUDA)
