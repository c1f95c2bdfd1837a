"""Golden nets of one device, built anew by our calls, have the operators that Caffe2's calls made."""

import golden_data
import pytest

from golden_builders import rebuild
from structure import differences

# The state of RMSProp: Caffe2 gives its fills an argument `values`, which no fill reads; ours is `value`.
RENAMED = {"mlp_rmsprop": ("values=0.0", "value=0.0")}

LATER = {
    "embed_adam": "the operator SparseAdam comes with the sparse slice",
    "embed_rowwise_adagrad": "the operator RowWiseSparseAdagrad comes with the sparse slice",
    "lstm": "recurrent nets come with their own slice",
}

SINGLE_DEVICE = [
    name
    for name in golden_data.nets()
    if not name.startswith(("dp_", "gpu_", "resnet50_"))
    and not name.endswith(("_share_grad", "_share_activations"))  # the same calls, then a memory pass
    and name not in ("lr_policies", "mlp_bmuf_2")
]


@pytest.mark.parametrize("name", [name for name in SINGLE_DEVICE if name not in LATER])
def test_rebuilt_net_has_the_same_operators(name):
    golden = golden_data.net(name)
    model = rebuild(golden)
    assert differences(model.net.Proto(), golden.main) == []
    init = golden.init
    if name in RENAMED:
        old, new = RENAMED[name]
        made = [line.replace(old, new) for line in differences(model.param_init_net.Proto(), init)]
        assert sorted(line[1:] for line in made if line[0] == "-") == sorted(line[1:] for line in made if line[0] == "+")
    else:
        assert differences(model.param_init_net.Proto(), init) == []
    assert list(model.net.Proto().external_input) == list(golden.main.external_input)
    assert (model.net.Name(), model.param_init_net.Name()) == (golden.main.name, golden.init.name)


@pytest.mark.parametrize("name", [name for name in SINGLE_DEVICE if name not in LATER])
def test_rebuilt_model_knows_its_parameters_and_gradients(name):
    golden = golden_data.net(name)
    model = rebuild(golden)
    assert [str(p) for p in model.params] == golden.meta["params"]
    assert [str(p) for p in model.GetComputedParams("")] == golden.meta["computed_params"]
    assert {str(p): _as_stored(g) for p, g in model.param_to_grad.items()} == golden.meta["param_to_grad"]


def _as_stored(gradient):
    if isinstance(gradient, tuple):
        return {"indices": str(gradient.indices), "values": str(gradient.values)}
    return str(gradient)


@pytest.mark.parametrize("name", sorted(LATER))
def test_nets_of_later_slices_are_refused(name):
    with pytest.raises((AttributeError, NameError)):
        rebuild(golden_data.net(name))


def test_a_wrong_net_is_told_apart():
    golden = golden_data.net("mlp_sgd")
    other = golden_data.net("mlp_momentum")
    assert any("MomentumSGDUpdate" in line for line in differences(other.main, golden.main))
