"""What normalizes the activations of a layer: settings for those who build layers."""

from __future__ import annotations

from netbuilder.caffe2.missing import names_of

__all__ = ["BatchNormalizer", "LayerNormalizer", "Normalizer"]

__getattr__ = names_of(__name__)


class Normalizer:
    """Base of the normalizers.

    What adds the operators are Caffe2's layer models, which are not served: a normalizer keeps its settings, and
    ``brew.spatial_bn`` and ``model.net.LayerNorm`` normalize.
    """

    def __init__(self) -> None:
        pass


class BatchNormalizer(Normalizer):
    """Normalization over the batch.

    Args:
        momentum: share of the running averages kept per iteration.
        scale_init_value: first value of the scale.
    """

    def __init__(self, momentum: float, scale_init_value: float = 1.0) -> None:
        super().__init__()
        self._momentum = float(momentum)
        self._scale_init_value = float(scale_init_value)


class LayerNormalizer(Normalizer):
    """Normalization over the features.

    Args:
        epsilon: added to the variance.
        use_layer_norm_op: by the operator LayerNorm, not by several.
        scale_init_value: first value of the scale.
    """

    def __init__(self, epsilon: float, use_layer_norm_op: bool = True, scale_init_value: float = 1.0) -> None:
        super().__init__()
        self._epsilon = float(epsilon)
        self._use_layer_norm_op = use_layer_norm_op
        self._scale_init_value = float(scale_init_value)
