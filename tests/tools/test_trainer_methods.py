"""netbuilder-train: optimizers, moving averages, mixed batches, changed images, early stopping; on any devices, and
resumed to the bit."""

import json
import re

import numpy as np
import pytest

from netbuilder.data import image_libraries
from netbuilder.exchange import CheckpointFolder, load_predictor, read_checkpoint, write_checkpoint
from netbuilder.optimizers import OPTIMIZERS
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.callbacks import Callback, Callbacks
from netbuilder.tools.training.early_end import EarlyEnd
from netbuilder.tools.training.images import load_images
from netbuilder.tools.training.options import parse
from netbuilder.tools.training.run import Run
from small_training import BASE, images, run_of, train_until

METHODS = {
    "plain momentum": ["--no-nesterov"],
    "adam": ["--optimizer=adam", "--optimizer-arg=beta2=0.99", "--learning-rate=0.001"],
    "ftrl": ["--optimizer=ftrl"],
    "averages": ["--ema=0.8"],
    "equal averages": ["--swa=1.5"],
    "rates": ["--optimizer=adamw", "--layer-decay=0.5", "--rates=*_b=2", "--learning-rate=0.002"],
    "mixup": ["--mixup=0.4"],
    "cutmix": ["--cutmix=1"],
    "all": ["--mixup=0.4", "--cutmix=1", "--label-smoothing=0.1", "--ema=0.8", "--optimizer=rms-prop",
            "--learning-rate=0.001", "--optimizer-arg=momentum=0.5", "--patience=9"],
}  # fmt: skip


def blobs(run):
    return run.checkpoint().blobs


@pytest.mark.one_in(12)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ways", [["--devices=0,1"], ["--devices=0,1,2", "--accumulate-steps=2"]], ids=["2", "3 x 2"])
def test_devices_change_nothing(method, ways):
    found = []
    for more in ([], ways):
        run = run_of(*METHODS[method], *more)
        epochs = [run.train_epoch(number) for number in (1, 2)]
        found.append((blobs(run), [(e.loss, e.accuracy) for e in epochs], run.evaluation()))
    assert found[0][0].keys() == found[1][0].keys()
    for name, want in found[0][0].items():
        if want.dtype.kind == "f":
            apart = np.linalg.norm(found[1][0][name] - want) / max(np.linalg.norm(want), 1e-6 * want.size**0.5)
            assert apart < 1e-4, name
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4)
    assert found[1][2].loss == pytest.approx(found[0][2].loss, rel=1e-4)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_resumed_to_the_bit_in_the_middle_of_an_epoch(method, devices):
    arguments = [*METHODS[method], f"--devices={devices}"]
    whole = run_of(*arguments)
    for number in (1, 2):
        whole.train_epoch(number)
    first = run_of(*arguments)
    first.train_epoch(1)
    train_until(first, 2, 2)
    second = run_of(*arguments)
    assert second.resume(first.checkpoint(), "it") == []
    second.train_epoch(2)
    got, want = blobs(second), blobs(whole)
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    assert second.evaluation() == whole.evaluation()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [name for name, about in OPTIMIZERS.items() if not about.for_float16])
def test_every_optimizer_trains(name):
    run = Run(parse(["--cpu", "--model=mlp", "--batch=12", f"--optimizer={name}", "--epochs=3"]), images(), images(13))
    losses = [run.train_epoch(number).loss for number in (1, 2, 3)]
    assert losses[-1] < losses[0]
    assert run.learning_rate == pytest.approx(OPTIMIZERS[name].usual_rate, rel=1e-6)


def test_momentum_is_nesterovs_unless_it_is_not():
    def update(*more):
        ops = run_of(*more).model.train.net.Proto().op
        op = next(op for op in ops if op.type == "MomentumSGDUpdate")
        return {argument.name: argument.f or argument.i for argument in op.arg}

    assert update() == update("--nesterov") == {"momentum": pytest.approx(0.9), "nesterov": 1}
    assert update("--no-nesterov", "--momentum=0.5") == {"momentum": 0.5, "nesterov": 0}


