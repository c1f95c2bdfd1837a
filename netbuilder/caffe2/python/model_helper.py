"""ModelHelper, and ExtractPredictorNet."""

from __future__ import annotations

from collections import Counter

from netbuilder.caffe2.lenient import LenientNet
from netbuilder.caffe2.missing import names_of
from netbuilder.graph import Net
from netbuilder.model.helpers.inputs import db_input
from netbuilder.model.model_helper import ModelHelper as _ModelHelper
from netbuilder.model.parameter_info import ParameterInfo
from netbuilder.passes.extract_predictor import ExtractPredictorNet

__all__ = ["ExtractPredictorNet", "ModelHelper", "db_input"]


class ModelHelper(_ModelHelper):
    """A model whose nets are checked when they are created, as in Caffe2 (see ``LenientNet``).

    With ``param_model`` it shares that model's init net.
    """

    net_class = LenientNet

    def _init_net(self, param_model: _ModelHelper | None) -> Net:
        return super()._init_net(None) if param_model is None else param_model.param_init_net

    @property
    def _parameters_info(self) -> dict[str, ParameterInfo]:
        """The ParameterInfo of each parameter by name, shared by models that share parameters."""
        return self._infos

    def _Validate(self) -> list[str]:
        """Return the sorted names of parameters that occur twice; ``Validate`` raises an error if there are any."""
        return sorted(name for name, count in Counter(map(str, self.params)).items() if count > 1)


__getattr__ = names_of(__name__)
