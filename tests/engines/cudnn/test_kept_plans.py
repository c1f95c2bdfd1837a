"""Plans of cuDNN are kept on file, and those that are missing for a net are built by processes."""

import logging
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cudnn_double import CudnnDouble, cudnn_double
from netbuilder.engines import kept_files
from netbuilder.engines.choices import CACHE_VARIABLE
from netbuilder.engines.cudnn import plan_processes
from netbuilder.engines.cudnn.compiled import compiled, release_graphs
from netbuilder.engines.cudnn.graphs import CHANNELS_LAST, Normalization, Tensor
from netbuilder.engines.cudnn.kept_plans import KeptPlan, kept_plan
from netbuilder.engines.gpu import gpu
from netbuilder.proto import NetDef
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from on_gpu import ON_GPU, gpus

pytestmark = pytest.mark.emulated
RNG = np.random.default_rng(7)
X = Tensor((2, 8, 5, 4), CHANNELS_LAST, "float32")
RECIPE, OTHER = Normalization(X, 1e-3), Normalization(X, 1e-3, limit=math.inf)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "cudnn_plans"


def files(folder):
    return sorted(path for path in folder.glob("*.plan"))


def built(cudnn):
    """The graphs of the double whose plan was built, not read."""
    return [graph for graph in cudnn.graphs if graph.built is not None and graph not in cudnn.restored]


def normalized(graph):
    """What a graph of ``RECIPE`` computes, and what it should."""
    numbers = {name: RNG.uniform(0.5, 2, 8) for name in ("scale", "bias", "mean", "variance")}
    x = RNG.normal(size=(2, 5, 4, 8))
    with gpu(0) as there:
        memory = {name: there.xp.asarray(value.astype(np.float32)) for name, value in {**numbers, "x": x}.items()}
        memory["y"] = there.xp.zeros(X.size, np.float32)
        graph.bind(memory, there.xp.empty(graph.workspace, np.uint8))()
        y = memory["y"].get().reshape(x.shape)
    return y, (x - numbers["mean"]) / np.sqrt(numbers["variance"] + 1e-3) * numbers["scale"] + numbers["bias"]


def test_a_kept_plan_computes_what_the_built_one_does(folder):
    with cudnn_double(keeps=True) as cudnn:
        np.testing.assert_allclose(*normalized(compiled(RECIPE, 0)), rtol=1e-5, atol=1e-5)
        assert len(built(cudnn)) == 1 and len(files(folder)) == 1
    with cudnn_double(keeps=True) as cudnn:
        graph = compiled(RECIPE, 0)
        assert (len(built(cudnn)), len(cudnn.restored)) == (0, 1)
        assert graph.workspace == 777
        np.testing.assert_allclose(*normalized(graph), rtol=1e-5, atol=1e-5)
        release_graphs()
        compiled(RECIPE, 0)
        compiled(RECIPE, 1)  # a GPU of the same kind
        assert (len(built(cudnn)), len(cudnn.restored)) == (0, 3)


def test_what_the_plan_depends_on_is_in_its_key(folder, monkeypatch):
    class Newer(CudnnDouble):
        def backend_version(self):
            return 92900

    def count(**options):
        release_graphs()
        compiled(options.pop("recipe", RECIPE), 0, **options)
        return len(files(folder))

    with cudnn_double(keeps=True):
        wide, small = (
            Normalization(Tensor(shape, CHANNELS_LAST, elements), 1e-3)
            for shape, elements in ((X.shape, "bfloat16"), ((1, *X.shape[1:]), "float32"))
        )
        counts = [count(), count(recipe=OTHER), count(recipe=Normalization(X, 1e-3)), count(recipe=wide)]
        counts += [count(limit=777), count(deterministic=True), count(recipe=small)]
        assert counts == [1, 2, 2, 3, 4, 5, 6]
        monkeypatch.setattr("netbuilder.engines.cudnn.compiled.machine", lambda: "another GPU")
        assert count() == 7
    monkeypatch.undo()
    monkeypatch.setenv(CACHE_VARIABLE, str(folder.parent))
    monkeypatch.setattr("cudnn_double.CudnnDouble", Newer)
    with cudnn_double(keeps=True) as cudnn:
        assert count() == 8 and len(built(cudnn)) == 1


def test_a_recipe_that_makes_another_graph_than_before_is_built(folder, monkeypatch):
    """As after a change of netbuilder's: the tensors' numbers are others."""
    with cudnn_double(keeps=True):
        compiled(RECIPE, 0)
    build = Normalization.build

    def changed(self, to):
        to.scalar("unused", 1.0, 4)
        build(self, to)

    monkeypatch.setattr(Normalization, "build", changed)
    with cudnn_double(keeps=True) as cudnn:
        compiled(RECIPE, 0)
        assert (len(built(cudnn)), len(files(folder))) == (1, 2)


