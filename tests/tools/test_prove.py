"""netbuilder-prove: the table in small form, its bound, its options."""

import dataclasses
import json
import re
import shlex

import numpy as np
import pytest

from command_parsers import parser_of
from cudnn_double import cudnn_double
from house import ROOT
from kernel_checks import needs_bfloat16
from netbuilder.tools import prove
from netbuilder.tools.proof import processes
from netbuilder.tools.proof.blocks import trained_apart
from netbuilder.tools.proof.measure import METHODS, block_rule, difference, supports, trained
from netbuilder.tools.proof.models import OPTIMIZERS
from netbuilder.tools.proof.table import MODELS, Run
from on_gpu import gpus


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_the_table_in_small_form(model):
    """Sequences take long, and their parameters are dense as others are: two optimizers are enough for them."""
    check_table(model, ["SGD", "Adam"] if MODELS[model].last or MODELS[model].axes else OPTIMIZERS)


@pytest.mark.parametrize("number, model", list(enumerate(MODELS)))
@pytest.mark.one_in(8)
def test_every_model_and_every_optimizer_in_small_form(number, model):
    """Each model with one optimizer; they take turns."""
    check_table(model, [list(OPTIMIZERS)[number % len(OPTIMIZERS)]])


def check_table(model, optimizers):
    for optimizer in optimizers:
        found = list(prove.entries([model], [optimizer], [3], steps=2, methods=list(METHODS)))
        supported = [method for method in METHODS if supports(method, MODELS[model])]
        supported = [method for method in supported if method != "local SGD" or optimizer == "SGD"]
        assert [entry.method for entry in found] == ([] if MODELS[model].by_devices else supported)
        for entry in found:
            assert entry.devices == 3 and entry.difference < 1e-5, entry


@pytest.mark.parametrize(
    "options, models, methods",
    [
        ({"dtype": "bfloat16"}, ["GRU", "combined BN"], set(METHODS)),
        ({"memory_budget": "0.95"}, ["embedding inside", "LSTM", "combined BN"], set(METHODS)),
        ({"shared_model": True}, ["embedding outside", "LSTM", "attention"], {"Parallelize", "DataParallel"}),
        (
            {"dtype": "bfloat16", "memory_budget": "0.95", "shared_model": True},
            ["embedding inside", "combined BN"],
            {"Parallelize", "DataParallel"},
        ),
    ],
)
@pytest.mark.slow
def test_options_in_small_form(options, models, methods):
    bound = prove.BOUNDS[options.get("dtype", "float32")]
    found = list(prove.entries(models, ["SGD"], [3], 2, list(METHODS), options))
    assert {entry.method for entry in found} == methods
    assert {entry.model for entry in found} == set(models)
    for entry in found:
        assert entry.difference < bound, entry


@needs_bfloat16
def test_the_bound_of_bfloat16_notices_what_is_wrong():
    """Here normalization with each device's statistics; and the type has an effect."""
    model = MODELS["combined BN"]

    def parameters(devices, **options):
        changed = dataclasses.replace(model, options={**model.options, **options})
        return list(trained(changed, OPTIMIZERS["Adagrad"], devices, steps=3).values())

    exact, rounded = parameters(1), parameters(1, dtype="bfloat16")
    assert difference(rounded, exact) > 1e-4
    wrong = parameters(3, dtype="bfloat16", combine_spatial_bn=False)
    assert difference(wrong, rounded) > 2 * prove.BOUNDS["bfloat16"]


def test_methods_support_most_models():
    without = {method: {name for name in MODELS if not supports(method, MODELS[name])} for method in METHODS}
    options = {name for name in MODELS if MODELS[name].options}
    assert without["Parallelize"] == set() and len(options) < len(MODELS) / 2
    uneven = {name for name in MODELS if MODELS[name].last}
    assert without["ParallelDo"] == options and without["DataParallel"] == {"embedding outside", *uneven}
    assert without["BMUF"] == {*options, "embedding outside"} == without["local SGD"] - {"weighted"}


