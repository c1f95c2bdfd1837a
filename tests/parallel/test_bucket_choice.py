"""bucket_bytes="auto": chosen in the first steps, the same on all ranks, kept by checkpoints; the numbers stay."""

import logging

import pytest

from netbuilder import parallel
from netbuilder.distributed import Rendezvous
from netbuilder.graph.replicas import Replicas
from netbuilder.model import ModelHelper
from netbuilder.parallel.bucket_choice import RECORDED, WARM_UP
from netbuilder.parallel.process_exchange import gradient_bytes
from netbuilder.parallel.simulation.links import Link
from netbuilder.passes.processes import DEFAULT_BUCKET_BYTES
from netbuilder.proto import ArgumentError, NetError
from netbuilder.runtime import Workspace
from parallel_models import OPTIMIZERS, distance, no_input
from process_training import IMAGES, Case, build_case, results, train_built, train_case, train_steps
from thread_ranks import on_ranks, use_thread_worlds
from toy_models import chain, mlp, normalized

STEPS = WARM_UP + RECORDED
FAR = Link(10.0, 1e12)  # where each message costs
EQUAL = Link(0.0, 1e18)


@pytest.fixture
def link(monkeypatch):
    """A function that lets the link between the ranks be another one."""
    use_thread_worlds(monkeypatch, 2)
    return lambda given: monkeypatch.setattr("netbuilder.parallel.simulation.planning.fit_link", lambda *args: given)


