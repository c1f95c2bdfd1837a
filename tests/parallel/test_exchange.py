"""The exchange of gradients: one sum for each, the last layer's first, named; and the parameters checked around it."""

import logging

import pytest

from netbuilder import parallel
from netbuilder.graph import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import NetError
from parallel_models import OPTIMIZERS, no_input, parallelize
from toy_models import mlp

GRADIENTS = ["fc2_b_grad", "fc2_w_grad", "fc1_b_grad", "fc1_w_grad"]  # the parameters made last come first


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_gradient_is_summed_once_in_reverse_order_of_the_parameters(count):
    model, record = parallelize(range(count))
    exchanged = [op for op in model.net.Proto().op if "allreduce of" in op.debug_info]
    sums = [op for op in exchanged if op.type == "Sum"]
    assert [list(op.input) for op in sums] == [list(record.devices.copies(name)) for name in GRADIENTS]
    assert [op.output[0] for op in sums] == ["cpu_0/" + name for name in GRADIENTS]
    copies = [(op.input[0], op.output[0]) for op in exchanged if op.type == "Copy"]
    assert copies == [(f"cpu_0/{name}", f"cpu_{k}/{name}") for name in GRADIENTS for k in range(1, count)]
    written = [blob for op in model.net.Proto().op if op.type == "Sum" for blob in op.output]
    assert sorted(written) == sorted("cpu_0/" + name for name in GRADIENTS), "summed elsewhere as well"


def test_each_operator_of_the_exchange_names_what_it_serves_and_the_users_line():
    model, _ = parallelize([0, 1])
    notes = {op.output[0]: op.debug_info for op in model.net.Proto().op if op.type in ("Sum", "Copy")}
    for name in GRADIENTS:
        for scope in ("cpu_0/", "cpu_1/"):
            assert notes[scope + name].endswith(f"in parallelize (allreduce of {name!r} over CPU 0, 1)")
    notes = {op.output[0]: op.debug_info for op in model.param_init_net.Proto().op if op.type == "Copy"}
    assert notes["cpu_1/fc1_w"].endswith("(broadcast of 'fc1_w' over CPU 0, 1)")


def test_nccl_on_the_cpu_is_warned_of_and_that_on_gpus_is_logged(caplog):
    with pytest.warns(
        UserWarning, match="NCCL exchanges values between GPUs; gradients of replicas on the CPU are"
    ) as found:
        model, _ = parallelize([0, 1], use_nccl=True)
    assert found[0].filename.endswith("parallel_models.py"), "the line of the caller"
    assert not any("NCCL" in op.type for op in model.net.Proto().op)
    parallelize([0], use_nccl=True)  # one replica exchanges nothing: no warning, which would be an error here

    model = ModelHelper("net")
    options = {"optimizer_builder_fun": OPTIMIZERS["sgd"], "devices": [0, 1], "use_nccl": True}
    with caplog.at_level(logging.INFO, "netbuilder"), pytest.warns(UserWarning) as found:
        parallel.Parallelize_GPU(model, no_input, mlp, **options)
    assert [str(warning.message) for warning in found if "NCCL" in str(warning.message)] == []
    assert "gradients exchanged by NCCL" in caplog.text
    assert sum(op.type == "NCCLAllreduce" for op in model.net.Proto().op) == len(GRADIENTS)


def test_parameters_are_checked_again_after_the_gradients():
    def transform(model, *others):
        model.AddParameter(BlobReference("cpu_0/fc1_w"))

    model = ModelHelper("twice")
    with pytest.raises(NetError, match=r"model 'twice': duplicate parameters \['cpu_0/fc1_w'\]"):
        parallel.Parallelize_CPU(
            model,
            no_input,
            mlp,
            optimizer_builder_fun=OPTIMIZERS["sgd"],
            net_transformer_fun=transform,
            devices=[0, 1],
        )
    assert model.params == []


def test_the_log_names_parameters_without_a_gradient(caplog):
    def forward(model, loss_scale):
        brew.fc(model, "data", "unused", 6, 3)
        return mlp(model, loss_scale)

    with caplog.at_level(logging.INFO, "netbuilder"):
        parallelize([0, 3], forward)
    assert "parameters without gradient, neither summed nor updated: unused_w, unused_b" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "netbuilder"):
        parallelize([0, 3])
    assert "no gradient" not in caplog.text
