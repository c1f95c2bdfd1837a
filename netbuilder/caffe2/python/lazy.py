"""What waits to be loaded until operators are needed."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.caffe2.lazy_imports import RegisterLazyImport, TriggerLazyImport

__all__ = ["RegisterLazyImport", "TriggerLazyImport"]

__getattr__ = names_of(__name__)
