"""Normalizers of a layer's activations: settings for code that builds layers."""

from __future__ import annotations

from netbuilder.caffe2.missing import names_of

__all__ = ["BatchNormalizer", "LayerNormalizer", "Normalizer"]

__getattr__ = names_of(__name__)


class Normalizer:
    """Base of the normalizers.

    In Caffe2 layer models add the operators; they are not supported. A normalizer only stores its settings; use
    ``brew.spatial_bn`` or ``model.net.LayerNorm`` to normalize.
    """

    def __init__(self) -> None:
        pass


class BatchNormalizer(Normalizer):
    """Normalization over the batch.

    Args:
        momentum: of the running averages.
        scale_init_value: initial scale.
    """

    def __init__(self, momentum: float, scale_init_value: float = 1.0) -> None:
        super().__init__()
        self._momentum = float(momentum)
        self._scale_init_value = float(scale_init_value)


class LayerNormalizer(Normalizer):
    """Normalization over the features.

    Args:
        epsilon: added to the variance.
        use_layer_norm_op: use the operator LayerNorm instead of several operators.
        scale_init_value: initial scale.
    """

    def __init__(self, epsilon: float, use_layer_norm_op: bool = True, scale_init_value: float = 1.0) -> None:
        super().__init__()
        self._epsilon = float(epsilon)
        self._use_layer_norm_op = use_layer_norm_op
        self._scale_init_value = float(scale_init_value)
