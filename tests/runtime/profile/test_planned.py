"""Steps planned for a described GPU: bytes and operations against sums by hand, and the plan of an emulated GPU."""

import re

import numpy as np
import pytest

import emulated_gpu
from netbuilder.engines.described_gpu import DescribedGPU, read_gpu
from netbuilder.graph import DeviceScope, Net
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.proto import PROTO_CUDA, NetError, ShapeError
from netbuilder.proto.arguments import make_device_option
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.optimizations import OPTIMIZATIONS
from netbuilder.runtime.profile.planned import planned_report, planned_step
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.text_table import report_text
from netbuilder.tools import profile as tool
from netbuilder.tools.profiling.zoo import ZooOptions, load_zoo, zoo_model

ON_GPU = make_device_option(PROTO_CUDA, 0)
H100 = read_gpu("h100")
FLOAT = np.dtype(np.float32)


def of_zoo(name, gpu=H100, dtype=None, exhaustive_search=False, **options):
    with DeviceScope(ON_GPU):
        model, inputs = zoo_model(name, ZooOptions(**options))
    return planned_step(
        model.net, model.param_init_net, inputs, gpu, exhaustive_search=exhaustive_search, dtype=dtype,
        observable="outputs",
    )  # fmt: skip


def one_layer(images, elements, build):
    """The step of one layer on images with channels last: its calls without copies into other orders."""
    with DeviceScope(ON_GPU):
        model = ModelHelper("layer")
        build(model)
    inputs = {"x": TensorSpec(images, FLOAT)}
    found = planned_step(model.net, model.param_init_net, inputs, H100, dtype=elements, observable="outputs")
    return {call.kind: call for call in found.calls}