@pytest.mark.parametrize("damage", ["half-written", "changed", "empty", "another's", "refused", "no plan", "a folder"])
def test_files_that_cannot_be_used_are_ignored_and_written_again(folder, damage):
    with cudnn_double(keeps=True):
        compiled(RECIPE, 0)
        (path,) = files(folder)
        compiled(OTHER, 0)
        (other,) = {*files(folder)} - {path}
    whole = path.read_bytes()
    if damage == "half-written":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "changed":
        path.write_bytes(whole[:-3] + b"???")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "another's":
        path.write_bytes(other.read_bytes())
    elif damage == "no plan":
        KeptPlan(path, whole[32:].partition(b"\0")[0].decode()).write(b"no plan")
    elif damage == "a folder":
        path.unlink()
        path.mkdir()
    with cudnn_double(keeps=True) as cudnn:
        cudnn.takes_plans = damage != "refused"
        graph = compiled(RECIPE, 0)
        assert (len(built(cudnn)), len(cudnn.restored)) == (1, 0)
        np.testing.assert_allclose(*normalized(graph), rtol=1e-5, atol=1e-5)
    if damage != "a folder":
        assert path.read_bytes() == whole


def test_plans_of_an_older_cudnn_make_room_for_those_of_the_present_one(folder, monkeypatch):
    """What cannot be read any more is used no more: it is removed first."""

    class Newer(CudnnDouble):
        def backend_version(self):
            return 92900

    with cudnn_double(keeps=True):
        compiled(RECIPE, 0)
        compiled(OTHER, 0)
    old = files(folder)
    for path in old:
        os.utime(path, (0, time.time() - 3 * 86400))
    monkeypatch.setattr(kept_files, "MOST_BYTES", 2 * max(path.stat().st_size for path in old) + 10)
    monkeypatch.setattr(kept_files, "_written", {})
    monkeypatch.setattr("cudnn_double.CudnnDouble", Newer)
    for builds in (2, 0):
        with cudnn_double(keeps=True) as cudnn:
            for recipe in (RECIPE, OTHER):
                np.testing.assert_allclose(*normalized(compiled(RECIPE, 0)), rtol=1e-5, atol=1e-5)
                compiled(recipe, 0)
            assert len(built(cudnn)) == builds
        assert len(files(folder)) == 2 and not {*old} & {*files(folder)}


def test_without_a_folder_plans_are_built(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"not a folder")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with cudnn_double(keeps=True) as cudnn:
        compiled(RECIPE, 0)
        release_graphs()
        compiled(RECIPE, 0)
        assert (len(built(cudnn)), len(cudnn.restored)) == (2, 0)


# Plans that a net lacks.


def net_of_layers(layers):
    ops = []
    for i in range(layers):
        x, y = f"x{i}", f"x{i + 1}"
        names = [f"{word}{i}" for word in ("scale", "bias", "mean", "variance")]
        ops += [
            make_op("Conv", [x, f"w{i}"], [f"c{i}"], kernel=1),
            make_op("SpatialBN", [f"c{i}", *names], [f"n{i}", *names[2:], f"m{i}", f"d{i}"]),
            make_op("Relu", [f"n{i}"], [y]),
        ]
    net = NetDef(name="net", op=ops)
    channels = [4 * (i + 1) for i in range(layers + 1)]
    feeds = {"x0": RNG.normal(size=(2, 4, 5, 5))}
    for i in range(layers):
        feeds[f"w{i}"] = RNG.normal(size=(channels[i + 1], channels[i], 1, 1))
        feeds |= {f"{word}{i}": RNG.uniform(0.5, 2, channels[i + 1]) for word in ("scale", "bias", "mean", "variance")}
    return net, {name: value.astype(np.float32) for name, value in feeds.items()}, f"x{layers}"


def run_net(net, feeds, output, device=None):
    workspace, own = Workspace(), NetDef()
    own.CopyFrom(net)
    if device is not None:
        own.device_option.CopyFrom(device)
    for name, value in feeds.items():
        workspace.feed(name, value, device)
    workspace.create_net(own)
    workspace.run_net("net")
    return workspace.fetch(output)


