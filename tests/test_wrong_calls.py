"""Each argument of each public function with values of every kind: taken, or refused in words."""

import contextlib
import os

import numpy as np
import pytest

from netbuilder import exchange, parallel, passes
from netbuilder.graph import DeviceScope, ExecutionStep, NameScope, Net, Plan
from netbuilder.graph.devices import Devices
from netbuilder.graph.replicas import Replicas
from netbuilder.model import Generator, ModelHelper, brew
from netbuilder.optimizers import build_sgd
from netbuilder.proto import ArgumentError, DeviceOption, NetDef, NetError, files
from netbuilder.runtime import LossReader, Prefetch, Workspace
from toy_models import scaled_loss
from wrong_calls import VALUES, bare_errors

ROWS, LABELS = np.arange(12, dtype=np.float32).reshape(4, 3), np.zeros(4, np.int32)
FOR_EVER = VALUES[7]  # iterations


def forward(model, loss_scale):
    return scaled_loss(model, brew.fc(model, "data", "fc", 3, 2), loss_scale)


def sgd(model):
    return build_sgd(model, 0.1)


class Given:
    """A data-parallel model that is initialized, an ordinary one, and files of both in the current folder."""

    def __init__(self):
        self.model = ModelHelper("trained")
        parallel.Parallelize_CPU(self.model, lambda m: None, forward, optimizer_builder_fun=sgd, devices=[0])
        self.workspace = Workspace(threads=1)
        self.workspace.feed("cpu_0/data", ROWS)
        self.workspace.feed("cpu_0/label", LABELS)
        parallel.RunInitNet(self.model, workspace=self.workspace)
        self.plain = ModelHelper("plain")
        brew.fc(self.plain, "x", "y", 3, 2)
        self.parameters = {"y_w": np.ones((2, 3), np.float32), "y_b": np.ones(2, np.float32)}
        self.checkpoint = exchange.save_checkpoint("checkpoint", self.model, workspace=self.workspace)
        exchange.save_predictor("predictor", self.plain.net, self.parameters, inputs=["x"], outputs=["y"])
        self.nets = [files.load(f"predictor/{name}_net.pb", NetDef) for name in ("init", "predict")]

    def plain_workspace(self):
        made = Workspace(threads=1)
        for name, value in {"x": ROWS, **self.parameters}.items():
            made.feed(name, value)
        made.create_net(self.plain.net)
        return made


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("files"))
        yield Given()


def on(make, name, /, functions=(), **right):
    """Return a case: a method of what ``make`` returns, its right arguments, and which of them are functions."""

    def call(**arguments):
        return getattr(make(), name)(**arguments)

    return call, right, functions


def entered(scope):
    def call(**arguments):
        with scope(**arguments):
            pass

    return call


def model():
    made = ModelHelper("model")
    brew.fc(made, "x", "y", 3, 2)
    made.net.AveragedLoss("y", "loss")
    return made


def net():
    return model().net


def step():
    return ExecutionStep("step")


def plan():
    made = Net("in_plan")
    made.Relu("x", "z")
    found = Plan("plan")
    found.AddStep(ExecutionStep("once", made, 1))
    return found


