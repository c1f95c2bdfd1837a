"""Pooling."""

from netbuilder.caffe2.absent import names_of
from netbuilder.model.helpers.pooling import average_pool, max_pool, max_pool_with_index

__all__ = ["average_pool", "max_pool", "max_pool_with_index"]

__getattr__ = names_of(__name__)
