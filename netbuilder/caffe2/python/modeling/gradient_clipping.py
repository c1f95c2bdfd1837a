"""A net modifier that clips gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python.modeling.net_modifier import NetModifier
from netbuilder.graph import BlobReference, DeviceScope, GradientSlice, Net
from netbuilder.optimizers import get_param_device
from netbuilder.proto import DeviceOption, NetError
from netbuilder.proto.arguments import make_device_option

__all__ = ["GradientClipping"]

__getattr__ = names_of(__name__)


class GradientClipping(NetModifier):
    """Clip dense gradients in place, by norm or by value; sparse ones stay unchanged.

    Args:
        grad_clip_method: "by_norm" or "by_value".
        clip_norm_type: "l2_norm" or "l1_norm"; None only with "by_value".
        clip_threshold: maximum norm; gradients with a larger one are scaled to it.
        use_parameter_norm: apply the threshold to the gradient's norm divided by the parameter's.
        compute_norm_ratio: with ``use_parameter_norm``, write this ratio to ``<parameter>_norm_ratio``.
        clip_max, clip_min: bounds of each element, for "by_value".
        blobs_to_include: parameters whose gradients are clipped; None: all of the ``grad_map``.
        blobs_to_exclude: parameters to skip.

    Raises:
        NetError: the method or norm type is unknown.
    """

    L1_NORM = "l1_norm"
    L2_NORM = "l2_norm"
    BY_NORM = "by_norm"
    BY_VALUE = "by_value"
    GRAD_CLIP_METHODS = (BY_NORM, BY_VALUE)
    CLIP_GRADIENT_NORM_TYPES = (L2_NORM, L1_NORM)

    def __init__(
        self,
        grad_clip_method: str,
        clip_norm_type: str | None = "l2_norm",
        clip_threshold: float = 0.1,
        use_parameter_norm: bool = False,
        compute_norm_ratio: bool = False,
        clip_max: float = 1,
        clip_min: float = -1,
        blobs_to_include: Iterable[Any] | None = None,
        blobs_to_exclude: Iterable[Any] | None = None,
    ) -> None:
        if grad_clip_method not in self.GRAD_CLIP_METHODS:
            known = list(self.GRAD_CLIP_METHODS)
            raise NetError(f"GradientClipping: grad_clip_method must be one of {known}, got {grad_clip_method!r}")
        if clip_norm_type not in self.CLIP_GRADIENT_NORM_TYPES and (clip_norm_type or grad_clip_method == self.BY_NORM):
            known = list(self.CLIP_GRADIENT_NORM_TYPES)
            raise NetError(f"GradientClipping: clip_norm_type must be one of {known}, got {clip_norm_type!r}")
        self.grad_clip_method = grad_clip_method
        self.clip_norm_type = clip_norm_type
        self.clip_threshold = float(clip_threshold)
        self.use_parameter_norm = use_parameter_norm
        self.compute_norm_ratio = compute_norm_ratio
        self.clip_max = float(clip_max)
        self.clip_min = float(clip_min)
        self.blobs_to_include = None if blobs_to_include is None else [str(blob) for blob in blobs_to_include]
        self.blobs_to_exclude = [str(blob) for blob in blobs_to_exclude or ()]

    def modify_net(
        self,
        net: Net,
        init_net: Net | None = None,
        grad_map: Mapping[Any, Any] | None = None,
        blob_to_device: Mapping[Any, DeviceOption] | None = None,
        modify_output_record: bool = False,
    ) -> None:
        """Append the operators to the net; see ``NetModifier``.

        Raises:
            NetError: ``grad_map`` is None, or it or the net does not have a parameter to include.
        """
        if grad_map is None:
            raise NetError(
                "GradientClipping: grad_map must be the dict parameter -> gradient that AddGradientOperators returned"
            )
        gradients = {str(param): grad for param, grad in grad_map.items()}
        included = list(gradients) if self.blobs_to_include is None else self.blobs_to_include
        if missing := [param for param in included if param not in gradients or not net.BlobIsDefined(param)]:
            raise NetError(f"GradientClipping: net {net}, or the grad_map, does not have the parameters {missing}")
        devices = {str(blob): device for blob, device in (blob_to_device or {}).items()}
        for param in included:
            grad = gradients[param]
            if param in self.blobs_to_exclude or isinstance(grad, GradientSlice):
                continue
            with DeviceScope(get_param_device(param, grad, devices, default_device=make_device_option())):
                if self.grad_clip_method == self.BY_NORM:
                    self._clip_by_norm(net, param, grad)
                else:
                    net.Clip([grad], [grad], max=self.clip_max, min=self.clip_min)

    def _clip_by_norm(self, net: Net, param: str, grad: BlobReference) -> None:
        norms = [self._norm(net, grad)]
        if self.use_parameter_norm:
            norms.append(self._norm(net, BlobReference(param)))
            if self.compute_norm_ratio:
                net.Div(norms, [net.NextScopedBlob(prefix=param + "_norm_ratio")])
        net.ClipTensorByScaling([grad, *norms], [grad], threshold=self.clip_threshold)

    def _norm(self, net: Net, blob: BlobReference) -> Any:
        p = 2 if self.clip_norm_type == self.L2_NORM else 1
        norm = net.LpNorm([blob], net.NextScopedBlob(prefix=f"{blob}_l{p}_norm"), p=p)
        return net.Pow([norm], exponent=0.5) if p == 2 else norm
