"""Pooling."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.pooling import average_pool, max_pool

__all__ = ["average_pool", "max_pool"]

__getattr__ = names_of(__name__)
