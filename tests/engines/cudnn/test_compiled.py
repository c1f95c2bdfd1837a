"""Graphs are compiled once for a GPU; their plans are chosen by cuDNN, or by measuring."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from cudnn_double import Invalid, cudnn_double
from netbuilder.engines.choices import CACHE_VARIABLE, SWITCH_VARIABLE, Choices
from netbuilder.engines.cuda.capture import capture
from netbuilder.engines.cudnn import compiled as module
from netbuilder.engines.cudnn import plans
from netbuilder.engines.cudnn.compiled import compiled, release_graphs
from netbuilder.engines.cudnn.graphs import (
    CHANNELS_LAST,
    ROW_MAJOR,
    TRANSPOSED,
    AddPerChannel,
    Convolution,
    Normalization,
    Product,
    Tensor,
    Window,
    per_channel,
)
from netbuilder.engines.gpu import gpu

pytestmark = pytest.mark.emulated

X = Tensor((2, 8, 5, 4), CHANNELS_LAST, "float32")
W = Tensor((6, 8, 1, 1), CHANNELS_LAST, "float32")
Y = Tensor((2, 6, 5, 4), CHANNELS_LAST, "float32")
POINTS = Window((1, 1), (1, 1), (0, 0), (0, 0))


def test_strides():
    assert X.strides == (160, 1, 32, 8)
    assert Tensor((3, 4, 5), ROW_MAJOR, "float32").strides == (20, 5, 1)
    assert Tensor((3, 4, 5), TRANSPOSED, "float32").strides == (20, 1, 4)
    assert per_channel(X) == Tensor((1, 8, 1, 1), CHANNELS_LAST, "float32")
    assert (X.nbytes, Tensor(X.shape, CHANNELS_LAST, "bfloat16").nbytes) == (1280, 640)


def test_equal_recipes_are_one_graph():
    with cudnn_double() as cudnn:
        first = compiled(Convolution(X, W, Y, POINTS), 0)
        assert compiled(Convolution(X, W, Y, POINTS), 0) is first
        assert len(cudnn.graphs) == 1
        assert compiled(Convolution(X, W, Y, POINTS, relu=True), 0) is not first
        assert compiled(Convolution(X, W, Y, POINTS), 1) is not first
        release_graphs()
        assert compiled(Convolution(X, W, Y, POINTS), 0) is not first


def test_what_cudnn_does_not_support_is_none_and_asked_once():
    with cudnn_double() as cudnn:
        cudnn.unsupported.add("conv_fprop")
        assert compiled(Convolution(X, W, Y, POINTS), 0) is None
        assert compiled(Convolution(X, W, Y, POINTS), 0) is None
        assert len(cudnn.graphs) == 1


def test_an_invalid_graph_is_an_error():
    wrong = Tensor((2, 7, 5, 4), CHANNELS_LAST, "float32")
    with cudnn_double(), pytest.raises(Invalid, match="extents"):
        compiled(Convolution(X, W, wrong, POINTS), 0)


def test_sums_of_16_bits_are_not_of_16_bits():
    x, w, y = (replace(each, elements="bfloat16") for each in (X, W, Y))
    with cudnn_double() as cudnn:
        compiled(Convolution(x, w, y, POINTS), 0)
        assert {note.name for note in cudnn.graphs[0].refused} == {"REDUCED_PRECISION_REDUCTION"}


@pytest.mark.parametrize("tf32", [False, True])
def test_exact_products_have_no_tensor_cores(tf32):
    with cudnn_double() as cudnn:
        compiled(Convolution(X, W, Y, POINTS, tf32=tf32), 0)
        refused = {note.name for note in cudnn.graphs[0].refused}
    assert refused == ({"DOWN_CONVERT_INPUTS"} if tf32 else {"DOWN_CONVERT_INPUTS", "TENSOR_CORE"})


@pytest.mark.parametrize("tf32", [False, True])
def test_products_are_exact_without_tf32(tf32):
    """A factor of 1 + 2**-12 is 1 in TF32."""
    with cudnn_double(), gpu(0) as there:
        graph = compiled(Convolution(X, W, Y, POINTS, tf32=tf32), 0)
        x, w = (there.xp.full(t.size, value, np.float32) for t, value in ((X, 1 + 2.0**-12), (W, 1.0)))
        y = there.xp.empty(Y.size, np.float32)
        graph.bind({"x": x, "w": w, "y": y}, there.xp.empty(graph.workspace, np.uint8))()
        assert y.get()[0] == (8 if tf32 else 8 * np.float32(1 + 2.0**-12))


def test_products_of_matrices_that_have_to_be_exact_are_refused():
    a, b, y = (Tensor((1, m, n), ROW_MAJOR, "float32") for m, n in ((4, 6), (6, 2), (4, 2)))
    with cudnn_double():
        assert compiled(Product(a, b, y), 0) is None
        assert compiled(Product(a, b, y, tf32=True), 0) is not None


def test_each_tensor_has_to_be_bound():
    with cudnn_double(), gpu(0) as there:
        graph = compiled(AddPerChannel(X, per_channel(X)), 0)
        with pytest.raises(AssertionError, match=r"nothing is bound to \['y'\]"):
            graph.bind({"x": there.xp.empty(X.size, np.float32), "b": there.xp.empty(8, np.float32)}, None)


def test_a_bound_call_keeps_all_that_its_pointers_refer_to(monkeypatch):
    """The numbers that cuDNN reads from the host's memory, too, when their graph has been released."""
    x = Tensor((2, 8, 5, 4), CHANNELS_LAST, "float32")
    channels, made, array = per_channel(x), [], np.array
    with cudnn_double(), gpu(0) as there, monkeypatch.context() as patch:

        def noted(*args, **kwargs):
            made.append(array(*args, **kwargs))
            return made[-1]

        patch.setattr(module.np, "array", noted)
        graph = compiled(Normalization(x, 1e-3), 0)
        (epsilon,) = [weakref.ref(each) for each in made if each.dtype == np.float32]
        made.clear()
        tensors = {"x": x, "y": x, **dict.fromkeys(("scale", "bias", "mean", "variance"), channels)}
        memory = {name: there.xp.ones(tensor.size, np.float32) for name, tensor in tensors.items()}
        call = graph.bind(memory, there.xp.empty(graph.workspace, np.uint8))
        release_graphs()
        del graph
        gc.collect()
        assert epsilon() is not None
        call()
        del call
        gc.collect()
        assert epsilon() is None


