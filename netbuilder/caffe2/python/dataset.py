"""Records in blobs, with readers and writers."""

from __future__ import annotations

from typing import Any

import numpy as np

from netbuilder.caffe2.jobs.dataset import Dataset, execution_step_with_progress
from netbuilder.caffe2.missing import names_of
from netbuilder.graph import BlobReference, Net
from netbuilder.runtime.execute import default

__all__ = ["Const", "Dataset", "execution_step_with_progress"]

__getattr__ = names_of(__name__)


def Const(net: Net, value: Any, dtype: Any = None, name: str | None = None) -> BlobReference:
    """Feed a new external input of a net and return it; values that the net writes to it persist between runs.

    Args:
        net: the net.
        value: the value to feed.
        dtype: NumPy data type; None: that of ``value``.
        name: of the blob, made unique; None: derived from the net's name.
    """
    blob: BlobReference = net.AddExternalInput(net.NextName(prefix=name))
    default.workspace().feed(str(blob), np.array(value, dtype=dtype))
    return blob
