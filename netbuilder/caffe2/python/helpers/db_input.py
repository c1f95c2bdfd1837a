"""Readers of databases."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.inputs import db_input

__all__ = ["db_input"]

__getattr__ = names_of(__name__)
