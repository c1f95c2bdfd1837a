"""Training of some parameters: a GAN's two nets, by ``Parallelize`` and by optimizers alone."""

import inspect

import numpy as np
import pytest

from netbuilder import optimizers
from netbuilder.graph import NameScope, ScopedBlobReference
from netbuilder.graph.net_names import reset_names
from netbuilder.model import ModelHelper
from netbuilder.optimizers import reset_optimizer_instance_count
from netbuilder.optimizers.named import OPTIMIZERS
from netbuilder.parallel import Parallelize_CPU
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.zoo import create_dcgan_discriminator, create_dcgan_generator
from netbuilder.zoo.dcgan import DCGANSize
from zoo_cases import adversaries

SIZE = DCGANSize(1, 4, 6)


def deceive(model):
    """The generator's loss: generated images are taken for real ones."""
    z = ScopedBlobReference("z")
    with NameScope("G"):
        made = create_dcgan_generator(model, z, 3, SIZE)
    with NameScope("D"):
        logits = create_dcgan_discriminator(model, made, 3, SIZE)
    losses = model.net.SigmoidCrossEntropyWithLogits([logits, "ones"], "losses")
    return model.net.AveragedLoss(losses, "loss")


def discern(model):
    return adversaries(model, SIZE, is_test=False)


def parallel_steps(devices, **options):
    """Two models, each of which trains its net, in turn."""
    reset_names()
    reset_optimizer_instance_count()
    workspace, rng = Workspace(threads=1, seed=1), np.random.default_rng(0)
    nets, init_nets, names = [], [], {}
    for which, loss_of in (("D", discern), ("G", deceive)):
        model = ModelHelper(which)

        def forward(model, scale, loss_of=loss_of):
            return [model.Scale(loss_of(model), scale=scale)]

        record = Parallelize_CPU(
            model, lambda model: None, forward, optimizer_builder_fun=lambda model: optimizers.build_sgd(model, 0.1),
            devices=list(range(devices)), params=which, combine_spatial_bn=devices > 1, **options,
        )  # fmt: skip
        assert {str(group.parameter).split("/")[0] for group in record.gradients} == {which}
        names.update(dict.fromkeys(record.parameters))
        nets.append(model.net)
        init_nets.append(model.param_init_net)
    for blob, shape in (("z", (4, 6, 1, 1)), ("data", (4, 3, 8, 8)), ("ones", (4, 1)), ("zeros", (4, 1))):
        whole = {"ones": np.ones, "zeros": np.zeros}.get(blob, rng.standard_normal)(shape).astype(np.float32)
        for number, part in enumerate(np.split(whole, devices)):
            workspace.feed(f"cpu_{number}/{blob}", part)
    for net in reversed(init_nets):  # both fill all parameters; the discriminator's model comes last
        workspace.run_net_once(net)
    found = []
    for net in nets:
        before = {name: workspace.fetch(f"cpu_0/{name}") for name in names}
        workspace.run_net_once(net)
        after = {name: workspace.fetch(f"cpu_0/{name}") for name in names}
        found.append((after, {name.split("/")[0] for name in names if (after[name] != before[name]).any()}))
    return found


def test_each_model_trains_its_net_on_one_device_and_on_two():
    one, two = parallel_steps(1), parallel_steps(2)
    assert [changed for _, changed in one] == [changed for _, changed in two] == [{"D"}, {"G"}]
    for (want, _), (got, _) in zip(one, two):
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def trained_by(build, params):
    model = ModelHelper("gan")
    model.AddGradientOperators([discern(model)])
    build(model, params)
    updated = {blob for op in model.net.Proto().op for blob in op.output} & set(map(str, model.params))
    return updated, {str(param) for param in model.params}


@pytest.mark.parametrize("params", ["G", "G/", ["G"], ["G/conv1_w", "G/conv2_w"]], ids=str)
def test_optimizers_update_what_they_are_given(params):
    updated, every = trained_by(lambda model, params: optimizers.build_adam(model, 0.1, params=params), params)
    of_generator = {blob for blob in every if blob.startswith("G/")}
    assert updated == (set(params) if len(params) > 1 and isinstance(params, list) else of_generator)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_builders_take_params(name):
    build = getattr(optimizers, f"build_{name}", None)
    assert build is None or "params" in inspect.signature(build).parameters


def test_refusals():
    with pytest.raises(NetError, match="params must be parameters of the model, .* got 'E'"):
        trained_by(lambda model, params: optimizers.build_sgd(model, 0.1, params=params), "E")
    with pytest.raises(NetError, match="got 'G/conv1_v'; did you mean 'G/conv1_w'"):
        trained_by(lambda model, params: optimizers.build_sgd(model, 0.1, params=params), ["D", "G/conv1_v"])
    with pytest.raises(NetError, match="got 'F'"):
        Parallelize_CPU(
            ModelHelper("gan"), lambda model: None, lambda model, scale: [model.Scale(deceive(model), scale=scale)],
            optimizer_builder_fun=lambda model: optimizers.build_sgd(model, 0.1), devices=[0, 1], params="F",
        )  # fmt: skip
    with pytest.raises(TypeError, match="params must be a list of parameters, or a name scope, got 3"):
        Parallelize_CPU(ModelHelper("gan"), lambda model: None, lambda model, scale: [], params=3)
