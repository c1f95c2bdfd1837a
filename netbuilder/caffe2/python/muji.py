"""All-reduce over GPUs, added to a net; Parallelize does this automatically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import BlobReference, Net
from netbuilder.proto import PROTO_CPU, PROTO_CUDA, DeviceOption, NetError
from netbuilder.proto.arguments import make_device_option

__all__ = [
    "Allreduce",
    "Allreduce2",
    "Allreduce4",
    "Allreduce4Group2",
    "Allreduce8",
    "AllreduceFallback",
    "OnCPU",
    "OnGPU",
]

__getattr__ = names_of(__name__)

Blobs = Sequence[Any]


def OnGPU(gpu_id: int) -> DeviceOption:
    """Return the device of a GPU."""
    return make_device_option(PROTO_CUDA, gpu_id)


def OnCPU() -> DeviceOption:
    """Return the device of the CPU."""
    return make_device_option(PROTO_CPU, 0)


def Allreduce(
    net: Net, blobs: Blobs, reduced_affix: str = "_reduced", gpu_indices: Sequence[int] | None = None
) -> list[BlobReference]:
    """Add operators that sum blobs of several GPUs and copy the sum to each GPU.

    2, 4 or 8 GPUs are summed along a tree of pairs, other numbers one by one on the first GPU. If GPUs cannot access
    each other's memory, the driver copies through the host.

    Args:
        net: the operators are added to it.
        blobs: one on each GPU.
        reduced_affix: suffix of the results' names.
        gpu_indices: the GPUs; None: 0, 1, 2, ...

    Returns:
        The sums, one on each GPU.

    Raises:
        NetError: there is not one blob per GPU, or a GPU occurs twice.
    """
    gpus = list(range(len(blobs))) if gpu_indices is None else list(gpu_indices)
    _check("Allreduce", blobs, gpus, len(blobs))
    tree = len(blobs) in (2, 4, 8)
    return (_by_pairs if tree else _one_by_one)(net, blobs, reduced_affix, gpus)


def Allreduce2(net: Net, blobs: Blobs, reduced_affix: str, gpu_indices: Sequence[int]) -> list[BlobReference]:
    """Do the same for two GPUs."""
    _check("Allreduce2", blobs, gpu_indices, 2)
    return _by_pairs(net, blobs, reduced_affix, gpu_indices)


def Allreduce4(net: Net, blobs: Blobs, reduced_affix: str, gpu_indices: Sequence[int]) -> list[BlobReference]:
    """Do the same for four GPUs."""
    _check("Allreduce4", blobs, gpu_indices, 4)
    return _by_pairs(net, blobs, reduced_affix, gpu_indices)


def Allreduce4Group2(net: Net, blobs: Blobs, reduced_affix: str, gpu_indices: Sequence[int]) -> list[BlobReference]:
    """Do the same for four GPUs of which the first two, and the last two, can access each other."""
    _check("Allreduce4Group2", blobs, gpu_indices, 4)
    return _by_pairs(net, blobs, reduced_affix, gpu_indices)


def Allreduce8(net: Net, blobs: Blobs, reduced_affix: str, gpu_indices: Sequence[int]) -> list[BlobReference]:
    """Do the same for eight GPUs."""
    _check("Allreduce8", blobs, gpu_indices, 8)
    return _by_pairs(net, blobs, reduced_affix, gpu_indices)


def AllreduceFallback(net: Net, blobs: Blobs, reduced_affix: str, gpu_indices: Sequence[int]) -> list[BlobReference]:
    """Do the same for any number of GPUs, summed one by one on the first."""
    _check("AllreduceFallback", blobs, gpu_indices, len(blobs))
    return _one_by_one(net, blobs, reduced_affix, gpu_indices)


def _check(function: str, blobs: Blobs, gpus: Sequence[int], number: int) -> None:
    if not blobs or len(blobs) != number or len(gpus) != number or len(set(gpus)) != number:
        raise NetError(
            f"muji.{function}: there must be one blob for each of {number or 'several'} different GPUs, got "
            f"{len(blobs)} blobs for the GPUs {list(gpus)}"
        )


def _copy(net: Net, blob: Any, name: str, gpu: int) -> BlobReference:
    copied: BlobReference = net.Copy(blob, name, device_option=OnGPU(gpu))
    return copied


def _by_pairs(net: Net, blobs: Blobs, affix: str, gpus: Sequence[int]) -> list[BlobReference]:
    """Sum pairs of neighbors up to the first GPU, then copy the sum down the same tree."""
    sums = list(blobs)
    step = 1
    while step < len(sums):
        for first in range(0, len(sums), 2 * step):
            near = _copy(net, sums[first + step], f"{blobs[first]}_from_{first + step}", gpus[first])
            name = str(blobs[first]) + affix
            sums[first] = net.Add([sums[first], near], name, device_option=OnGPU(gpus[first]))
        step *= 2
    while step > 1:
        step //= 2
        for first in range(0, len(sums), 2 * step):
            other = first + step
            sums[other] = _copy(net, sums[first], str(blobs[other]) + affix, gpus[other])
    return sums


def _one_by_one(net: Net, blobs: Blobs, affix: str, gpus: Sequence[int]) -> list[BlobReference]:
    total = _copy(net, blobs[0], str(blobs[0]) + affix, gpus[0])
    for index, blob in enumerate(blobs[1:], 1):
        near = _copy(net, blob, f"{blobs[0]}_from_{index}", gpus[0])
        total = net.Add([total, near], total, device_option=OnGPU(gpus[0]))
    return [total, *(_copy(net, total, str(blob) + affix, gpu) for blob, gpu in zip(blobs[1:], gpus[1:]))]