def exchange_cases(g):
    saved = {"model": g.model, "workspace": g.workspace, "step": 1, "metric": 0.5, "state": {"a": 1}}
    lists = {"inputs": ["x"], "outputs": ["y"]}
    folder = exchange.CheckpointFolder("folder")
    init, predict = g.nets
    ones = {"device": None, "workspace": None, "fold": True, "observable": "outputs", "trusted": False}
    predictor = {"init_net": init, "predict_net": predict, **lists, **ones, "specs": None, "parameters": None}
    yield exchange.CheckpointFolder, {"folder": "folder", "keep": 3, "best": "max"}
    yield folder.save, saved
    yield folder.latest, {"show": print, "set_aside": False}, ["show"]
    yield folder.require_none_later, {"step": FOR_EVER}
    yield exchange.CheckpointFolder("other").write, {"checkpoint": g.checkpoint}
    yield exchange.take_checkpoint, saved
    yield exchange.save_checkpoint, {"path": "written", **saved}
    yield exchange.write_checkpoint, {"path": "written", "checkpoint": g.checkpoint}
    yield exchange.read_checkpoint, {"path": "checkpoint"}
    yield exchange.load_checkpoint, {
        "source": "checkpoint", "model": g.model, "workspace": g.workspace, "parameters_only": False, "partial": False,
        "rename": {}, "skip": [], "show": lambda text: None,
    }, ["show"]  # fmt: skip
    yield exchange.checkpoint_blobs, {"model": g.model}
    yield exchange.describe_images, {"net": NetDef(name="n"), "images": None, "classes": ["a"]}
    yield exchange.load_predictor, {"directory": "predictor", "init_net": None, **lists, **ones}
    yield exchange.save_predictor, {
        "directory": "saved", "predict_net": g.plain.net, "parameters": g.parameters, **lists, "shapes": {"x": (1, 3)},
        "workspace": None, "fold": False, "images": None, "classes": None,
    }  # fmt: skip
    yield exchange.Predictor, {**predictor, "threads": None}
    yield exchange.Predictor(**predictor).run, {"x": ROWS}


def parallel_cases(g):
    both = {"model": g.model, "workspace": g.workspace}
    builders = {"input_builder_fun": lambda m: None, "forward_pass_builder_fun": forward, "devices": [0, 1]}
    flags = dict.fromkeys(("use_nccl", "deterministic", "weighted_shares", "vector_losses"), False)
    common = {**builders, **flags, "cpu_device": True, "net_type": "dag", "rendezvous": None,
              "num_threads_per_device": 4,
              "max_concurrent_distributed_ops": 16, "barrier_net_timeout_sec": 300, "peer_access": None, "dtype": None,
              "accumulate_steps": 1, "memory_budget": None, "allow_tf32": None, "combine_means": True}  # fmt: skip
    functions = [name for name in (*common, "optimizer_builder_fun", "param_update_builder_fun") if "_fun" in name]

    def built(build, **arguments):
        return build(**{"model_helper_obj": ModelHelper("new"), **arguments})

    yield lambda **arguments: built(parallel.Parallelize, **arguments), {
        "model_helper_obj": None, **common, "optimizer_builder_fun": sgd, "strategy": None, "gradient_scaling": None,
        "shared_model": False, "bucket_bytes": 4096, "outside_from_bytes": None, "blobs_to_keep": None,
    }, [*functions, "model_helper_obj"]  # fmt: skip
    yield lambda **arguments: built(parallel.Parallelize_BMUF, **arguments), {
        **common, "param_update_builder_fun": sgd, "block_learning_rate": 1.0, "block_momentum": None,
        "master_device": None, "nesterov": False, "reset_momentum_sgd": False, "warmup_iterations": None,
        "add_blobs_to_sync": None, "block_iterations": 2, "lookahead": None, "block_bits": 32,
        "block_overlap": 1,
    }, functions  # fmt: skip
    yield lambda **arguments: built(parallel.ParallelDo, **{"model": ModelHelper("do"), **arguments}), {}
    yield run_net, {**both, "num_iterations": 1, "wait": True, "find_nan": False}
    yield parallel.RunInitNet, {**both, "overwrite": True}
    yield parallel.CreateNet, {**both, "overwrite": True, "check": False}
    yield parallel.Synchronize, {**both, "timeout_sec": 300}
    yield parallel.FinalizeAfterCheckpoint, {**both, "blobs": None, "cpu_mode": False}
    yield parallel.GetCheckpointParams, {"model": g.model}
    yield parallel.GetLearningRateBlobNames, {"model": g.model}
    yield parallel.OptimizeGradientMemory, {
        "model": g.model, "input_shapes": None, "excluded_blobs": None, "recycle_activations": False
    }  # fmt: skip
    yield parallel.forget_gradients, both
    yield parallel.pending_steps, both
    yield parallel.planned_step, both
    yield parallel.gather_shares, {**both, "blob": "softmax", "samples": 4}
    yield parallel.loss_reader, {**both, "blobs": ["loss"]}
    yield parallel.has_record, {"net": g.model.net.Proto()}
    yield parallel.replicas_of, {"net": g.model.net.Proto()}
    yield parallel.AddBlobSync, {"model": g.model, "blobs": ["fc_w"], "net": None}
    yield parallel.ConvertNetForDevice, {"net": g.model.net, "device": None}
    yield parallel.ExtractPredictorNet, {
        "model": g.model, "inputs": ["data"], "outputs": ["softmax"], "device": None
    }  # fmt: skip
    yield parallel.GradientScaling, {"initial": 65536.0, "growth": 2.0, "backoff": 0.5, "interval": 2000}
    record = Replicas.load(g.model.net.Proto())
    yield Replicas.load, {"net": g.model.net.Proto()}
    yield record.store, {"net": NetDef(name="n")}
    yield record.blobs, {"name": "fc_w"}
    yield record.short_names, {"blobs": ["cpu_0/fc_w"], "known": ["fc_w"]}


