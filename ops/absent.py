"""Operators of Caffe2 that are not in this version, and what there is instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["ABSENT", "GROUPS", "instead_of"]

GROUPS: tuple[tuple[str, str], ...] = (
    (
        "feed arrays by workspace.feed or a Prefetch, or read a database by TensorProtosDBInput",
        "VideoInput",
    ),
    (
        "several hosts are not in this version; on one, Parallelize makes the exchange between devices",
        "Allgather Allreduce Barrier Broadcast CloneCommonWorld CreateCommonWorld "
        "DestroyCommonWorld FileStoreHandlerCreate NCCLReduceScatter ReceiveTensor Reduce ReduceScatter "
        "SendTensor StoreAdd StoreGet StoreSet StoreWait",
    ),
    (
        "nvidia-smi, or CuPy's memory pool, tells how much memory of a GPU is taken",
        "GetGPUMemoryUsage",
    ),
    (
        "",
        "SparseLengthsMax",
    ),
)
"""(what there is instead, "" where nothing comes near; operators with spaces between them)."""

ABSENT: dict[str, str] = {name: instead for instead, names in GROUPS for name in names.split()}
"""For each such operator, what there is instead; gradient operators and quantised ones are not listed."""

_QUANTISED = re.compile(
    r"Int8[A-Z]|\w*(Rowwise8Bit|[248]Bit(Fake)?Rowwise|[248]BitsRowwise|RandRowwiseQuantized|RowwiseQuantized8Bits)"
)


def instead_of(op_type: str, known: Iterable[str]) -> str:
    """Return what to say, behind a refusal, of an operator that is not registered: "; " and a hint, or "".

    Args:
        op_type: the name that was asked for.
        known: names of which the nearest are listed, where Caffe2 has no such operator either.

    >>> instead_of("SparseLengthsMax", ["Conv"])
    "; Caffe2's operator SparseLengthsMax is not in this version"
    >>> instead_of("Convv", ["Conv"])
    '; did you mean Conv?'
    """
    name = op_type.removesuffix("Gradient")
    quantised = _QUANTISED.match(op_type)
    if name in ABSENT or quantised:
        instead = "quantised nets are not served" if quantised else ABSENT[name]
        return f"; Caffe2's operator {op_type} is not in this version" + (f": {instead}" if instead else "")
    near = difflib.get_close_matches(op_type, known, n=3, cutoff=0.7)
    return f"; did you mean {', '.join(near)}?" if near else ""
