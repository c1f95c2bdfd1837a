"""netbuilder-train: options from files, uneven and micro-batches, schedules, what it writes and warns of."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from netbuilder.graph import Net
from netbuilder.graph.memory_budget import parse_budget
from netbuilder.proto import NetError
from netbuilder.runtime import Workspace
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.callbacks import Callback
from netbuilder.tools.training.config import config_arguments, plain_arguments, read_config
from netbuilder.tools.training.images import Images
from netbuilder.tools.training.metrics import Metrics
from netbuilder.tools.training.models import policy_of
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Evaluation, Run
from netbuilder.tools.training.sanity_warnings import SanityWarnings, first_not_finite
from netbuilder.tools.training.step_timing import StepTiming
from small_training import BASE, images, run_of


def parameters(run):
    return [run.model.workspace.fetch(f"cpu_0/fc{k}_{part}") for k in range(3) for part in "wb"]


@pytest.mark.parametrize(
    "arguments",
    [["--devices=0,1,2"], ["--devices=0,1,2,3"], ["--accumulate-steps=3"], ["--devices=0,1", "--accumulate-steps=2"]],
    ids=" ".join,
)
@pytest.mark.parametrize("more", [[], ["--label-smoothing=0.1", "--warmup-epochs=1"]], ids=["plain", "smoothed"])
@pytest.mark.one_in(6)
def test_devices_and_micro_batches_change_nothing_though_the_last_batch_is_uneven(arguments, more):
    found = []
    for ways in ([], arguments):
        run = run_of(*ways, *more)
        assert run.steps == 4  # 12, 12, 12 and 5 samples
        epochs = [run.train_epoch(number) for number in (1, 2)]
        found.append((parameters(run), [(e.loss, e.accuracy) for e in epochs], run.evaluation()))
    for got, want in zip(found[1][0], found[0][0]):
        assert np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-6 * want.size**0.5) < 1e-5
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)
    ours, theirs = (dataclasses.astuple(each[2])[:4] for each in found)  # without the confusion matrix
    assert theirs == pytest.approx(ours, rel=1e-5)


def test_evaluation_counts_each_sample_once():
    run = run_of("--devices=0,1,2,3", "--batch=8")  # 13 held-out samples: 8 and 5
    found = run.evaluation()
    test = images(13)
    x = test.images.reshape(len(test), -1)
    w = parameters(run)
    for k in range(3):
        x = x @ w[2 * k].T + w[2 * k + 1]
        x = np.maximum(x, 0) if k < 2 else x
    order = (-x).argsort(axis=1, kind="stable")
    assert found.samples == 13
    assert found.top1 == np.mean(order[:, 0] == test.labels)
    exact = np.exp(x - x.max(axis=1, keepdims=True).astype(np.float64))
    exact /= exact.sum(axis=1, keepdims=True)
    assert found.loss == pytest.approx(-np.log(exact[np.arange(13), test.labels]).mean(), rel=1e-5)
    assert found.top5 == np.mean((order[:, :5] == test.labels[:, None]).any(axis=1))


def test_the_warm_up():
    options = parse([*BASE, "--warmup-epochs=2", "--policy=step", "--step-epochs=3", "--gamma=0.1", "--epochs=9"])
    policy, arguments = policy_of(options, 10)
    assert policy == "composite"
    assert arguments["sub_policy_num_iters"] == [20, 70]
    assert arguments["sub_policy_1_stepsize"] == 30 and arguments["sub_policy_1_gamma"] == 0.1
    assert policy_of(parse(BASE), 10) == ("fixed", {})
    run = run_of("--warmup-epochs=2", "--warmup-start=0")
    rates = [run.train_epoch(number).learning_rate for number in (1, 2)]
    np.testing.assert_allclose(rates, [0.02 * 3 / 8, 0.02 * 7 / 8], rtol=1e-6)


def test_the_rate_for_another_batch():
    assert parse([*BASE, "--base-batch=24"]).scaled_rate == 0.01
    assert parse(BASE).scaled_rate == 0.02


def test_scales_of_normalizations_need_not_decay():
    def decays(*more):
        run = Run(parse(["--cpu", "--model=resnet8-cifar", "--batch=4", *more]), *[square_images()] * 2)
        ops = run.model.train.net.Proto().op
        return {op.input[2] for op in ops if op.type == "WeightedSum" and len(op.input) == 4}

    every, some = decays("--norm-decay"), decays()
    assert some < every and all(re.search(r"_s$|_w$|_b$", name) for name in every - some)
    assert not [name for name in some if "bn" in name or "norm" in name]


def square_images():
    rng = np.random.default_rng(0)
    return Images(rng.standard_normal((8, 3, 8, 8)).astype(np.float32), np.arange(8, dtype=np.int32) % 3)


def test_options_from_files(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"model": "mlp", "optimization": {"batch_size": 32, "epochs": 3}}))
    options = parse(["--cpu", "--config", str(tmp_path / "a.json"), "--epochs=4"])
    assert (options.model, options.batch, options.epochs) == ("mlp", 32, 4)
    if sys.version_info >= (3, 11):
        (tmp_path / "b.toml").write_text('model = "mlp"\ncpu = true\ndevices = [0, 2]\n[policy-arg]\ngamma = 0.5\n')
        options = parse([f"--config={tmp_path / 'b.toml'}", "--policy=exp"])
        assert options.devices == (0, 2) and options.policy_args == {"gamma": 0.5} and options.cpu


def test_a_run_writes_its_options_and_its_course(tmp_path):
    out = tmp_path / "run"
    given = ["--cpu", "--model=mlp", "--epochs=1", "--batch=360", f"--out={out}", "--weight-decay=0"]
    command = [sys.executable, "-m", "netbuilder.tools.imagenet_trainer", *given]  # in memory that was never used
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    planned = said.index("memory planned for a step: ")
    assert planned < said.index("epoch 1/1") < said.index("memory of the process: at most ")
    assert re.search(
        r"step: \d\.\d MiB \(intermediate values \d+\.\d [KM]iB, parameters 198\.5 KiB, state 198\.5 KiB, ", said
    )
    assert said.count("memory planned") == said.count("memory of the process: ") == 1
    sizes = r"expected after the first step: ([\d.]+ [MG])iB.*memory of the process: at most ([\d.]+ [MG])iB"
    expected, most = (parse_budget(text, "test") for text in re.search(sizes, said, re.S).groups())
    assert 10 << 20 < expected <= most
    assert re.search(r"  input \d.* forward \d.* backward \d.* exchange 0.00 s .* update \d", said)
    assert "(top-5 " in said
    assert shlex.split((out / "command.txt").read_text()) == ["netbuilder-train", *given]
    again = parse([f"--config={out / 'options.json'}"])
    assert again == parse(given)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["step"] * 4 + ["epoch"]
    assert [line["samples"] for line in lines[:-1]] == [360, 360, 360, 358]
    assert lines[-1]["step"] == 4 and 0 < lines[-1]["top1"] <= lines[-1]["top5"] <= 1
    assert lines[-1]["loss"] == pytest.approx(np.average([l["loss"] for l in lines[:-1]], weights=[360] * 3 + [358]))


@pytest.mark.parametrize(
    ("batch", "timed"),
    [(20, [20, 20]), (12, [12, 12]), (50, [41])],  # of 41 samples: 20, 20, 1; 12, 12, 12, 5; 41
)
def test_steps_with_a_whole_batch_are_timed(batch, timed, monkeypatch):
    run, found = run_of(f"--batch={batch}"), []

    def note(timing, model, as_before=StepTiming.run):
        found.append(len(model.workspace.fetch("cpu_0/label")))
        as_before(timing, model)

    monkeypatch.setattr(StepTiming, "run", note)
    assert sum(run.train_epoch(1).shares.values()) == pytest.approx(1)
    assert found == timed


@pytest.mark.one_in(2)
@pytest.mark.parametrize("more", [[], ["--accumulate-steps=2"]], ids=["plain", "micro-batches"])
def test_memory_is_planned_before_the_first_step_which_runs_this_plan(more):
    options = parse(["--cpu", "--model=resnet8-cifar", "--batch=4", "--devices=0,1", *more])
    found = []

    class Note(Callback):
        def after_plan(self, run, memory):
            note(run, memory)

    def note(run, memory):
        nets = [net for net in map(run.model.workspace.net, run.model.workspace.nets()) if "_train" in net.name]
        plans = [net.plan_ahead() for net in nets]
        arena = run.model.workspace.arena.memory(memory.arena)
        found.append((memory, arena.any(), nets, plans))

    run = Run(options, *[square_images()] * 2, [Note()])
    run.train_epoch(1)
    [(memory, written, nets, plans)] = found
    assert memory.whole and memory.arena and memory.state >= memory.parameters > 0 and not written
    assert [net.plan_ahead() for net in nets] == plans and len(nets) == 1 + len(more)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("more", [[], ["--accumulate-steps=2"]], ids=["plain", "micro-batches"])
def test_the_speed_up_is_measured(capsys, more):
    assert main(["--cpu", "--model=mlp", "--epochs=1", "--devices=0,1", "--measure-speed-up", *more]) == 0
    said = capsys.readouterr().out
    found = re.search(r"speed-up: .* (\d+\.\d) ms on 2 devices, and (\d+\.\d) ms on one: (\d+\.\d\d) times", said)
    assert found and float(found[3]) > 0


def test_one_device_alone_has_no_speed_up(capsys):
    assert main(["--cpu", "--model=mlp", "--measure-speed-up", "--epochs=1"]) == 0
    assert capsys.readouterr().out.startswith("speed-up cannot be measured on a single device")


def test_caffe2_spellings():
    given = ["--train_data=digits", "--num_gpus=2", "--batch_size", "64", "--num_epochs=3", "--use_cpu"]
    options = parse([*plain_arguments(given), "--base_learning_rate=0.5", "--weight_decay=0"])
    assert (options.data, options.devices, options.batch, options.epochs) == ("digits", (0, 1), 64, 3)
    assert (options.learning_rate, options.weight_decay, options.cpu) == (0.5, 0, True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"modle": "mlp"}', "unknown option 'modle'; did you mean"),
        (
            "a.json",
            "{",
            "a.json': line 1, column 2: Expecting property name enclosed in double quotes; this is not JSON",
        ),
        ("a.yaml", "batch: 010", "a.yaml': line 1, column 8: 010 is octal in YAML 1.1"),
        ("a.toml", "batch = 1\nbatch = 2\n", "a.toml': line 2, column 10: cannot overwrite a value; this is not TOML"),
        ("a.json", "[1]", "must hold options by name, got list"),
        ("a.ini", "", "must end in .toml"),
    ],
)
def test_files_that_are_wrong(tmp_path, name, text, message, capsys):
    (tmp_path / name).write_text(text)
    for path, said in ((tmp_path / name, message), (tmp_path / "absent.json", "no such file")):
        with pytest.raises((SystemExit, NetError)) as found:  # a file that cannot be read is no wrong option
            parse(["--cpu", f"--config={path}"])
        assert (found.type is SystemExit) == ("unknown option" in said)
        assert said in capsys.readouterr().err + str(found.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--accumulate-steps=0"], "--accumulate-steps must be positive"),
        (["--label-smoothing=1"], "--label-smoothing must be in"),
        (["--warmup-epochs=-1"], "--warmup-epochs must not be negative"),
        (["--base-batch=0"], "--base-batch must be positive"),
        (["--seed=-1"], "--seed must not be negative, got -1"),
        (["--momentum=1"], "--momentum must be in [0, 1), got 1"),
        (["--weight-decay=-0.1"], "--weight-decay must not be negative"),
        (["--epochs=2", "--warmup-epochs=3"], "--warmup-epochs must be at most --epochs (2), got 3"),
    ],
)
def test_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit):
        parse(["--cpu", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "make", "package"),
    [
        ("yaml", lambda path: read_config(path / "a.yaml"), "pyyaml"),
        ("tomllib", lambda path: read_config(path / "a.toml"), "tomli"),
        ("tensorboardX", lambda path: Metrics(events=str(path)), "tensorboardX"),
        ("matplotlib.figure", lambda path: Metrics(plot=str(path / "a.png")), "matplotlib"),
    ],
)
def test_packages_that_are_missing_are_named(tmp_path, monkeypatch, module, make, package):
    for name in ("a.yaml", "a.toml"):
        (tmp_path / name).write_text("")
    for name in (module, "tomli") if module == "tomllib" else (module,):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NetError, match=f"package {package}; pip install 'netbuilder"):
        make(tmp_path)


def test_yaml(tmp_path):
    pytest.importorskip("yaml")
    (tmp_path / "a.yaml").write_text("model: mlp\noptimization:\n  batch: 32\n")
    assert config_arguments(read_config(tmp_path / "a.yaml")) == ["--model=mlp", "--batch=32"]


def test_curves(tmp_path):
    pytest.importorskip("matplotlib")
    with Metrics(plot=str(tmp_path / "a" / "curves.png")) as metrics:
        for number in (1, 2):
            metrics.epoch(number, number, {"loss": 1 / number, "top1": 0.5, "rate": 3.0})
    assert (tmp_path / "a" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("epochs", [1, 2, 3, 30])
def test_curves_have_titles_and_ticks_at_whole_epochs(tmp_path, monkeypatch, epochs):
    figure = pytest.importorskip("matplotlib.figure")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, file, **how: (drawn.append(self), self.canvas.draw()))
    with Metrics(plot=str(tmp_path / "curves.png"), title="mlp on digits") as metrics:
        metrics._epochs = [{"epoch": n, "loss": 1.0, "rate": 1.0} for n in range(1, epochs)]  # of a run before
        metrics.epoch(
            epochs, 1, {"loss": 0.5, "held_out_loss": 0.75, "training_accuracy": 0.5, "top1": 0.5, "rate": 1.0}
        )
    assert drawn[0].get_suptitle() == "mlp on digits"
    assert [axes.get_title() for axes in drawn[0].axes] == ["Loss", "Accuracy", "Images per second"]
    loss = drawn[0].axes[0]
    assert [line.get_label() for line in loss.lines] == ["training", "held out"]
    assert loss.lines[1].get_ydata()[-1] == 0.75 and loss.get_xlabel() == "epoch"
    ticks = loss.get_xticks()
    assert all(tick == int(tick) for tick in ticks) and set(ticks).intersection(range(1, epochs + 1))


def test_curves_go_on_where_a_run_is_resumed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    lines, drawn = tmp_path / "metrics.jsonl", []
    monkeypatch.setattr(Metrics, "draw", lambda self, path: drawn.append([e["epoch"] for e in self._epochs]))
    with Metrics(str(lines)) as metrics:
        for number in (1, 2, 2, 3):
            metrics.epoch(number, number, {"loss": 1.0})
    with open(lines, "a") as file:
        file.write('{"kind": "ep\n')  # as an interrupted program leaves it
    with Metrics(str(lines), plot=str(tmp_path / "curves.png")) as metrics:
        metrics.read_earlier(2)
        metrics.epoch(3, 3, {"loss": 0.5})
    assert drawn == [[1, 2, 3]]


@pytest.mark.parametrize("option", ["metrics", "plot", "tensorboard"])
def test_what_cannot_be_written_ends_the_program_before_it_trains(tmp_path, option, capsys):
    (tmp_path / "file").touch()
    assert main(["--cpu", "--model=mlp", "--epochs=1", f"--{option}={tmp_path / 'file' / 'below' / 'a.png'}"]) == 1
    said = capsys.readouterr()
    assert f"netbuilder-train: --{option}: no file can be written in" in said.err and not said.out


def test_pictures_of_an_unknown_kind(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(
        NetError, match=r"--plot: .*curves.txt' must end in .png or another ending that matplotlib writes: .*svg"
    ):
        Metrics(plot=str(tmp_path / "curves.txt"))


def test_event_files(tmp_path):
    pytest.importorskip("tensorboardX")
    with Metrics(events=str(tmp_path)) as metrics:
        metrics.step(1, {"loss": 1.0})
        metrics.epoch(1, 1, {"loss": 1.0})
    assert any(path.name.startswith("events") for path in tmp_path.iterdir())


def test_warnings_of_runs_that_learn_nothing(capsys):
    watch = SanityWarnings()
    watch.batch(np.zeros((4, 1, 2, 2)), np.arange(4))
    watch.batch(np.random.default_rng(0).random((20, 1, 2, 2)), np.full(20, 3))
    for _ in range(4):
        watch.epoch(0.1, 0.1, 10)
    SanityWarnings().epoch(1.0, 1.0, 10)
    found = capsys.readouterr().err.splitlines()
    assert len(found) == 4
    parts = ("all pixels of the 4 images", "labels of a batch are 3", "at chance (10.0%) for 3", "100% after")
    for part, line in zip(parts, found):
        assert line.startswith("warning: ") and part in line
    good = SanityWarnings()
    good.batch(np.arange(16.0).reshape(4, 1, 2, 2), np.arange(4))
    for accuracy in (0.1, 0.5, 0.9, 1.0):
        good.epoch(accuracy, accuracy, 10)
    assert not capsys.readouterr().err


def test_a_warning_comes_once(capsys, caplog):
    run = Run(parse(BASE), Images(np.zeros((24, 1, 4, 4), np.float32), np.arange(24, dtype=np.int32) % 7), images(13))
    for number in (1, 2):
        run.train_epoch(number)
        run.evaluation()
    assert capsys.readouterr().err.count("all pixels of the 12 images of a batch are") == 1
    assert not caplog.records


def test_a_loss_that_is_no_number_names_the_blob():
    run = run_of("--learning-rate=1e30")
    with pytest.raises(
        FloatingPointError, match=r"the loss is (nan|inf).*first blob .* is cpu_0/\w+ \(.*try a smaller"
    ):
        for number in (1, 2):
            run.train_epoch(number)


def test_the_first_blob_that_is_not_finite():
    net, workspace = Net("n"), Workspace()
    net.AddExternalInput("x")
    net.Relu("x", "y")
    net.Log("y", "z")
    net.Sqr("z", "w")
    workspace.feed("x", np.float32([-1, 1]))
    workspace.create_net(net)
    assert first_not_finite(net, workspace) is None
    workspace.run_net(net.Name())
    assert first_not_finite(net, workspace) == "z (of Log)"


@pytest.mark.parametrize("policy, name", [("cosine", "period"), ("poly", "max_iter")])
def test_a_policy_without_a_length_lasts_as_long_as_the_run(policy, name):
    more = ["--policy-arg=power=1"] if policy == "poly" else []
    options = parse([*BASE, f"--policy={policy}", *more])
    assert policy_of(options, 10)[1][name] == 20
    assert policy_of(parse([*BASE, f"--policy={policy}", *more, f"--policy-arg={name}=7"]), 10)[1][name] == 7
    warmed = policy_of(parse([*BASE, f"--policy={policy}", *more, "--warmup-epochs=1"]), 10)[1]
    assert warmed[f"sub_policy_1_{name}"] == 20 and warmed["sub_policy_num_iters"] == [10, 10]
    run = run_of(f"--policy={policy}", *more)
    rates = [run.train_epoch(number).learning_rate for number in (1, 2)]  # of steps 3 and 7 of 8, counted from 0
    want = [(1 + np.cos(np.pi * t / 8)) / 2 if policy == "cosine" else 1 - t / 8 for t in (3, 7)]
    np.testing.assert_allclose(rates, 0.02 * np.array(want), rtol=1e-5)


def test_missing_arguments_of_policies_are_named(capsys):
    for arguments, text in (
        (["--policy=poly"], "policy 'poly' needs power"),
        (["--policy=linearWarmup"], "policy 'linearWarmup' needs num_iter, start_multiplier"),
        (["--policy=slope", "--policy-arg=num_iter_1=3"], "policy 'slope' needs multiplier_1, num_iter_2"),
        (["--policy=cosine", "--policy-arg=max_lr=-1"], "max_lr must be a number of at least 0, got -1"),
    ):
        with pytest.raises(SystemExit):
            parse([*BASE, *arguments])
        assert text in capsys.readouterr().err


def test_with_few_classes_there_is_no_top_5(tmp_path):
    few = Run(parse(BASE), images(classes=3), images(13, classes=3))
    assert few.evaluation().top5 is None
    assert run_of().evaluation().top5 is not None


def test_a_diverged_net_is_never_right():
    run = run_of()
    for k in range(3):
        run.model.workspace.feed(f"cpu_0/fc{k}_w", np.full_like(run.model.workspace.fetch(f"cpu_0/fc{k}_w"), np.nan))
    found = run.evaluation()
    assert (found.top1, found.top5) == (0, 0) and np.isnan(found.loss)


def test_equal_scores_are_right_by_chance_only():
    run = run_of()
    run.model.workspace.feed("cpu_0/fc2_w", np.zeros_like(run.model.workspace.fetch("cpu_0/fc2_w")))
    run.model.workspace.feed("cpu_0/fc2_b", np.zeros_like(run.model.workspace.fetch("cpu_0/fc2_b")))
    labels, found = images(13).labels, run.evaluation()
    assert found.top1 == np.mean(labels == 0) and found.top5 == np.mean(labels < 5)


class TestExportedEpoch:
    RUN = ["--cpu", "--model=mlp", "--batch=64", "--epochs=3", "--learning-rate=0.1"]

    @pytest.fixture(autouse=True)
    def _accuracies(self, monkeypatch):
        """The second of three epochs is the best; exports write down the epoch."""
        self.of_epoch, self.losses = {1: 0.5, 2: 0.9, 3: 0.7}, {}

        def evaluation(run):
            return Evaluation(self.of_epoch.get(run.epochs_done, 0.0), None, 13, self.losses.get(run.epochs_done, 1.0))

        def export(run, folder):
            self.exports.append((run.epochs_done, folder))

        self.exports = []
        monkeypatch.setattr(Run, "evaluation", evaluation)
        monkeypatch.setattr(Run, "export", export)

    def test_the_last_one_and_that_another_was_better(self, tmp_path, capsys):
        assert main([*self.RUN, "--export", str(tmp_path / "out")]) == 0
        assert self.exports == [(3, str(tmp_path / "out"))]
        said = capsys.readouterr().out
        assert "predictor of epoch 3 written" in said
        assert "epoch 2 was better, with 90.00% held-out accuracy; --export-epoch best exports that" in said

    def test_the_best_one(self, tmp_path, capsys):
        out, kept = str(tmp_path / "out"), str(tmp_path / "kept")
        arguments = [*self.RUN, "--export", out, "--export-epoch=best", "--checkpoint", kept]
        assert main(arguments) == 0
        assert self.exports == [(1, out), (2, out)]
        assert f"predictor of epoch 2, the best (90.00%), is in {out}" in capsys.readouterr().out
        del self.exports[:]
        assert main([*arguments, "--epochs=4", "--resume=auto"]) == 0  # epoch 4 is worse
        assert self.exports == []
        assert "predictor of epoch 2, the best" in capsys.readouterr().out

    def test_of_equal_accuracies_the_least_loss_counts(self, tmp_path, capsys):
        self.of_epoch, self.losses = {1: 0.9, 2: 0.9, 3: 0.9, 4: 0.9}, {1: 0.4, 2: 0.2, 3: 0.3, 4: 0.2}
        out = str(tmp_path / "out")
        arguments = [*self.RUN, "--export", out, "--export-epoch=best", "--checkpoint", str(tmp_path / "kept")]
        assert main(arguments) == 0
        assert self.exports == [(1, out), (2, out)]
        assert f"epoch 2, the best (90.00%), is in {out}; reports are of epoch 3" in capsys.readouterr().out
        assert main([*arguments, "--epochs=4", "--resume=auto"]) == 0
        assert self.exports == [(1, out), (2, out)]

    def test_it_needs_a_folder(self, capsys):
        with pytest.raises(SystemExit):
            main([*self.RUN, "--export-epoch=best"])
        assert "--export-epoch needs --export FOLDER" in capsys.readouterr().err
