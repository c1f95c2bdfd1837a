"""Fully connected layers."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.fc import fc

__all__ = ["fc"]

__getattr__ = names_of(__name__)