@pytest.mark.slow
def test_the_reference_of_blocks():
    """Also within a block; and a wrong rule is noticed."""
    chosen = MODELS["embedding inside"], OPTIMIZERS["SGD"], 2

    def apart(rule, steps):
        got, want = trained(*chosen, steps=steps, method="BMUF"), trained_apart(*chosen, rule, steps=steps)
        return difference(list(got.values()), list(want.values()))

    rule = block_rule(2)
    assert apart(rule, 3) < 1e-6 and apart(rule, 4) < 1e-6
    for wrong in ({"lookahead": 0.0}, {"momentum": 0.4}, {"learning_rate": 0.9}):
        assert apart(dataclasses.replace(rule, **wrong), 4) > 1e-4, wrong


def test_two_runs_on_one_device_are_equal():
    (entry,) = prove.entries(["LSTM"], ["Adam"], [1], steps=2)
    assert entry.difference == 0


@pytest.mark.one_in(6)
@pytest.mark.parametrize("model", MODELS)
def test_training_does_something(model):
    before, after = (list(trained(MODELS[model], OPTIMIZERS["SGD"], 1, steps=n).values()) for n in (1, 3))
    assert difference(after, before) > 1e-4


@pytest.mark.slow
def test_processes_in_small_form(tmp_path, capsys):
    """One start of two processes."""
    pytest.importorskip("mpi4py")
    path = tmp_path / "table.json"
    models = ["dense", "embedding outside", "BN of each device", "uneven combined BN"]
    chosen = ["--models", ",".join(models), "--optimizers", "SGD", "--devices", "2", "--processes", "2"]
    assert prove.main([*chosen, "--steps", "2", "--json", str(path)]) == 0
    without, head, *rows, worst = capsys.readouterr().out.splitlines()
    assert without.endswith("which these methods do not have: ParallelDo, DataParallel")
    assert head.split()[3:] == ["2", "x", "1"]
    found = [prove.Entry(**entry) for entry in json.loads(path.read_text())]
    several = {"rendezvous": None}
    assert [(entry.model, entry.method) for entry in found] == [
        (model, method)
        for model in models
        for method in METHODS
        if supports(method, MODELS[model].with_options(several))
    ]
    assert {entry.method for entry in found} == {"Parallelize", "local SGD", "BMUF"} and len(rows) == len(found)
    assert {(entry.processes, entry.devices) for entry in found} == {(2, 2)}
    assert max(entry.difference for entry in found) < 1e-5
    assert worst.startswith(f"worst of {len(found)} entries after 2 steps") and "2 devices of 2 processes" in worst


@pytest.mark.slow
def test_processes_of_one_device_each_have_one_copy(capsys):
    pytest.importorskip("mpi4py")
    chosen = ["--models", "dense,weighted,uneven weighted", "--optimizers", "SGD", "--steps", "2", "--shared-model"]
    assert prove.main([*chosen, "--devices", "1,2,4", "--processes", "2", "--methods", "Parallelize"]) == 0
    head, *rows, worst = capsys.readouterr().out.splitlines()
    assert head.split()[3:] == ["2", "x", "1"] and len(rows) == 3
    assert worst.startswith("worst of 3 entries after 2 steps with shared_model=True")


def test_processes_that_fail(capsys, monkeypatch):
    """The error is that of the command; what the processes write is above it."""
    monkeypatch.setattr(processes, "launch", lambda job: 3 if job.processes == 2 else pytest.fail("not started"))
    assert prove.main(["--models", "dense", "--optimizers", "SGD", "--processes", "1", "2", "--devices", "2"]) == 1
    assert "netbuilder-prove: 2 processes that train together have failed, with status 3" in capsys.readouterr().err


def test_the_program_of_a_process(tmp_path):
    """Here of the only one: it writes the parameters of each run, and nothing if the budget is too small."""
    runs = [Run("both on one table", "SGD", "Parallelize", 1), Run("dense", "SGD", "Parallelize", 1)]
    for folder, budget in (("large", "1GiB"), ("small", 0.5)):
        (tmp_path / folder).mkdir()
        order = {"runs": runs, "steps": 1, "options": {"memory_budget": budget}}
        (tmp_path / folder / "order.json").write_text(json.dumps(order))
        assert processes.main([str(tmp_path / folder)]) == 0
    assert not list((tmp_path / "small").glob("*.npz"))
    for number, run in enumerate(runs):
        found = np.load(tmp_path / "large" / f"{number}.0.npz")
        assert difference(list(found.values()), list(run.trained(1, {}).values())) == 0


