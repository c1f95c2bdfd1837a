"""Models: nets with their parameters, layer helpers, initializers."""

import typing as _typing

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.model import brew
from netbuilder.model.brew import arg_scope
from netbuilder.model.generation import Generator
from netbuilder.model.initializers import (
    ExternalInitializer,
    Initializer,
    PseudoFP16Initializer,
    ReversePseudoFP16Initializer,
    update_initializer,
)
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.parameter_info import ParameterInfo, ParameterTags
from netbuilder.model.parameter_sharing import ParameterSharing

__all__ = [
    "ExternalInitializer",
    "Generator",
    "Initializer",
    "ModelHelper",
    "ParameterInfo",
    "ParameterSharing",
    "ParameterTags",
    "PseudoFP16Initializer",
    "ReversePseudoFP16Initializer",
    "arg_scope",
    "brew",
    "update_initializer",
]

if not _typing.TYPE_CHECKING:  # for which all names are known
    __getattr__, __dir__ = _names_on_first_use(__name__, {})