def test_a_run_goes_on_with_its_method(tmp_path):
    stored = run_of().checkpoint()
    assert run_of().resume(stored, "it") == []
    assert run_of("--no-nesterov").resume(stored, "it") == ["--nesterov was True, now False"]
    for more, match in (
        (["--optimizer=adam"], "--optimizer was 'sgd', now 'adam'"),
        (["--ema=0.9"], "averages.* was False, now"),
    ):
        with pytest.raises(Exception, match=match):
            run_of(*more).resume(stored, "it")


@pytest.mark.slow
def test_averages_are_evaluated_and_exported(tmp_path, capfd):
    folder = tmp_path / "predictor"
    given = ["--cpu", "--model=resnet8-cifar", "--epochs=1", "--batch=64", "--devices=0,1", "--ema=0.9",
             f"--checkpoint={tmp_path / 'c'}", f"--export={folder}"]  # fmt: skip
    assert main(given) == 0
    said = capfd.readouterr().out
    assert "Nesterov's momentum 0.9, moving averages with decay 0.9" in said
    predictor = load_predictor(folder, fold=False)
    stored = read_checkpoint(CheckpointFolder(tmp_path / "c").paths()[-1]).blobs
    names = [name for name in stored if name + "_moving_average" in stored]
    assert any(name.endswith("_rm") for name in names)
    for name in names:
        np.testing.assert_array_equal(predictor.workspace.fetch(name), stored[name + "_moving_average"], err_msg=name)
        assert (stored[name] != stored[name + "_moving_average"]).any(), name
    _, test = load_images("digits")
    right = predictor.run(data=test.images)["softmax"].argmax(axis=1) == test.labels
    assert float(re.search(r"held-out accuracy (\S+)%", said)[1]) == pytest.approx(100 * right.mean(), abs=0.01)


@pytest.mark.one_in(3)
@pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
@pytest.mark.parametrize("augment", ["rand", "auto", "trivial"])
def test_changed_images_are_the_same_on_any_devices_and_resumed(augment):
    pytest.importorskip("PIL")

    def run_with(*more):
        options = parse(["--cpu", "--model=mlp", "--batch=128", "--epochs=2", f"--augment={augment}", "--crop=8",
                         "--random-erasing=0.5", "--pad=1", "--learning-rate=0.02", "--mixup=0.2", *more])  # fmt: skip
        return Run(options, *load_images("digits", options.input))

    one, two, resumed = run_with(), run_with("--devices=0,1", "--decode-threads=1"), run_with()
    for run in (one, two):
        run.train_epoch(1)
    begun = run_with()
    train_until(begun, 1, 5)
    resumed.resume(begun.checkpoint(), "it")
    resumed.train_epoch(1)
    for name, value in blobs(one).items():
        np.testing.assert_array_equal(blobs(resumed)[name], value, err_msg=name)
        if value.dtype.kind == "f":
            assert np.linalg.norm(blobs(two)[name] - value) <= 1e-4 * max(np.linalg.norm(value), 1e-6), name
    plain = Run(parse(["--cpu", "--model=mlp", "--batch=128", "--crop=8", "--pad=1", "--learning-rate=0.02"]),
                *load_images("digits", parse(["--cpu", "--crop=8", "--pad=1"]).input))  # fmt: skip
    plain.train_epoch(1)
    assert (blobs(plain)["fc0_w"] != blobs(one)["fc0_w"]).any()


def test_a_run_ends_when_nothing_gets_better(tmp_path, capfd):
    given = ["--cpu", "--model=mlp", "--epochs=9", "--batch=720", "--learning-rate=1e-9", "--patience=2",
             "--patience-measure=loss", "--least-improvement=0.1", f"--checkpoint={tmp_path / 'c'}",
             "--checkpoint-every-epochs=5", f"--metrics={tmp_path / 'lines'}"]  # fmt: skip
    assert main(given) == 0
    said = capfd.readouterr().out
    assert "epoch 3/9" in said and "epoch 4/9" not in said
    assert re.search(r"ended after epoch 3: held-out loss has not improved for 2 epochs \(--patience 2\); the best is "
                     r"\d\S+, of epoch 1", said)  # fmt: skip
    epochs = [
        line for line in map(json.loads, (tmp_path / "lines").read_text().splitlines()) if line["kind"] == "epoch"
    ]
    assert [f"{line['held_out_loss']:.4g}" for line in epochs] == re.findall(r"held-out loss ([\d.]+)", said)
    assert len(CheckpointFolder(tmp_path / "c").paths()) == 1  # of the end, though none was due
    assert main([*given, "--resume=auto", f"--export={tmp_path / 'p'}"]) == 0
    again = capfd.readouterr().out
    assert "ended after epoch 3" in again and "epoch 4/9" not in again
    assert (tmp_path / "p" / "predict_net.pb").is_file()
    assert main([*given, "--resume=auto", "--patience=3"]) == 0
    assert "ended after epoch 4" in capfd.readouterr().out


