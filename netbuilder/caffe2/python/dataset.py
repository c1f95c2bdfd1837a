"""Records in blobs, with readers and writers."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.jobs.dataset import Const, Dataset, execution_step_with_progress

__all__ = ["Const", "Dataset", "execution_step_with_progress"]

__getattr__ = names_of(__name__)