def slow(case):
    """A link on which buckets of all gradients are slow, and each gradient alone is fast."""
    bytes_of_4 = 8 if "strategy" in case.options else 4  # with positions
    found = gradient_bytes(*build_case(case, 1, Rendezvous(2, 0))).values()
    sizes = [nbytes // 4 * bytes_of_4 for nbytes in found]
    return Link(0.0, 1e2, ((max(sizes) + 1, 1e9), (sum(sizes) - 1, 1e2)))


def case_of(forward=mlp, steps=STEPS + 3, inputs=None, **options):
    given = {"inputs": inputs} if inputs else {}
    return Case(forward, sizes=(24,) * steps, options={"bucket_bytes": "auto", **options}, **given)


def buckets_of(model):
    gradients = gradient_bytes(model, Replicas.load(model.net.Proto()))
    return sum(op.type.startswith("Allreduce") and op.output[0] in gradients for op in model.net.Proto().op)


def sizes_of(model, workspace):
    record = Replicas.load(model.net.Proto())
    return record.bucket_bytes, int(workspace.fetch(record.bucket_size)[0])


def train(case, devices=2):
    built = [build_case(case, devices, Rendezvous(2, rank)) for rank in range(2)]
    workspaces = on_ranks(2, lambda rank: train_built(case, *built[rank], True), timeout=60)
    return [(model, record, workspace) for (model, record), workspace in zip(built, workspaces)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "case, devices",
    [
        (case_of(), 2),
        (case_of(strategy="topk:1"), 1),
        (case_of(normalized, inputs=IMAGES, combine_spatial_bn=True), 2),
        (case_of(chain(6, 16, normalized=False), inputs=IMAGES, memory_budget=0.95, net_type="simple"), 1),
    ],
    ids=["dense", "residuals", "statistics", "a budget"],
)
@pytest.mark.parametrize("is_slow", [True, False], ids=["slow", "far"])
def test_two_ranks_choose_one_size_and_train_what_one_process_does(is_slow, case, devices, link, caplog):
    link(slow(case) if is_slow else FAR)
    with caplog.at_level(logging.INFO, "netbuilder"):
        found = train(case, devices)
    sizes = [sizes_of(model, workspace) for model, _, workspace in found]
    assert sizes[0] == sizes[1] and sizes[0][0] == sizes[0][1]
    assert (sizes[0][0] < DEFAULT_BUCKET_BYTES) == is_slow
    assert (buckets_of(found[0][0]) > 1) == is_slow
    (line,) = [record.getMessage() for record in caplog.records if "repeats this" in record.getMessage()]
    assert f"bucket_bytes={sizes[0][0]} repeats this" in line
    alone = Case(case.forward, case.inputs, case.sizes, options={**case.options, "strategy": None})
    want = train_case(alone, 2 * devices)[-1]
    for _, record, workspace in found:
        got = results(record, workspace)
        assert distance([got[each] for each in want], list(want.values())) < 1e-5


def test_the_numbers_are_those_of_that_size_from_the_beginning(link):
    link(slow(case_of()))
    (model, record, workspace), _ = train(case_of(deterministic=True))
    size, _ = sizes_of(model, workspace)
    (_, _, fixed), _ = train(case_of(deterministic=True, bucket_bytes=size))
    for name, value in results(record, workspace).items():
        assert value.tobytes() == fixed.fetch(record.blobs(name)[0]).tobytes(), name


def test_a_checkpoint_has_the_size_and_the_resumed_run_measures_nothing(link, monkeypatch):
    link(slow(case_of()))
    whole, rest = case_of(steps=STEPS + 4), 2
    first = case_of(steps=STEPS + 2)
    found = train(first)
    model, _, workspace = found[0]
    names = sorted(map(str, parallel.GetCheckpointParams(model)))
    saved = {name: workspace.fetch(name) for name in names}
    assert sizes_of(model, workspace)[0] == saved["net_bucket_bytes"][0] < DEFAULT_BUCKET_BYTES
    want = train(whole)[0]

    def refuse(*args):
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr("netbuilder.parallel.bucket_choice.sweep_rounds", refuse)
    built = [build_case(whole, 2, Rendezvous(2, rank)) for rank in range(2)]
    after = Case(whole.forward, whole.inputs, whole.sizes[-rest:])
    batches = [*whole.batches()]
    monkeypatch.setattr(Case, "batches", lambda self: iter(batches[-len(self.sizes) :]))

    def resume(rank):
        model, record = built[rank]
        workspace = Workspace(threads=2)
        parallel.RunInitNet(model, workspace=workspace)
        for name, value in saved.items():
            workspace.feed(name, value)
        parallel.FinalizeAfterCheckpoint(model, workspace=workspace)
        train_steps(after, model, record, workspace, True)
        return workspace

    for (model, record), resumed in zip(built, on_ranks(2, resume, timeout=60)):
        assert sizes_of(model, resumed) == (saved["net_bucket_bytes"][0],) * 2
        for name, value in results(record, resumed).items():
            assert value.tobytes() == want[2].fetch(record.blobs(name)[0]).tobytes(), name


def test_where_no_size_is_clearly_faster_it_stays(link):
    link(EQUAL)
    (model, _, workspace), _ = train(case_of())
    assert sizes_of(model, workspace) == (DEFAULT_BUCKET_BYTES,) * 2


@pytest.mark.slow
def test_one_call_for_all_steps(link):
    """The steps of a call are as many as it was asked for."""
    case = case_of()
    link(slow(case))
    built = [build_case(case, 1, Rendezvous(2, rank)) for rank in range(2)]

    def run(rank):
        model, _ = built[rank]
        workspace = Workspace(threads=1, seed=3)
        parallel.RunInitNet(model, workspace=workspace)
        for name, rows in next(case.batches()).items():
            workspace.feed(f"cpu_0/{name}", rows)
        parallel.RunNet(model, STEPS + 5, workspace=workspace)
        assert sizes_of(model, workspace)[0] < DEFAULT_BUCKET_BYTES
        return int(workspace.fetch("optimizer_iteration")[0])

    assert on_ranks(2, run, timeout=60) == [STEPS + 5] * 2


def test_one_process_has_nothing_to_choose_and_the_same_checkpoints():
    case = case_of()
    model, _, workspace, _ = train_case(case, 2)
    assert workspace.fetch("net_bucket_bytes").tolist() == [0]
    several, _ = build_case(case, 1, Rendezvous(2, 0))
    assert parallel.GetCheckpointParams(model) == parallel.GetCheckpointParams(several)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"bucket_bytes": "fast"}, TypeError, "bucket_bytes must be an integer or 'auto', got 'fast'"),
        ({"strategy": "zero:1"}, NetError, "strategy='zero:1' does not exchange gradients in buckets that can be"),
        ({"strategy": "local_sgd:4"}, NetError, "bucket_bytes='auto': strategy='local_sgd:4' .* number of bytes"),
        ({"accumulate_steps": 2}, NetError, "after the last micro-batch, where no size hides more; give a number"),
        ({"strategy": "threshold:0.1"}, ArgumentError, "strategy 'threshold:0.1' cannot be simulated"),
        ({"make": parallel.Parallelize_GPU}, NetError, "gradients of GPUs are not exchanged by operators that can be"),
    ],
)
@pytest.mark.filterwarnings("ignore:GPUs .0. are not on this machine")
def test_what_is_refused(options, error, text):
    given = {"bucket_bytes": "auto", "devices": [0], "rendezvous": Rendezvous(2, 0), **options}
    make = given.pop("make", parallel.Parallelize_CPU)
    with pytest.raises(error, match=text):
        make(ModelHelper("net"), no_input, mlp, optimizer_builder_fun=OPTIMIZERS["momentum"], **given)
