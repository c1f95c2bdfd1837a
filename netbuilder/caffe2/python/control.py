"""Branches and loops as execution steps: all that the library's own module has."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs import control
from netbuilder.jobs.control import *  # noqa: F403

__all__: list[str] = []
__all__ += control.__all__

__getattr__ = names_of(__name__)
