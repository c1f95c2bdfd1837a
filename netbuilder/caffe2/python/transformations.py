"""Transformations of nets by name: ``Transformer().FuseConvBN(net)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.transforms import NET_TRANSFORMS, WORKSPACE_TRANSFORMS
from netbuilder.runtime.execute import default

__all__ = ["Transformer", "fuseConvBN", "fuseNNPACKConvRelu", "optimizeForMKLDNN"]

__getattr__ = names_of(__name__)


class Transformer:
    """Each transformation is a method that changes a Net in place.

    They are AddNNPACK, FuseNNPACKConvRelu, and FuseConvBN, which changes parameters in the current workspace.

    >>> from netbuilder.caffe2.python import core
    >>> net = core.Net("transformed")
    >>> net.Relu(net.Conv(["x", "w", "b"], "y", kernel=3), "z")
    BlobReference("z")
    >>> transformer = Transformer()
    >>> transformer.AddNNPACK(net)
    >>> transformer.FuseNNPACKConvRelu(net)
    >>> [(op.type, list(op.output)) for op in net.Proto().op]
    [('Conv', ['z'])]
    """

    @classmethod
    def runTransform(cls, transform_name: str, net: Any) -> None:
        """Apply a transformation to a net, in place.

        Args:
            transform_name: name of the transformation.
            net: a Net.

        Raises:
            AttributeError: there is no such transformation.
        """
        if transform_name in NET_TRANSFORMS:
            made = NET_TRANSFORMS[transform_name](net).net
        elif transform_name in WORKSPACE_TRANSFORMS:
            made = WORKSPACE_TRANSFORMS[transform_name](net.Proto(), default.workspace())
        else:
            known = ", ".join([*NET_TRANSFORMS, *WORKSPACE_TRANSFORMS])
            raise AttributeError(f"the transformation must be one of {known}, got {transform_name!r}")
        net.replace_message(made)

    def __getattr__(self, transform_name: str) -> Callable[[Any], None]:
        if transform_name.startswith("__"):
            raise AttributeError(transform_name)
        return lambda net: self.runTransform(transform_name, net)


def fuseNNPACKConvRelu(net: Any) -> None:
    """Fuse Convs that have the engine NNPACK with the Relus that are their only readers; see ``Transformer``."""
    Transformer.runTransform("FuseNNPACKConvRelu", net)


def fuseConvBN(net: Any) -> None:
    """Fold batch normalizations in test mode into the layers before them; see ``Transformer``."""
    Transformer.runTransform("FuseConvBN", net)


def optimizeForMKLDNN(net: Any, training_mode: bool = False) -> None:
    """Leave a net unchanged: on CPUs the plan of each net chooses oneDNN's kernels.

    Args:
        net: a Net.
        training_mode: without effect.
    """