def test_outputs_in_the_memory_of_inputs():
    """Only elementwise graphs may overwrite what they read."""
    with cudnn_double(), gpu(0) as there:
        memory, b = there.xp.zeros(X.size, np.float32), there.xp.ones(8, np.float32)
        scratch = there.xp.empty(777, np.uint8)
        compiled(AddPerChannel(X, per_channel(X)), 0).bind({"x": memory, "b": b, "y": memory}, scratch)()
        square = Tensor((8, 8, 1, 1), CHANNELS_LAST, "float32")
        wrong = compiled(Convolution(X, square, X, POINTS), 0)
        with pytest.raises(Invalid, match="same memory"):
            wrong.bind({"x": memory, "w": there.xp.zeros(64, np.float32), "y": memory}, scratch)()


def test_arrays_that_begin_anywhere():
    """Inputs and results are staged where they begin at no multiple of 16 bytes, also in a CUDA graph."""
    values = np.arange(X.size, dtype=np.float32)
    with cudnn_double(), gpu(0) as there:
        memory, b = there.xp.zeros(2 * X.size + 2, np.float32), there.xp.ones(8, np.float32)
        x, y = memory[1 : X.size + 1], memory[X.size + 2 :]
        graph = compiled(AddPerChannel(X, per_channel(X)), 0)
        call = graph.bind({"x": x, "b": b, "y": y}, there.xp.empty(graph.workspace, np.uint8))
        x.set(values)
        call()
        np.testing.assert_array_equal(y.get(), values + 1)
        captured = capture(0, [call])
        x.set(2 * values)
        captured.launch()
        np.testing.assert_array_equal(y.get(), 2 * values + 1)