def run_net(num_iterations=1, **arguments):
    if num_iterations is not FOR_EVER:
        parallel.RunNet(num_iterations=num_iterations, **arguments)


def runtime_cases(g):
    made = g.plain_workspace
    op = g.plain.net.Proto().op[0]
    prefetched = {"data": ["cpu_0/data"], "label": ["cpu_0/label"]}
    yield Workspace, {"engines": None, "threads": 1, "seed": 1, "without": (), "parent": None}
    yield on(made, "feed", name="x", value=ROWS, device=None, unnamed=False)
    for method in ("fetch", "spec", "has", "remove", "make", "find", "get"):
        yield on(made, method, name="x")
    yield on(made, "share_blobs", other=g.workspace, names=["cpu_0/data"])
    yield on(made, "create_net", net=g.plain.net, overwrite=True, observable=None, shares_counter=False, check=False)
    yield on(made, "check_net", net=g.plain.net, check=True)
    yield on(made, "run_net", name="plain", time_limit=None, wait=True, overwrite=False, find_nan=False)
    yield lambda iterations: iterations is FOR_EVER or made().run_net("plain", iterations), {"iterations": 1}
    yield on(made, "run_net_once", net=g.plain.net, overwrite=False, find_nan=False)
    yield on(made, "run_operator_once", op=op)
    yield on(made, "run_operators_once", ops=[op])
    yield on(made, "run_plan", plan=plan())
    yield on(made, "delete_net", name="plain")
    yield on(made, "net", name="plain")
    yield LossReader, {"workspace": g.workspace, "blobs": ["cpu_0/loss"], "weights": None}
    yield prefetch, {
        "workspace": g.workspace, "source": [{"data": ROWS, "label": LABELS}], "blobs": prefetched, "depth": 2,
        "devices": None, "dtypes": None, "even": True, "look": False,
    }, ["source"]  # fmt: skip


def prefetch(**arguments):
    with contextlib.closing(Prefetch(**arguments)) as batches:
        list(batches)


