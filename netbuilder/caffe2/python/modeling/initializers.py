"""How the first value of a parameter is made."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.initializers import (
    ExternalInitializer,
    Initializer,
    PseudoFP16Initializer,
    ReversePseudoFP16Initializer,
    update_initializer,
)

__all__ = [
    "ExternalInitializer",
    "Initializer",
    "PseudoFP16Initializer",
    "ReversePseudoFP16Initializer",
    "update_initializer",
]

__getattr__ = names_of(__name__)
