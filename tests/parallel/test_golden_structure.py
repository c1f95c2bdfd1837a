"""Golden data-parallel nets, rebuilt, have the operators that Caffe2's calls made; differences are named."""

import pytest

import golden_data
from netbuilder.proto import NetDef
from parallel_models import golden_parallel
from structure import differences

pytestmark = pytest.mark.usefixtures("updates_as_in_caffe2")

SAME = [
    "dp_convnet_1",
    "dp_convnet_2",
    "dp_convnet_4",
    "dp_embed_inside_1",
    "dp_embed_outside_1",
    "dp_embed_outside_2",
    "dp_lstm_1",
    "dp_lstm_2",
    "gpu_structure_convnet_1",
    "gpu_structure_convnet_2",
    "gpu_structure_convnet_2_combine_bn",
    "gpu_structure_convnet_2_nccl",
    "gpu_structure_convnet_4",
    "gpu_structure_convnet_4_no_peer_access",
    "resnet50_1",
    "resnet50_4",
]

LATER = {
    "dp_convnet_2_memory": "memory planning",
    "gpu_structure_convnet_2_memory": "memory planning",
    "resnet50_1_memory": "memory planning",
    "resnet50_1_recycle_activations": "memory planning",
    "resnet50_1_recycle_grad": "memory planning",
    "resnet50_4_memory": "memory planning",
}

WITH_A_DIFFERENCE = ["dp_convnet_2_combine_bn", "dp_convnet_2_shared_model", "gpu_structure_embed_inside_2"]
ELSEWHERE = ["mlp_bmuf_2"]  # test_bmuf.py


def test_every_parallel_net_is_built_or_belongs_to_a_later_slice():
    prefixes = ("dp_", "gpu_", "resnet50_", "mlp_bmuf")
    assert {name for name in golden_data.nets() if name.startswith(prefixes)} == {
        *SAME,
        *LATER,
        *WITH_A_DIFFERENCE,
        *ELSEWHERE,
    }


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SAME)
def test_same_operators(name):
    golden = golden_data.net(name)
    model, _ = golden_parallel(name)
    main, init = model.net.Proto(), model.param_init_net.Proto()
    assert differences(main, golden.main) == []
    assert differences(init, golden.init) == []
    assert list(main.external_input) == list(golden.main.external_input)
    assert (main.name, main.type, main.num_workers) == (
        golden.main.name,
        golden.main.type,
        golden.main.num_workers,
    )
    assert [op.name for op in main.op] == [op.name for op in golden.main.op]  # "dpm", and none


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SAME)
def test_same_parameters_and_gradients(name):
    golden = golden_data.net(name)
    model, record = golden_parallel(name)
    assert [str(p) for p in model.params] == golden.meta["params"]
    assert [str(p) for p in model.GetComputedParams("")] == golden.meta["computed_params"]
    assert {str(p): _stored(g) for p, g in model.param_to_grad.items()} == golden.meta["param_to_grad"]
    assert len(record) == golden.meta["devices"]


def _stored(gradient):
    if isinstance(gradient, tuple):
        return {"indices": str(gradient.indices), "values": str(gradient.values)}
    return str(gradient)


def test_combined_normalization_differs_by_the_devices_of_the_exchange():
    """Caffe2 gives the operators of the exchange no device; here they sum on each replica's device."""
    golden = golden_data.net("dp_convnet_2_combine_bn")
    model, _ = golden_parallel("dp_convnet_2_combine_bn")
    assert differences(model.param_init_net.Proto(), golden.init) == []
    assert differences(model.net.Proto(), golden.main) != []
    bare = NetDef()
    bare.CopyFrom(model.net.Proto())
    for op in bare.op:
        if op.type.startswith("Channel") or op.type == "Copy" and "_combined" in op.input[0]:
            op.ClearField("device_option")
    assert differences(bare, golden.main) == []


def test_shared_model_differs_by_what_nothing_needs():
    """Caffe2 copies the running statistics twice, and declares inputs that no operator reads."""
    golden = golden_data.net("dp_convnet_2_shared_model")
    model, _ = golden_parallel("dp_convnet_2_shared_model")
    assert [str(p) for p in model.params] == golden.meta["params"]
    read = {blob for op in golden.main.op for blob in op.input}
    unread = sorted(blob for blob in golden.main.external_input if blob not in read)
    assert differences(model.net.Proto(), golden.main) == [f"- external input {blob}" for blob in unread] != []
    twice = [op for op in golden.init.op if op.type == "Copy"]
    once = {(op.input[0], op.output[0]) for op in twice}
    assert len(twice) == 2 * len(once)
    missing = differences(model.param_init_net.Proto(), golden.init)
    assert sorted(missing) == sorted(f"-Copy({source}) -> {copy}" for source, copy in once)


def test_joined_indices_differ_by_their_name_alone():
    """Caffe2 writes them over the indices that were fed."""
    golden = golden_data.net("gpu_structure_embed_inside_2")
    model, _ = golden_parallel("gpu_structure_embed_inside_2")
    assert differences(model.param_init_net.Proto(), golden.init) == []
    assert differences(model.net.Proto(), golden.main) != []
    renamed = NetDef()
    renamed.CopyFrom(model.net.Proto())
    for op in renamed.op:
        for blobs in (op.input, op.output):
            blobs[:] = [blob.removesuffix("_gathered") for blob in blobs]
    assert differences(renamed, golden.main) == []
    gradients = {str(p): _stored(g) for p, g in model.param_to_grad.items()}
    for stored in gradients.values():
        if isinstance(stored, dict):
            assert stored["indices"].endswith("indices_gathered")
            stored["indices"] = stored["indices"].removesuffix("_gathered")
    assert gradients == golden.meta["param_to_grad"]


def test_a_wrong_net_is_noticed():
    model, _ = golden_parallel("dp_convnet_2")
    assert differences(model.net.Proto(), golden_data.net("dp_convnet_4").main)
