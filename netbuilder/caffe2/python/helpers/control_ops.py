"""Branches and loops."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.control import cond, loop

__all__ = ["cond", "loop"]

__getattr__ = names_of(__name__)