@pytest.mark.parametrize(("elements", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_a_convolution_by_hand(elements, size):
    calls = one_layer((8, 16, 20, 20), elements, lambda m: brew.conv(m, "x", "y", 16, 32, 3, pad=1, no_bias=1))
    call = calls["Conv"]
    assert call.nbytes == size * (8 * 16 * 400 + 32 * 16 * 9 + 8 * 32 * 400)
    assert call.flops == 2 * 8 * 32 * 400 * 16 * 9
    assert call.bfloat16 == (elements != "float32")


def test_a_normalization_reads_its_input_twice():
    def build(model):
        brew.relu(model, brew.spatial_bn(model, brew.conv(model, "x", "c", 16, 16, 1, no_bias=1), "b", 16), "y")

    call = one_layer((8, 16, 20, 20), "bfloat16", build)["SpatialBN+Relu"]
    image, channel = 2 * 8 * 16 * 400, 4 * 16
    assert call.nbytes - 3 * image in range(4 * channel, 12 * channel + 1)


def test_the_gradient_of_a_normalization_with_relu_has_two_passes():
    found = of_zoo("resnet50", batch=4, dtype="bfloat16")
    call = next(call for call in found.calls if call.output == "conv1_grad")
    assert call.kind == "ReluGradient+SpatialBNGradient"
    image = 2 * 4 * 64 * 112 * 112
    # X, dY and Y twice, dX, and the gradient before the Relu in scratch memory.
    assert 8 * image < call.nbytes < 8 * image + 4096


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_images_as_bytes_are_read_once_and_written_as_the_convolution_reads_them(dtype, size):
    """In place of a copy of float32 images into channels last; the rest of the step is the same."""
    both = [of_zoo("resnet8-cifar", batch=4, dtype=dtype, pixels=pixels) for pixels in (False, True)]
    (call,) = [call for call in both[1].calls if call.kind == "NormalizeImages"]
    images = 4 * 3 * 32 * 32
    assert call.nbytes == (1 + size) * images
    assert both[0].nbytes - both[1].nbytes == (4 + size) * images - call.nbytes


def test_a_search_takes_the_kernels_with_fewer_bytes():
    found = of_zoo("resnet50", batch=4, dtype="bfloat16", exhaustive_search=True)
    call = next(call for call in found.calls if call.output == "conv1_grad")
    image = 2 * 4 * 64 * 112 * 112
    assert 5 * image < call.nbytes < 5 * image + 4096  # X and dY twice, and dX
    usual, searched = (
        {kind.kind: kind.nbytes for kind in each.kinds()}
        for each in (of_zoo("resnet50", batch=4, dtype="bfloat16"), found)
    )
    both = usual.keys() & searched.keys()
    fewer = {kind for kind in both if searched[kind] < usual[kind]}
    gradient = "ReluGradient+SpatialBNGradient"
    assert gradient in fewer  # of those that follow no convolution
    ends = ("SpatialBN", "SpatialBN+Relu", "SpatialBN+Sum+Relu")
    assert usual.keys() - both == {"Conv", *ends, f"Sum+{gradient}", "rest of SpatialBN x53"}
    joined = {*(f"Conv+{end}" for end in ends), f"ConvGradient+{gradient}", f"ConvGradient+Sum+{gradient}"}
    assert searched.keys() - both == {*joined, "rest of Conv x53"}
    (first,) = (call for call in found.calls if call.output == "conv1")
    read = 2 * (4 * 3 * 224 * 224 + 64 * 3 * 49)
    assert 3 * image + read < first.nbytes < 3 * image + read + 4096  # its result is written and read, Y written


@pytest.mark.filterwarnings("ignore:.*gradients are stored as float16 without a scale")
@pytest.mark.parametrize(("elements", "passes"), [("bfloat16", 2), ("float16", 3)])
def test_results_of_relus_that_are_not_stored_take_fewer_bytes(elements, passes):
    """The Conv after them reads X in place of Y; the gradient to data needs no Y, and in bfloat16 writes it."""
    with DeviceScope(ON_GPU):
        model, inputs = zoo_model("resnet8-cifar", ZooOptions(batch=16))
    unstored, stored = (
        planned_step(
            model.net, model.param_init_net, inputs, H100, dtype=elements, observable="outputs",
            exhaustive_search=True, without=without,
        )
        for without in ((), (OPTIMIZATIONS["unstored_activations"],))
    )  # fmt: skip
    images = 2 * 16 * sum(channels * extent**2 for channels, extent in ((16, 32), (32, 16), (64, 8)))
    assert 0.99 * passes * images < stored.nbytes - unstored.nbytes < (passes + 1) * images
    assert len(stored.calls) == len(unstored.calls)


def test_the_sums_are_those_of_the_calls():
    found = of_zoo("resnet8-cifar", batch=16, dtype="bfloat16")
    kinds = {kind.kind: kind for kind in found.kinds()}
    convolutions = [call for call in found.calls if call.kind == "Conv"]
    assert kinds["Conv"].calls == len(convolutions) == 9
    assert kinds["Conv"].nbytes == sum(call.nbytes for call in convolutions)
    assert found.nbytes == sum(call.nbytes for call in found.calls if call.device == "GPU 0")
    rates = H100.rates["bfloat16"], H100.bandwidth
    least = [max(call.flops / rates[0], call.nbytes / rates[1]) for call in convolutions]
    assert kinds["Conv"].seconds == pytest.approx(sum(least))
    assert found.end is None


def test_a_faster_memory_shortens_what_bytes_bound():
    slow, fast = (DescribedGPU("one", 90, bandwidth, H100.rates) for bandwidth in (1e12, 2e12))
    times = [of_zoo("resnet8-cifar", gpu, batch=16).seconds for gpu in (slow, fast)]
    assert 1.8 < times[0] / times[1] <= 2


def test_what_is_not_fused_takes_more_bytes():
    with DeviceScope(ON_GPU):
        model, inputs = zoo_model("resnet8-cifar", ZooOptions(batch=16))
    fused, single = (
        planned_step(model.net, model.param_init_net, inputs, H100, dtype="bfloat16", without=without)
        for without in ((), ("fusion",))
    )
    assert fused.nbytes < 0.9 * single.nbytes and len(fused.calls) < len(single.calls)


def test_refusals():
    net, init = Net("wrong"), Net("init")
    with DeviceScope(ON_GPU):
        net.MatMul(["x", "w"], "y")
    specs = {"x": TensorSpec((2, 3), FLOAT), "w": TensorSpec((4, 5), FLOAT)}
    with pytest.raises(ShapeError, match="MatMul"):
        planned_step(net, init, specs, H100)
    specs["w"] = TensorSpec((3, 5), FLOAT)
    net = Net("on_the_cpu")
    net.MatMul(["x", "w"], "y")
    with pytest.raises(NetError, match=r"a described GPU runs nets on GPU 0 alone; it is on \(\)"):
        planned_step(net, init, specs, H100)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--gpu", "h10"], r"'h10' is neither .*; did you mean 'h100'"),
        (["--gpu", "h100", "--numpy"], "leave out --numpy, --cpu and --devices"),
        (["--gpu", "h100", "--trace", "t.json"], "--trace is for nets that run"),
    ],
)
def test_the_command_refuses(arguments, match, capsys):
    try:
        status = tool.main(["lenet", *arguments])
    except SystemExit as stopped:
        status = stopped.code
    assert status and re.search(match, capsys.readouterr().err)


def test_the_command_prints_tables(tmp_path, capsys):
    assert tool.main(["lenet", "--gpu", "a100", "--batch", "8", "--top", "3", "--json", str(tmp_path / "f.json")]) == 0
    said = capsys.readouterr().out
    assert "as planned for NVIDIA A100 80GB SXM, float32: a model, nothing has run" in said
    assert "by call, the 3 longest of" in said and (tmp_path / "f.json").exists()


@pytest.mark.emulated
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_calls_are_those_that_a_gpu_runs(dtype):
    import on_gpu

    assert emulated_gpu.active()
    planned = of_zoo("resnet8-cifar", batch=2, dtype=dtype)
    with on_gpu.with_cudnn():
        workspace = Workspace()
        options = ZooOptions(batch=2, gpu=True, dtype=dtype, observable="outputs")
        ready = load_zoo(workspace, "resnet8-cifar", options)
        run = profile(workspace, ready.name, runs=1, warmup=1, limits={})

    def calls(found):
        """Those of layers; the losses differ, since one net is built for several devices."""
        layers = [call for call in found if any(layer in call.kind for layer in ("Conv", "SpatialBN", "Pool", "FC"))]
        return sorted((call.kind, call.kernel, call.nbytes, call.flops) for call in layers)

    assert len(calls(planned.calls)) > 30
    assert calls(planned.calls) == calls(run.calls)


def test_a_table_without_calls_on_the_host():
    found = of_zoo("lenet", batch=8)
    assert {call.device for call in found.calls} <= {"CPU 0", "GPU 0"}
    assert "LearningRate" in report_text(planned_report(found))
