"""Caffe2's private attributes of a parallel model, which scripts read; computed from the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from netbuilder.distributed.common_worlds import barrier_net
from netbuilder.graph.blob import BlobReference, GradientSlice
from netbuilder.graph.blob_devices import blob_devices
from netbuilder.graph.devices import Devices
from netbuilder.graph.net import Net
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.proto import DeviceOption

__all__ = ["set_caffe2_attributes", "set_device_attributes"]


def set_device_attributes(model: ModelHelper, devices: Devices) -> None:
    """Set the attributes that builders in Caffe2's scripts read while they are called."""
    vars(model).update(_devices=list(devices.ids), _device_type=devices.device_type, _device_prefix=devices.word)


def set_caffe2_attributes(model: ModelHelper, record: Replicas, optimizer: Any, rendezvous: Any = None) -> None:
    """Set the private attributes that Caffe2 sets on a model, for scripts that read them.

    The library itself uses the record in the net's arguments instead.
    """
    devices = record.devices
    groups: dict[str, dict[int, Any]] = {}
    for name in (*record.parameters, *record.computed):
        groups[name] = _by_device(record, record.blobs(name))
    exchanged = record.gradients if record.block is None else ()
    for group in exchanged:
        if group.is_sparse:
            pairs = zip(devices.copies(group.indices), devices.copies(group.values))
            groups[str(group)] = {
                number: GradientSlice(*map(BlobReference, pair)) for number, pair in zip(devices.ids, pairs)
            }
        else:
            groups[str(group)] = _by_device(record, devices.copies(group.values))
    set_device_attributes(model, devices)
    vars(model).update(
        _device_grouped_blobs=groups,
        _param_names=list(record.parameters),
        _computed_param_names=list(record.computed),
        _grad_names=[str(group) for group in record.gradients],
        _losses_by_gpu={number: list(map(BlobReference, losses)) for number, losses in zip(devices.ids, record.losses)},
        _blob_to_device=_BlobDevices(model),
        _data_parallel_model_init_nets=[model.param_init_net],
        _data_parallel_model_nets=[model.net],
        _rendezvous=rendezvous,
        _shared_model=record.shared,
        _optimizer=optimizer,
    )
    _set_block_attributes(model, record)
    if record.world.common:
        barrier = Net(barrier_net(model.net.Name(), record.world))  # the init net makes its common world
        vars(model).update(_barrier_net=barrier)
        vars(model)["_data_parallel_model_nets"].insert(0, barrier)


def _set_block_attributes(model: ModelHelper, record: Replicas) -> None:
    if (nets := model.block_nets) is not None and record.block is not None:
        vars(model).update(
            _global_model_init_net=nets.init,
            _global_model_param_updates_net=nets.update,
            _warmup_broadcast=nets.warm_up,
            _warmup_iterations=record.block.warmup_iterations,
            _data_parallel_model_init_nets=[model.param_init_net, nets.init],
            _data_parallel_model_nets=[model.net, (nets.update, 1)],
        )


class _BlobDevices(Mapping[str, DeviceOption]):
    """The device of each blob of a model's nets, computed when it is first read."""

    def __init__(self, model: ModelHelper) -> None:
        self._model = model

    @cached_property
    def _found(self) -> dict[str, DeviceOption]:
        return blob_devices([self._model.param_init_net.Proto(), self._model.net.Proto()])

    def __getitem__(self, blob: str) -> DeviceOption:
        return self._found[blob]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _by_device(record: Replicas, blobs: tuple[str, ...]) -> dict[int, BlobReference]:
    return dict(zip(record.devices.ids, map(BlobReference, blobs)))