def test_the_command_prints_the_table_and_holds_the_bound(tmp_path, capsys):
    path = tmp_path / "table.json"
    chosen = [
        "--models",
        "embedding inside,both on one table",
        "--optimizers",
        "SGD",
        "--devices",
        "1,2",
        "--steps",
        "2",
        "--methods",
        "ParallelDo",
    ]
    assert prove.main([*chosen, "--json", str(path)]) == 0
    head, first, second, worst = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["model", "optimizer", "method"] and "2 devices" in head
    assert first.startswith("embedding inside      SGD         ParallelDo") and second.startswith("both on one table")
    assert worst.startswith("worst of 4 entries after 2 steps")
    assert [entry["devices"] for entry in json.loads(path.read_text())] == [1, 2, 1, 2]
    assert prove.main([*chosen, "--bound", "1e-12"]) == 1
    assert "is above the bound" in capsys.readouterr().err


def test_the_command_says_its_options_and_what_is_left_out(capsys):
    chosen = ["--models", "embedding inside", "--optimizers", "SGD", "--devices", "2", "--steps", "1", "--shared-model"]
    assert prove.main([*chosen, "--dtype", "bfloat16"]) == 0
    without, _, *rows, worst = capsys.readouterr().out.splitlines()
    assert without == "left out, since these methods have no shared_model: ParallelDo, local SGD, BMUF"
    assert [row.split()[3] for row in rows] == ["Parallelize", "DataParallel"]
    assert "after 1 steps with dtype=bfloat16, shared_model=True: " in worst and worst.endswith("the bound is 8e-03")


