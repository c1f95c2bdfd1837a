"""Models: nets with their parameters, layer helpers, initializers."""

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
