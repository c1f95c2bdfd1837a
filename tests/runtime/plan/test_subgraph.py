"""Subgraphs, nets that operators hold: bound to other buffers in each step, fused, laid out, and their errors."""

import numpy as np
import pytest

from checks import interpret
from cudnn_double import cudnn_double
from netbuilder.engines import onednn
from netbuilder.engines.arrays import aligned_empty
from netbuilder.engines.engine import find_engine
from netbuilder.engines.gpu import gpu, to_host
from netbuilder.engines.layouts import new_bytes
from netbuilder.ops.core.contexts import Subgraph
from netbuilder.ops.core.instructions import read_instruction
from netbuilder.ops.core.operator import spec_of
from netbuilder.proto import PROTO_CUDA, OperatorDef, OperatorError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.plan.options import PlanOptions
from netbuilder.runtime.plan.run_context import KernelContext
from netbuilder.runtime.plan.subgraph import compile_subgraph
from on_gpu import gpus
from switches import single

ENGINES = [pytest.param(None, id="engines"), pytest.param((), id="numpy")]


def compiled(ops, arrays, outputs, fixed=(), device=None, **options):
    """Compile operators; the specs of their outputs are inferred from arrays."""
    specs = {name: spec_of(array) for name, array in arrays.items()}
    program = [read_instruction(i, op) for i, op in enumerate(ops)]
    for each in program:
        specs.update(zip(each.outputs, each.op.infer(*(specs[name] for name in each.inputs))))
    find_engine("ONEDNN").register_kernels()
    subgraph = Subgraph("step", program, specs, frozenset(outputs), fixed=frozenset(fixed))
    return compile_subgraph(subgraph, KernelContext(OperatorDef(), device=device), PlanOptions(**options))


def run(subgraph, buffers, step=-1, copies=True):
    scratch = aligned_empty(subgraph.scratch) if subgraph.scratch else None
    bound = subgraph.copies(buffers.__getitem__, scratch) if copies else []
    bound += subgraph.bind(buffers.__getitem__, scratch, step)
    for call, failed in bound:
        try:
            call()
        except Exception as error:
            raise failed(error) from error
    return len(bound)


def dense():
    r = np.random.default_rng(0)
    arrays = {"x": r.normal(size=(3, 4)), "w": r.normal(size=(5, 4)), "b": r.normal(size=5)}
    ops = [make_op("FC", ["x", "w", "b"], ["s"]), make_op("Relu", ["s"], ["s"]), make_op("Tanh", ["s"], ["y"])]
    return ops, {name: array.astype(np.float32) for name, array in arrays.items()}


@pytest.mark.parametrize("engines", ENGINES)
def test_each_step_has_its_own_buffers(engines):
    ops, arrays = dense()
    subgraph = compiled(ops, arrays, ["y"], engines=engines)
    xs, ys = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32), np.zeros((2, 3, 5), np.float32)
    for step in range(2):
        run(subgraph, {**arrays, "x": xs[step], "y": ys[step]}, step)
    want = np.tanh(np.maximum(xs.astype(np.float64) @ arrays["w"].T + arrays["b"], 0))
    np.testing.assert_allclose(ys, want, rtol=1e-5, atol=1e-6)