def graph_cases(g):
    op = g.plain.net.Proto().op[0]
    ids = {"gpu_id": 0, "use_cudnn": False}
    yield ModelHelper, {
        "name": "m", "init_params": True, "allow_not_known_ops": True, "skip_sparse_optim": False, "param_model": None,
        "arg_scope": None, "dtype": None,
    }  # fmt: skip
    yield on(model, "AddGradientOperators", ["callbacks"], ys=["loss"], skip=0, callbacks=(), devices=None)
    yield on(model, "ConstructInitTrainNetfromNet", net=Net("n"))
    yield on(model, "RunAllOnGPU", **ids)
    yield on(model, "CreateDB", blob_out="d", db="x", db_type="minidb")
    yield on(model, "TensorProtosDBInput", unused_blob_in=[], blob_out=["a"], batch_size=2, db="x", db_type="minidb")
    yield on(model, "GetParams", namescope=None, top_scope=False)
    yield on(model, "GetComputedParams", namescope=None)
    yield on(model, "GetOptimizationParamInfo", params=None)
    yield on(model, "AddParameter", param="w", tags=None)
    yield on(model, "create_param", param_name="w", shape=[2], initializer=None, tags=None)
    yield Net, {"name_or_proto": "n", "inplace": False}
    yield on(net, "set_type", net_type="dag", num_workers=2)
    yield on(net, "set_activation_dtype", dtype="float16")
    yield on(net, "set_allow_tf32", allow=True)
    yield on(net, "set_deterministic", deterministic=True)
    yield on(net, "set_observable", kind="outputs", blobs=())
    yield on(net, "set_memory_budget", budget=1 << 30)
    yield on(net, "AddArgument", arg_name="a", arg_value=1)
    yield on(net, "add_attribute", name="a", obj=1)
    yield on(net, "get_attributes", name="a")
    yield on(net, "Const", array=[1.0], blob_out="q", dtype=None)
    yield on(
        net, "Python", ["python_func_type"], f=lambda a, b: None, grad_f=None, python_func_type=None,
        pass_workspace=False, grad_output_indices=None, grad_input_indices=None,
    )  # fmt: skip
    yield on(net, "extend_ops", new_ops=[op])
    yield on(net, "replace_message", proto=g.plain.net.Proto())
    yield on(net, "insert_op_at_idx", op=op, op_idx=0)
    yield on(net, "Clone", name="c", blob_remap=None, op_id_mask=None, remap_funcs=None, update_external_list=False)
    yield on(net, "ClonePartial", name="c", inputs=["x"], outputs=["y"], remap_funcs=None)
    yield on(net, "AppendNet", net=Net("z"), device_option=None, scope=None)
    yield on(net, "AddGradientOperators", ["callbacks"], ys=["loss"], skip=0, callbacks=())
    yield on(net, "RunAllOnGPU", **ids)
    yield on(net, "set_rand_seed", seed=1, sequence_seed=True, seed_on_op_def=False)
    yield ExecutionStep, {"name": "s", "nets": None, "num_iter": 1}
    yield on(step, "AddNet", net=Net("a"))
    yield on(step, "AddSubstep", substep=step())
    yield on(step, "SetIter", num_iter=1)
    yield on(step, "SetOnlyOnce", only_once=True)
    yield on(step, "SetShouldStopBlob", should_stop_blob="x")
    yield on(step, "RunEveryMillis", interval=1)
    yield on(step, "SetReportNet", report_net=Net("b"), report_interval=1)
    yield on(step, "SetConcurrentSubsteps", concurrent_substeps=True)
    yield on(step, "SetNumConcurrentInstances", num_concurrent_instances=1)
    yield on(step, "SetCreateWorkspace", create_workspace=True)
    yield on(step, "get_net", name="x")
    yield Plan, {"name_or_step": "p"}
    yield on(plan, "AddNets", nets=[Net("u")])
    yield on(plan, "AddStep", step=step())
    yield on(plan, "get_all_attributes", name="a")
    yield entered(NameScope), {"prefix": "a", "reset": False}
    yield entered(DeviceScope), {"scope": DeviceOption(), "node_name": None}


def language(model, tokens, cache=None):
    x = brew.embedding(model, tokens, "tokens_of", 5, 8)
    x = brew.transformer_block(model, x, "block", 8, 2, causal=True, cache=cache)
    return brew.fc(model, x, "scores", 8, 5, axis=2)