def test_patience_is_counted_over_a_resumed_run(tmp_path):
    run = run_of("--patience=3")
    run.train_epoch(1)
    run.callbacks.get(EarlyEnd).stopping.update(0.5)
    run.callbacks.get(EarlyEnd).stopping.update(0.4)
    write_checkpoint(tmp_path / "c.minidb", run.checkpoint())
    again = run_of("--patience=3")
    again.resume(read_checkpoint(tmp_path / "c.minidb"), "it")
    assert again.callbacks.get(EarlyEnd).stopping.state() == {"best": 0.5, "best_at": 1, "seen": 2}


def test_options_are_read_again_from_the_file_of_a_run(tmp_path):
    given = [
        *BASE,
        *METHODS["all"],
        "--rates=fc1*=0.1",
        "--layer-decay=0.9",
        "--augment=rand:1:5",
        "--random-erasing=0.25",
        "--crop=8",
    ]
    options = parse(given)
    (tmp_path / "options.json").write_text(json.dumps(options.effective))
    assert parse([f"--config={tmp_path / 'options.json'}"]) == options
    plain = parse([*BASE, "--no-nesterov"])
    (tmp_path / "plain.json").write_text(json.dumps(plain.effective))
    assert parse([f"--config={tmp_path / 'plain.json'}"]) == plain and not plain.nesterov
    (tmp_path / "own.json").write_text('{"optimizer": "adam", "optimizer-arg": {"beta2": 0.9, "rowWise": false}}')
    own = parse(["--cpu", f"--config={tmp_path / 'own.json'}"])
    assert own.optimizer_args == {"beta2": 0.9, "rowWise": False} and own.learning_rate == 0.001


