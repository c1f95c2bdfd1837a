"""The GPUs that processes of one host see."""

import os

import pytest

from netbuilder.distributed import Rendezvous
from netbuilder.distributed.transport.launchers import GPUS, Place, own_gpus
from netbuilder.proto import NetError
from netbuilder.tools.training.options import parse


def places(size):
    return [Place("", local_rank=rank, local_size=size) for rank in range(size)]


@pytest.mark.parametrize(
    "given, count, want",
    [
        (None, 1, ["0", "1", "2"]),
        (None, 2, ["0,1", "2,3", "4,5"]),
        ("7, 5,3", 1, ["7", "5", "3"]),
        ("0,1,2,3,4,5,6", 2, ["0,1", "2,3", "4,5"]),
        ("GPU-8a3f", 1, ["GPU-8a3f"] * 3),
    ],
)
def test_each_process_sees_its_own(given, count, want):
    environment = {} if given is None else {GPUS: given}
    assert [own_gpus(environment, place, count) for place in places(3)] == want


@pytest.mark.parametrize(
    "given, count, of_host", [("0,1", 1, False), ("", 1, False), ("0", 1, True), ("0,1,2", 2, True)]
)
def test_too_few_are_named(given, count, of_host):
    with pytest.raises(NetError, match=f"{GPUS}={given} in the environment names .*; name {3 * count}"):
        own_gpus({GPUS: given}, places(3)[1], count, of_host=of_host)


@pytest.mark.parametrize("devices, visible", [("0", "1"), ("0,1", "2,3")])
def test_the_trainer_takes_gpus_by_its_local_rank(devices, visible, monkeypatch):
    monkeypatch.setenv(GPUS, "before")
    monkeypatch.delenv(GPUS)  # whatever the trainer sets is gone after the test
    monkeypatch.setattr("netbuilder.tools.training.option_checks.gpu_count", lambda: 2)
    options = ["--model=mlp", f"--devices={devices}"]
    place = Rendezvous(4, 3, local_rank=1, local_size=2)
    assert parse(options, rendezvous=place).devices == tuple(map(int, devices.split(",")))
    assert os.environ[GPUS] == visible
    parse(options, rendezvous=place)
    assert os.environ[GPUS] == visible, "they are its own now"
    monkeypatch.setattr("netbuilder.tools.training.option_checks.gpu_count", lambda: 0)
    with pytest.raises(NetError, match=rf"\(0 found for process 1 of 2 of this host, {GPUS}={visible}\)"):
        parse(options, rendezvous=place)
    monkeypatch.setenv(GPUS, "0,1,2")
    with pytest.raises(NetError, match=f"--devices: {GPUS}=0,1,2 in the environment names 3 GPUs"):
        parse(["--model=mlp", "--devices=0,1"], rendezvous=place)