def generation_cases(g):
    trained, workspace = ModelHelper("language"), Workspace(threads=1)
    language(trained, "tokens")
    workspace.run_net_once(trained.param_init_net)

    def made(**arguments):
        if all(arguments[name] is not FOR_EVER for name in ("length", "batch")):  # so long a cache fits nowhere
            return Generator(**arguments)

    right = {"workspace": workspace, "build": language, "length": 6, "batch": 1}
    yield made, right, ["build"]
    yield Generator(**right), {"prompt": [[1, 2]], "steps": 2, "temperature": 0.5, "top_k": 2, "seed": 0}


def passes_cases(g):
    net, group = g.plain.net.Proto(), ["cpu_0/a", "cpu_1/a"]
    two = {"devices": Devices(0, (0, 1)), "debug_info": ""}
    checked = {"net": net, "init_net": None, "devices": None, "shared": ()}
    yield passes.allreduce, {"groups": [group], **two, "peer_access": None, "hand_back": True}
    yield passes.broadcast, {"groups": [group], **two}
    yield passes.gather_sparse, {"groups": [(group, group)], **two, "hand_back": True, "joined": None}
    yield passes.blob_devices, {"nets": [net]}
    yield passes.check_devices, checked
    yield lambda **arguments: list(passes.device_faults(**arguments)), checked
    yield passes.extract_predictor, {
        "net": net, "inputs": ["x"], "outputs": ["y"], "device": None, "renames": None, "disabled": (),
        "parameters": None,
    }, ["renames"]  # fmt: skip
    yield passes.ExtractPredictorNet, {
        "net_proto": net, "input_blobs": ["x"], "output_blobs": ["y"], "device": None, "renames": None,
        "disabled_inputs": None,
    }, ["renames"]  # fmt: skip
    yield passes.fold_batch_norm, {"net": net, "parameters": {}}
    yield passes.parameter_sources, {"net": net}
    yield Devices, {"device_type": 0, "ids": (0, 1)}
    yield passes.net_pass, {"function": lambda net, context: None}, ["function"]


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "cases", [exchange_cases, parallel_cases, runtime_cases, graph_cases, generation_cases, passes_cases]
)
def test_no_bare_errors(cases, given, tmp_path, monkeypatch):
    for name in ("checkpoint", "predictor"):
        (tmp_path / name).symlink_to(os.path.abspath(name))
    monkeypatch.chdir(tmp_path)
    found = []
    for call, right, *functions in cases(given):
        with contextlib.suppress(NetError, TypeError):
            found += bare_errors(call, right, functions=functions[0] if functions else ())
    assert not found, "\n".join(found)


def test_nothing_is_half_built_or_written(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = net()
    before = made.Proto().SerializeToString()
    for call, value in ((made.extend_ops, [made.Proto().op[0], 7]), (made.set_rand_seed, -1), (made.AddArgument, None)):
        with pytest.raises(ArgumentError):
            call(*([value, 1] if call == made.AddArgument else [value]))
    assert made.Proto().SerializeToString() == before
    with pytest.raises(ArgumentError, match="model must be a ModelHelper, got None"):
        exchange.save_checkpoint("file", None, workspace=given.workspace)
    for state in ({}, {"list": []}):
        state["self"] = state
        with pytest.raises(NetError, match="its state holds itself"):
            exchange.save_checkpoint("file", given.model, workspace=given.workspace, state=state)
    assert not os.listdir()


def test_a_file_is_no_folder(given, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "inner"):
        with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
            exchange.CheckpointFolder(path).write(given.checkpoint)
        with pytest.raises(NotADirectoryError, match="is a file, not a folder"):
            exchange.save_predictor(path, given.plain.net, given.parameters, inputs=["x"], outputs=["y"])


@pytest.mark.parametrize("batch", [[ROWS, LABELS], (1, 2), "data", None, 7])
def test_a_prefetch_of_what_is_no_mapping(batch, given):
    blobs = {"data": ["cpu_0/data"], "label": ["cpu_0/label"]}
    with pytest.raises(NetError, match="a batch must be a mapping from names to arrays, got"):
        prefetch(workspace=given.workspace, source=[batch], blobs=blobs)