@pytest.fixture
def processes(monkeypatch):
    """The command of the processes, with a fault if one is set; two are started."""
    faults = []
    script = Path(__file__).parents[2] / "cudnn_double_process.py"
    monkeypatch.setattr(plan_processes, "command", lambda: [sys.executable, str(script), *faults])
    monkeypatch.setattr(plan_processes, "_cores", lambda: 2)
    return faults


def test_plans_that_are_missing_for_a_net_are_built_by_processes(folder, processes, caplog):
    net, feeds, output = net_of_layers(3)
    plain = run_net(net, feeds, output)
    with caplog.at_level(logging.WARNING, "netbuilder"), gpus(1), cudnn_double(keeps=True) as cudnn:
        np.testing.assert_allclose(run_net(net, feeds, output, ON_GPU), plain, rtol=1e-4, atol=1e-4)
        assert (len(built(cudnn)), len(cudnn.restored)) == (0, 6)
    assert len(files(folder)) == 6
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("cuDNN compiles kernels for ") and said.endswith(
        f": 6 graphs in 2 processes; later runs find them in {folder}"
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "netbuilder"), gpus(1), cudnn_double(keeps=True) as cudnn:
        processes.append("refuses")  # none is started
        np.testing.assert_allclose(run_net(net, feeds, output, ON_GPU), plain, rtol=1e-4, atol=1e-4)
        assert (len(built(cudnn)), len(cudnn.restored)) == (0, 6)
    assert not caplog.records


@pytest.mark.parametrize(("fault", "left", "why"), [("ends", 2, "killed"), ("refuses", 6, "TypeError: ")])
def test_what_processes_do_not_build_is_built_here(folder, processes, caplog, fault, left, why):
    net, feeds, output = net_of_layers(3)
    processes.append(fault)
    with caplog.at_level(logging.WARNING, "netbuilder"), gpus(1), cudnn_double(keeps=True) as cudnn:
        np.testing.assert_allclose(
            run_net(net, feeds, output, ON_GPU), run_net(net, feeds, output), rtol=1e-4, atol=1e-4
        )
        assert (len(built(cudnn)), len(cudnn.restored)) == (left, 6 - left)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 3 and all("a process that compiles cuDNN's kernels has ended" in text for text in texts[1:])
    assert all(why in text and "built here" in text for text in texts[1:])
    assert len(files(folder)) == 6


@pytest.mark.parametrize("keeps", [False, True])
def test_few_plans_are_built_here(folder, processes, caplog, keeps):
    net, feeds, output = net_of_layers(1)
    with caplog.at_level(logging.WARNING, "netbuilder"), gpus(1), cudnn_double(keeps=keeps) as cudnn:
        run_net(net, feeds, output, ON_GPU)
        assert len(built(cudnn)) == 2
    assert not caplog.records and len(files(folder)) == (2 if keeps else 0)


def test_a_plan_that_cannot_be_built_after_all(folder, monkeypatch):
    """The kernels are chosen again, without the graph: kernels of our own normalize."""
    net, feeds, output = net_of_layers(2)
    with gpus(1), cudnn_double(keeps=True) as cudnn:
        graph_class = type(cudnn.pygraph())
        build = graph_class.build_plans

        def failing(self, policy):
            if any(node.kind == "batchnorm" for node in self.nodes):
                raise cudnn.cudnnGraphNotSupportedError("no plan can be built")
            build(self, policy)

        monkeypatch.setattr(graph_class, "build_plans", failing)
        found = run_net(net, feeds, output, ON_GPU)
        assert {node.kind for graph in built(cudnn) for node in graph.nodes} == {"conv_fprop"}
    np.testing.assert_allclose(found, run_net(net, feeds, output), rtol=1e-4, atol=1e-4)


def _hold(folder, held, release):
    with plan_processes._alone(folder):
        held.set()
        release.wait(60)


def test_one_process_builds_while_the_others_wait(folder, caplog):
    spawn = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    held, release = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(folder, held, release))
    other.start()
    try:
        assert held.wait(60)
        kept = {kept_plan(str(i)): None for i in range(4)}
        for each in kept:
            each.write(b"plan")
        release_later = spawn.Process(target=_release, args=(release,))
        release_later.start()
        with caplog.at_level(logging.WARNING, "netbuilder"):
            plan_processes.build_in_processes("GPU 0", "a GPU", kept)  # finds them, after waiting
        release_later.join()
    finally:
        release.set()
        other.join()
    assert [record.getMessage() for record in caplog.records] == [
        "waits for another process, which compiles cuDNN's kernels"
    ]
    assert os.listdir(folder).count(".lock") == 1


def _release(event):
    import time

    time.sleep(0.5)
    event.set()
