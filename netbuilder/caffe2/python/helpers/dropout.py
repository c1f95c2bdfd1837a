"""Dropout."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.dropout import dropout

__all__ = ["dropout"]

__getattr__ = names_of(__name__)