@pytest.mark.emulated
def test_on_a_gpu_the_engines_for_gpus_are_asked():
    """Their kernels, fusions and layouts; nothing leaves the GPU."""
    r, location = np.random.default_rng(0), (PROTO_CUDA, 0)
    shapes = {"x": (2, 3, 5, 4), "w": (6, 3, 3, 3), "b": 6}
    arrays = {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    ops = [make_op("Conv", ["x", "w", "b"], ["s"], kernel=3), make_op("Relu", ["s"], ["s"])]
    ops.append(make_op("Tanh", ["s"], ["y"]))
    with gpus(1) as machine, cudnn_double(), gpu(0) as here:
        for engine in ("CUDNN", "CUDA"):
            find_engine(engine).register_kernels()
        buffers = {name: here.xp.asarray(array) for name, array in arrays.items()}
        buffers["y"] = here.xp.zeros((2, 6, 3, 2), np.float32)
        subgraph = compiled(ops, arrays, ["y"], fixed=["w", "b"], device=location, engines=("CUDNN", "CUDA"))
        steps = [step.what for step in subgraph._steps]
        assert steps[:2] == ["reorder", "cudnn Convolution"] and steps[2].startswith("cuda nb_tanh")
        assert steps[3:] == ["restore"] and [step.what for step in subgraph._constant_steps] == ["reorder"]
        scratch = new_bytes(subgraph.scratch, location)
        copies = subgraph.copies(buffers.__getitem__, scratch)
        bound = subgraph.bind(buffers.__getitem__, scratch)
        machine.transfers.clear(), machine.allocated.clear()
        for call, _ in [*copies, *bound, *bound]:
            call()
        assert machine.transfers == [] == machine.allocated
        np.testing.assert_allclose(to_host(buffers["y"]), interpret(ops, arrays)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not onednn.available(), reason="needs oneDNN")
def test_neighbors_fuse_and_fixed_inputs_are_copied_once():
    ops, arrays = dense()
    buffers = {**arrays, "y": np.zeros((3, 5), np.float32), "s": np.zeros((3, 5), np.float32)}
    assert run(compiled(ops, arrays, ["y"]), buffers) == 2  # FC with Relu, and Tanh
    assert run(compiled(ops, arrays, ["y"], without=single("fc_relu")), buffers) == 2  # FC, and Relu with Tanh
    alone = [ops[0]]
    subgraph = compiled(alone, arrays, ["s"], fixed=["w", "b"])
    assert run(subgraph, buffers) == 2 and run(subgraph, buffers, copies=False) == 1  # weights into the product's order
    np.testing.assert_allclose(buffers["s"], arrays["x"] @ arrays["w"].T + arrays["b"], rtol=1e-5, atol=1e-6)
    assert run(compiled(alone, arrays, ["s"], fixed=["w"], without=single("step_copies")), buffers) == 1


@pytest.mark.parametrize("engines", ENGINES)
def test_what_is_overwritten_ends_in_the_callers_buffer_if_it_wants_it(engines):
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    ops = [make_op("Tanh", ["x"], ["x"]), make_op("Negative", ["x"], ["y"])]
    for outputs, want in ((["x", "y"], np.tanh(x)), (["y"], x)):
        buffers = {"x": x.copy(), "y": np.zeros_like(x)}
        run(compiled(ops, {"x": x}, outputs, engines=engines), buffers)
        np.testing.assert_allclose(buffers["y"], -np.tanh(x), rtol=1e-5)
        np.testing.assert_allclose(buffers["x"], want, rtol=1e-5)


def test_random_numbers_differ_from_step_to_step():
    x = np.ones((4, 50), np.float32)
    subgraph = compiled([make_op("Dropout", ["x"], ["y", "mask"], ratio=0.5)], {"x": x}, ["y"])
    drawn = []
    for step in (0, 1, 0):
        drawn.append(np.zeros_like(x))
        run(subgraph, {"x": x, "y": drawn[-1]}, step)
    assert (drawn[0] != drawn[1]).any()
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_errors_say_where_and_leave_room_for_the_operator_that_holds_the_net():
    arrays = {"data": np.zeros((3, 2), np.float32), "at": np.array([7], np.int32)}
    subgraph = compiled([make_op("Gather", ["data", "at"], ["y"])], arrays, ["y"])
    with pytest.raises(OperatorError, match=r"^net 'step', operator 0: Gather .* -> \['y'\], in step 3: ") as caught:
        run(subgraph, {**arrays, "y": np.zeros((1, 2), np.float32)}, 3)
    assert not caught.value._located