def test_rates_fall_towards_the_input():
    def moved(*more):
        """Return how far each layer's weights move in a step, over a step of the whole rate."""
        run = run_of("--optimizer=lion", "--weight-decay=0", "--batch=720", "--learning-rate=0.001", *more)
        begin = {name: value.copy() for name, value in blobs(run).items()}
        train_until(run, 1, 1)
        return [np.abs(blobs(run)[f"fc{n}_w"] - begin[f"fc{n}_w"]).max() / 0.001 for n in (0, 1, 2)]

    np.testing.assert_allclose(moved("--layer-decay=0.5", "--rates=fc2_*=3"), [0.25, 0.5, 3], 1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer=adm"], "; did you mean 'adam'"),
        (["--optimizer=adam", "--optimizer-arg=beta3=1"], "; did you mean 'beta"),
        (["--optimizer=adam", "--optimizer-arg=beta1"], "--optimizer-arg must be KEY=VALUE"),
        (["--optimizer=adam", "--momentum=0.9"], "--momentum: applies only to --optimizer sgd; set that of adam"),
        (["--optimizer=adam", "--no-nesterov"], "--nesterov: applies only to --optimizer sgd"),
        (["--patience-measure=loss"], "--patience-measure needs --patience"),
        (["--optimizer=fp16-sgd"], "fp16-sgd is for nets with float16 parameters"),
        (["--optimizer=yellowfin", "--policy=exp", "--policy-arg=gamma=0.9"], "'yellowfin' has a fixed rate"),
        (["--optimizer=ftrl", "--warmup-epochs=1"], "--warmup-epochs: the learning rate of ftrl is fixed"),
        (["--mixup=-1"], "--mixup must be 0 (never) or greater"),
        (["--cutmix=nan"], "--cutmix: must be a number, got 'nan'"),
        (["--ema=1"], "--ema must be in [0, 1), usually 0.999 or more, got 1"),
        (["--swa=0"], "--swa must be a positive number of epochs, usually a quarter of all, got 0"),
        (["--swa=3", "--epochs=2"], "--swa must be at most --epochs (2), got 3"),
        (["--swa=1", "--ema=0.9"], "--swa cannot be combined with --ema"),
        (["--swa=1", "--export=x", "--export-epoch=best"], "--swa cannot be combined with --export-epoch best"),
        (["--patience=0"], "error: --patience must be 1 epoch or more, got 0"),
        (["--patience=1", "--least-improvement=-1"], "error: --least-improvement must be 0 or greater, got -1"),
        (["--least-improvement=1"], "--least-improvement needs --patience"),
        (["--patience-measure=los"], "did you mean 'loss'?"),
        (["--rates=fc1*"], "--rates must be PATTERN=FACTOR, such as gamma=0.1; got 'fc1*'"),
        (["--rates=fc1*=0"], "--rates: the factor of 'fc1*' must be a positive number, got 0"),
        (["--layer-decay=1.5"], "--layer-decay must be in (0, 1], usually 0.7 to 0.95, got 1.5"),
        (["--layer-decay=0.5", "--optimizer=yellowfin"], "--layer-decay: yellowfin tunes the rate of each parameter"),
        (["--augment=rand:2:31"], "--augment must be 'auto', 'trivial', 'rand:COUNT:STRENGTH'"),
        (["--random-erasing=1.5"], "--random-erasing must be a probability from 0 to 1, got 1.5"),
        (["--modle=mlp"], "unrecognized arguments: --modle=mlp; did you mean '--model"),
        (["--lerning-rate", "0.1"], "did you mean '--learning-rate"),
        (["--model=resnet20-cfar"], "; did you mean 'resnet20-cifar'"),
    ],
)  # fmt: skip
def test_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit):
        parse(["--cpu", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.one_in(2)
@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_the_average_is_finished_with_its_own_statistics(devices, capfd):
    options = [*BASE, "--model=resnet8-cifar", "--epochs=3", "--swa=2", f"--devices={devices}"]
    run = Run(parse(options), images(), images(13))
    steps: dict[str, list] = {}

    class Kept(Callback):
        def after_step(self, run):
            for name in run.model._averages:
                steps.setdefault(name, []).append(run.model.workspace.fetch(name).astype(np.float64))

        def after_epoch(self, run, results):
            self.before = results.held_out.loss

    kept = Kept()
    run.callbacks = Callbacks([*run.callbacks, kept])
    found, workspace = run.train(), run.model.workspace
    scopes = run.model.record.devices.scopes
    moved = 0
    for name, values in steps.items():
        average, want = workspace.fetch(run.model._averages[name]), np.mean(values[run.steps :], axis=0)
        if name.endswith(("_rm", "_riv")):
            moved += not np.allclose(average, want, rtol=1e-3, atol=1e-5)
        else:
            np.testing.assert_allclose(average, want, rtol=1e-4, atol=1e-6, err_msg=name)
        first = run.model._averages[name].replace(scopes[-1], scopes[0])
        np.testing.assert_array_equal(average, workspace.fetch(first))
    assert moved and found.loss != kept.before
    assert "statistics of batch normalization estimated for the averages, from 41 samples" in capfd.readouterr().out


def test_nothing_is_estimated_without_batch_normalization(capfd):
    run = run_of("--swa=1")
    assert run.train() == run.evaluation()
    assert "estimated" not in capfd.readouterr().out


def test_find_nan_names_the_operator():
    run = run_of("--devices=0,1", "--find-nan")
    assert run.train_epoch(1) is not None
    blob = min(name for name in run.model.workspace.blobs() if name.startswith("cpu_1/") and name.endswith("_w"))
    value = run.model.workspace.fetch(blob)
    value[0, 0] = 3e38
    for scope in ("cpu_0/", "cpu_1/"):
        run.model.workspace.feed(scope + blob.removeprefix("cpu_1/"), value)
    message = r"epoch 2, step 1: net 'mlp_train.*operator \d+: .* not finite: its output 'cpu_[01]/"
    with pytest.raises(FloatingPointError, match=message):
        run.train_epoch(2)