def test_a_budget_that_is_too_small_leaves_entries_out(capsys, tmp_path):
    path = tmp_path / "table.json"
    chosen = [
        "--optimizers",
        "SGD",
        "--devices",
        "1,2",
        "--steps",
        "1",
        "--methods",
        "Parallelize",
        "--json",
        str(path),
    ]
    assert prove.main([*chosen, "--models", "both on one table", "--memory-budget", "0.5"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[-2:] == ["-", "-"] and "2 of 2 entries are missing (-)" in said.out
    assert "too small for all models; give a larger one" in said.err
    assert [entry["difference"] for entry in json.loads(path.read_text())] == [None, None]


def test_models_that_need_options_of_parallelize(capsys):
    assert prove.main(["--models", "embedding moved out", "--methods", "ParallelDo", "--steps", "1"]) == 1
    assert "these methods support none of the models and optimizers; add Parallelize" in capsys.readouterr().err


def test_the_measure():
    assert difference([np.zeros(4)], [np.full(4, 1e-9)]) == pytest.approx(1e-3)  # against 1e-6 in the mean
    assert difference([np.float32([3, 4]), np.float32([1])], [np.float32([3, 4]), np.float32([0])]) == 0.2


@pytest.mark.parametrize(
    "arguments, match",
    [
        (["--models", "embedding"], "invalid choice: 'embedding'; did you mean .*'embedding inside"),
        (["--optimizers", "sgd"], "invalid choice: 'sgd'; did you mean 'SGD'"),
        (["--methods", "Parallel"], "invalid choice: 'Parallel'; did you mean 'Parallel"),
        (["--devices", "5"], "must be numbers that divide 24"),
        (["--devices", "2,two"], "argument --devices: must be a positive whole number, got 'two'"),
        (["--dtype", "float8"], "argument --dtype: invalid choice: 'float8'"),
        (["--memory-budget", "1.5"], r"must be a number of bytes, such as .*; got '1.5'"),
        (["--processes", "0"], "argument --processes: must be a positive whole number, got '0'"),
        (["--processes", "3", "--devices", "1,2,4"], "3 processes cannot .*none of --devices 1,2,4 is a multiple of 3"),
        (
            ["--processes", "1,2,3", "--devices", "2,6", "--shared-model"],
            "--shared-model: processes .* one device each; add 3 to --devices, or omit it from --processes",
        ),
    ],
)
def test_options(arguments, match, capsys):
    with pytest.raises(SystemExit):
        prove.main(arguments)
    assert re.search(match, capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments, present, match",
    [
        (["--dtype", "float16"], 0, "activations are stored as float16 on GPUs only; this machine has no NVIDIA GPU"),
        (["--gpus"], 0, "--gpus: this machine has no NVIDIA GPU that CuPy can use; run it where there is one"),
        (["--gpus", "--devices", "1,4,8"], 2, "--devices: this machine has 2 GPUs, not 4, 8"),
    ],
)
def test_gpus_that_are_missing(arguments, present, match, capsys, monkeypatch):
    monkeypatch.setattr(prove, "gpu_count", lambda: present)
    assert prove.main(arguments) == 1
    assert match in capsys.readouterr().err


@pytest.mark.emulated
@pytest.mark.parametrize(
    "arguments, match",
    [
        (["--devices", "2", "--processes", "2"], "--processes: with GPUs there is one process"),
        (["--shared-model"], "--shared-model: with GPUs there is one process, whose replicas do not share"),
    ],
)
def test_what_gpus_cannot_do(arguments, match, capsys):
    with gpus(2), pytest.raises(SystemExit):
        prove.main(["--dtype", "float16", *arguments])
    assert re.search(match, capsys.readouterr().err)


@pytest.mark.emulated
def test_float16_on_gpus(capsys, tmp_path):
    """All models whose gradients are dense; the methods that scale them."""
    path = tmp_path / "table.json"
    with cudnn_double() as cudnn:
        chosen = ["--dtype", "float16", "--steps", "2", "--optimizers", "SGD", "--devices", "1,2,3"]
        chosen += ["--json", str(path)]
        assert prove.main(chosen) == 0
        types = {tensor.type.name for graph in cudnn.graphs for tensor in graph.tensors if tensor.in_memory}
    without, _, *_, worst = capsys.readouterr().out.splitlines()
    assert without == "left out, since these methods have no gradient_scaling: ParallelDo, local SGD, BMUF"
    assert "after 2 steps on GPUs with dtype=float16: " in worst and worst.endswith("the bound is 2e-03")
    found = [prove.Entry(**entry) for entry in json.loads(path.read_text())]
    assert {entry.model for entry in found} == {
        "dense", "uneven dense", "weighted", "uneven weighted", "combined BN", "uneven combined BN",
    }  # fmt: skip
    assert {entry.devices for entry in found} == {1, 2, 3} and {entry.method for entry in found} == {
        "Parallelize", "DataParallel",
    }  # fmt: skip
    assert 1e-7 < max(entry.difference for entry in found) < prove.BOUNDS["float16"] and "HALF" in types


@pytest.mark.emulated
def test_the_bound_of_float16_notices_what_is_wrong():
    """As for bfloat16: normalization with each device's statistics."""
    model, options = MODELS["combined BN"], {"cpu_device": False, "dtype": "float16", "gradient_scaling": prove.SCALE}

    def parameters(devices, **changes):
        changed = dataclasses.replace(model, options={**model.options, **options, **changes})
        return list(trained(changed, OPTIMIZERS["Adagrad"], devices, steps=3).values())

    with cudnn_double():
        rounded = parameters(1)
        assert difference(rounded, parameters(1, dtype="float32", gradient_scaling=None)) > 1e-5
        assert difference(parameters(3, combine_spatial_bn=False), rounded) > 2 * prove.BOUNDS["float16"]


@pytest.mark.emulated
def test_float32_on_gpus_in_small_form():
    """Every method that can; embeddings, sequences and block-wise updates are on GPUs, too."""
    models = ["embedding inside", "GRU", "uneven combined BN"]
    chosen = ["embedding outside", *models]
    found = list(prove.entries(chosen, ["SGD"], [2], 2, list(METHODS), {"cpu_device": False}))
    assert {entry.method for entry in found} == set(METHODS) and {entry.model for entry in found} == set(models)
    for entry in found:
        assert entry.difference < 1e-5, entry


@pytest.mark.emulated
def test_float16_with_kernels_that_run():
    with cudnn_double():
        assert prove.main(["--dtype", "float16", "--steps", "2", "--optimizers", "Adam", "--devices", "1,2"]) == 0


def test_commands_of_the_page():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    lines = [shlex.split(line) for line in re.findall(r"^    (netbuilder-prove.*)", page, re.M)]
    every = len(MODELS)
    assert [len(parser_of(prove).parse(line[1:]).models) for line in lines] == [every, 2, every, every, 3, every, 2]
