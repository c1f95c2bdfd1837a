"""Golden nets that were stored without numbers run here, and agree with what they were made from or with their formula.

Those for GPUs are in tests/parallel/test_gpu.py, and borrow the numbers of other nets.
"""

import numpy as np
import pytest

import golden_data
from netbuilder.proto import NetDef
from netbuilder.runtime import Workspace

ON_GPUS = {"gpu_structure_convnet_2_combine_bn", "gpu_structure_convnet_2_nccl"}  # tests/parallel/test_gpu.py
TWINS = {  # nets whose memory was planned, and those they were made from
    "resnet50_1_memory": ("resnet50_1", "net"),
    "resnet50_1_recycle_activations": ("resnet50_1_recycle_activations", "net_before"),
    "resnet50_1_recycle_grad": ("resnet50_1_recycle_grad", "net_before"),
    "resnet50_4_memory": ("resnet50_4", "net"),
}
SMALL = 32  # width of images, instead of 224


def on_small_images(net):
    """Return a ResNet-50 with few channels, for small images: its last pooling covers the whole plane."""
    changed = NetDef()
    changed.CopyFrom(net)
    for op in changed.op:
        for arg in op.arg:
            if op.type.startswith("AveragePool") and arg.name == "kernel":
                arg.i = 1
            if arg.name == "shape":  # an eighth of the channels
                arg.ints[:] = [max(n // 8, 1) if n >= 64 else n for n in arg.ints]
    return changed


def states_after_two_steps(golden, which):
    """Return all that training changes, after two steps on noise."""
    rng = np.random.default_rng(3)
    workspace = Workspace(threads=1)
    main = on_small_images(golden.protos[which])
    devices = sorted({op.device_option.device_id for op in main.op})
    for device in devices:
        workspace.feed(f"cpu_{device}/data", rng.normal(size=(2, 3, SMALL, SMALL)).astype(np.float32))
        workspace.feed(f"cpu_{device}/label", rng.integers(0, 125, 2).astype(np.int32))
    workspace.run_net_once(on_small_images(golden.init))
    workspace.create_net(main)
    workspace.run_net(main.name, 2)
    made = {name for op in golden.init.op for name in op.output if op.type != "CreateMutex"}
    losses = [f"cpu_{device}/loss" for device in devices]
    return {name: workspace.fetch(name) for name in sorted(made) + losses}


def test_all_nets_without_numbers_are_run():
    without = {name for name in golden_data.nets() if not golden_data.net(name).runnable}
    elsewhere = {"lr_policies", "memonger_inference"}  # test_trajectories.py: their numbers are stored in another form
    assert without == {*ON_GPUS, *TWINS, *elsewhere, "mlp_bmuf_2", "resnet50_1", "resnet50_4"}


# As others, on more devices or with less shared.
LIKE_OTHERS = ("resnet50_4_memory", "resnet50_1_recycle_grad")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_OTHERS)) for name in TWINS]
)
def test_planned_memory_changes_no_bit(name):
    golden, (twin, which) = golden_data.net(name), TWINS[name]
    want = states_after_two_steps(golden_data.net(twin), which)
    got = states_after_two_steps(golden, "net")
    assert got.keys() == want.keys() and len(got) > 300
    assert [blob for blob in want if not np.array_equal(got[blob], want[blob], equal_nan=True)] == []
    assert all(np.isfinite(value).all() for value in want.values())


def test_block_wise_updates():
    """Two replicas learn by themselves; then their mean moves the common parameters, with momentum."""
    golden = golden_data.net("mlp_bmuf_2")
    rng = np.random.default_rng(4)
    workspace = Workspace(threads=1)
    workspace.run_net_once(golden.init)
    params = ["fc0_w", "fc0_b", "fc1_w", "fc1_b"]
    common = {name: workspace.fetch(f"cpu_0/{name}").astype(np.float64) for name in params}
    speed = dict.fromkeys(params, 0.0)
    workspace.run_net_once(golden.protos["global_model_init_net"])
    updates = golden.protos["global_model_param_updates_net"]
    workspace.create_net(golden.main)
    workspace.create_net(updates)
    for name in params:
        workspace.feed(f"cpu_1/{name}", workspace.fetch(f"cpu_0/{name}"))
    for _ in range(2):
        for device in (0, 1):
            workspace.feed(f"cpu_{device}/data", rng.normal(size=(3, 7)).astype(np.float32))
            workspace.feed(f"cpu_{device}/label", rng.integers(0, 4, 3).astype(np.int32))
        workspace.run_net(golden.main.name, 2)
        both = {name: [workspace.fetch(f"cpu_{k}/{name}").astype(np.float64) for k in (0, 1)] for name in params}
        assert all(np.abs(a - b).max() > 1e-3 for a, b in both.values())
        workspace.run_net(updates.name)
        for name, parts in both.items():
            speed[name] = 0.5 * speed[name] + (sum(parts) / 2 - common[name])
            common[name] = common[name] + speed[name]
            for device in (0, 1):
                np.testing.assert_allclose(workspace.fetch(f"cpu_{device}/{name}"), common[name], rtol=1e-5, atol=1e-6)
