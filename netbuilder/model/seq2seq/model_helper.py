"""The model helper of sequence-to-sequence nets."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.initializers import Initializer
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterTags
from netbuilder.proto import ArgumentError

__all__ = ["Seq2SeqModelHelper"]


class Seq2SeqModelHelper(ModelHelper):
    """A ModelHelper with a method for parameters that are not trained.

    Args:
        init_params: see ``ModelHelper``.
        kwargs: ``name`` ("seq2seq"), ``dtype`` and other arguments of ``ModelHelper``.
    """

    def __init__(self, init_params: bool = True, **kwargs: Any) -> None:
        arg_scope = {
            "use_cudnn": kwargs.pop("use_cudnn", True),
            "cudnn_exhaustive_search": kwargs.pop("cudnn_exhaustive_search", False),
            "order": "NHWC",
        }
        super().__init__(name=kwargs.pop("name", "seq2seq"), init_params=init_params, arg_scope=arg_scope, **kwargs)

    def AddParam(
        self, name: str | BlobReference, init: Any = None, init_value: float | None = None, trainable: bool = True
    ) -> BlobReference:
        """Add a parameter.

        Args:
            name: a string, which gets the current name scope, or a reference with the full name.
            init: a blob of the init net with the initial value; or a fill (operator, arguments); None: use
                ``init_value``.
            init_value: the value of a tensor of shape (1,), float32 or, if it is an int, int64.
            trainable: whether optimizers update the parameter.

        Raises:
            ArgumentError: neither ``init`` nor ``init_value`` is given.
        """
        tags = None if trainable else ParameterTags.COMPUTED_PARAM
        if init is None and init_value is None:
            raise ArgumentError(f"AddParam {str(name)!r}: give init, a blob with the initial value, or init_value")
        if init is None:
            fill = Initializer("ConstantFill", value=init_value)
            return self.create_param(name, [1], fill, tags)
        if isinstance(init, tuple):
            fill_type, arguments = init
            param = getattr(self.param_init_net, fill_type)([], name, **arguments)
        else:
            param = self.param_init_net.Copy(init, name)
        self.AddParameter(param, tags)
        return param

    def GetNonTrainableParams(self, namescope: str | None = None) -> list[BlobReference]:
        """Return the parameters in a name scope that are not trained; argument as in ``GetParams``."""
        return self.GetComputedParams(namescope)
