"""Builders of nets and steps; ``ops``."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.net_builder import NetBuilder
from netbuilder.jobs.operations import Operations, ops

__all__ = ["NetBuilder", "Operations", "ops"]

__getattr__ = names_of(__name__)
