"""ModelHelper, and predictors taken out of nets."""

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
    """A model whose nets check operators when they are created, as in Caffe2 (see ``LenientNet``).

    With ``param_model`` it has that model's init net, too.
    """

    net_class = LenientNet

    def _init_net(self, param_model: _ModelHelper | None) -> Net:
        return super()._init_net(None) if param_model is None else param_model.param_init_net

    @property
    def _parameters_info(self) -> dict[str, ParameterInfo]:
        """What is known of each parameter, by name; models that share parameters share it."""
        return self._infos

    def _Validate(self) -> list[str]:
        """Return the parameters that are listed twice, sorted; ``Validate`` raises if there are any."""
        return sorted(name for name, count in Counter(map(str, self.params)).items() if count > 1)


__getattr__ = names_of(__name__)