# Measuring.


@pytest.fixture
def times(monkeypatch, tmp_path):
    """The seconds of each call that is measured, in order; further calls take 9."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(SWITCH_VARIABLE, raising=False)
    given = []

    def seconds(call):
        call()
        return given.pop(0) if given else 9.0

    monkeypatch.setattr(plans, "seconds", seconds)
    monkeypatch.setattr(plans, "machine", lambda: "a GPU; cuDNN 9.28.0")
    return given


RECIPE = Convolution(X, W, Y, POINTS)


def test_exhaustive_search_takes_the_fastest_plan_and_keeps_it(times):
    """The double has three plans, of which the second cannot be built."""
    with cudnn_double() as cudnn:
        times[:] = [5.0, 4.0, 5.0, 3.0, 6.0, 6.0]
        compiled(RECIPE, 0, exhaustive=True)
        assert (cudnn.graphs[-1].built, times) == (2, [])
        release_graphs()
        times[:] = [1.0]
        compiled(RECIPE, 0, exhaustive=True)
        assert (cudnn.graphs[-1].built, times) == (2, [1.0])  # nothing was measured


def test_the_heuristics_choose_without_exhaustive_search(times, monkeypatch):
    with cudnn_double() as cudnn:
        times[:] = [1.0]
        compiled(RECIPE, 0)
        release_graphs()
        monkeypatch.setenv(SWITCH_VARIABLE, "0")
        compiled(RECIPE, 0, exhaustive=True)
        assert [graph.built for graph in cudnn.graphs] == [0, 0]
        assert times == [1.0]


def test_a_limit_of_scratch_memory(times):
    with cudnn_double():
        assert compiled(RECIPE, 0, limit=776) is None
        assert compiled(RECIPE, 0, limit=777) is not None
        assert compiled(RECIPE, 0, limit=776, exhaustive=True) is None


def test_more_scratch_memory_than_usual_where_no_plan_needs_less(monkeypatch):
    monkeypatch.setattr(module, "usual_limit", lambda: 776)
    with cudnn_double() as cudnn:
        assert compiled(RECIPE, 0) is not None
        assert [graph.limit for graph in cudnn.graphs] == [776, None]


@pytest.mark.parametrize("error", [RuntimeError("cuDNN"), MemoryError()])
def test_plans_that_fail_to_run_are_left_out(times, monkeypatch, error):
    seconds = plans.seconds

    def failing(call):
        if not times[0]:
            times.pop(0)
            raise error
        return seconds(call)

    monkeypatch.setattr(plans, "seconds", failing)
    with cudnn_double() as cudnn:
        times[:] = [0.0, 3.0, 2.0, 3.0]
        compiled(RECIPE, 0, exhaustive=True)
        assert (cudnn.graphs[-1].built, times) == (2, [])


def test_no_plan_can_be_measured(times, monkeypatch):
    """The heuristics choose then, as without the search."""
    monkeypatch.setattr(plans, "measured", lambda *args: None)
    with cudnn_double() as cudnn:
        compiled(RECIPE, 0, exhaustive=True)
        assert cudnn.graphs[-1].built == 0


def test_a_kept_choice_that_is_refused_now_is_measured_anew(times):
    key, choices = f"cuDNN {RECIPE} in 777 bytes", Choices.of(plans.machine())
    choices.put({key: "eng1"})
    with cudnn_double() as cudnn:
        times[:] = [5.0, 5.0, 5.0, 3.0]
        compiled(RECIPE, 0, exhaustive=True, limit=777)
        assert cudnn.graphs[-1].built == 2 and choices.get(key) == "eng2"


def test_repeatable_plans_are_measured_by_themselves(times):
    with cudnn_double() as cudnn:
        times[:] = [5.0, 5.0, 5.0, 3.0]
        compiled(RECIPE, 0, exhaustive=True)
        times[:] = [1.0, 1.0, 1.0, 3.0]
        compiled(RECIPE, 0, exhaustive=True, deterministic=True)
        assert [graph.built for graph in cudnn.graphs] == [2, 0]
