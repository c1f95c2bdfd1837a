"""Sessions: what runs tasks."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.session import CompiledRunnable, LocalSession, Session

__all__ = ["CompiledRunnable", "LocalSession", "Session"]

__getattr__ = names_of(__name__)
