"""Options that several commands share: --max-pixels where images are decoded, --trusted where nets from files run."""

import json

import pytest

from image_cases import make_folder
from netbuilder.data import image_libraries
from netbuilder.proto import NetDef, files
from netbuilder.proto.arguments import make_op
from netbuilder.runtime.profile import profiling
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.tools import (
    char_lm,
    evaluate_predictor,
    extract_predictor_net,
    imagenet_trainer,
    make_db,
    predict,
    profile,
)

needs_images = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
PIXELS = 40 * 52  # of the images that make_folder makes
REFUSED = "its header says 40 x 52 pixels, and 2,079 are allowed; if it is right, give max_pixels (on a command line: "


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "images", ("cat", "dog"), 5)


def flag(pixels):
    return f"--max-pixels={pixels}"


@needs_images
def test_make_db_refuses_larger_images_when_it_writes_and_inspects(folder, tmp_path, capsys):
    path = str(tmp_path / "db.minidb")
    assert make_db.main([str(folder), path, flag(PIXELS - 1)]) == 1
    assert REFUSED in capsys.readouterr().err
    assert make_db.main([str(folder), path, flag(PIXELS)]) == 0
    assert make_db.main(["--inspect", path, flag(PIXELS)]) == 0
    assert "images: 10 of the first 100 are 40 x 52 x 3" in capsys.readouterr().out
    assert make_db.main(["--inspect", path, flag(PIXELS - 1)]) == 0
    assert REFUSED in capsys.readouterr().out


@pytest.mark.slow
@needs_images
def test_training_prediction_and_evaluation_refuse_larger_images(folder, tmp_path, capsys):
    exported, image = str(tmp_path / "predictor"), str(folder / "cat" / "00.jpg")
    train = [
        "--cpu",
        "--model=lenet",
        f"--data={folder}",
        "--crop=16",
        "--batch=4",
        "--epochs=1",
        f"--export={exported}",
    ]
    assert imagenet_trainer.main([*train, flag(PIXELS - 1)]) == 1
    assert REFUSED in capsys.readouterr().err
    assert imagenet_trainer.main([*train, flag(PIXELS), "--check-export"]) == 0
    for command, arguments in (
        (predict, [exported, image]),
        (evaluate_predictor, [exported, f"--data={folder}", "--crop=16"]),
    ):
        assert command.main([*arguments, flag(PIXELS)]) == 0
        capsys.readouterr()
        assert command.main([*arguments, flag(PIXELS - 1)]) == 1
        assert REFUSED in capsys.readouterr().err


@pytest.mark.slow
@needs_images
def test_the_check_of_an_export_has_the_limit_of_the_run(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("NETBUILDER_MAX_PIXELS", "10")  # which the option overrides, in the new process too
    train = ["--cpu", "--model=lenet", f"--data={folder}", "--crop=16", "--batch=4", "--epochs=1", flag(PIXELS)]
    assert imagenet_trainer.main([*train, f"--export={tmp_path / 'p'}", "--check-export"]) == 0


@pytest.mark.parametrize("command", [evaluate_predictor, imagenet_trainer, make_db, predict])
@pytest.mark.parametrize("text", ["0", "-3", "many", "1e6"])
def test_a_limit_is_a_whole_number(command, text, capsys):
    with pytest.raises(SystemExit):
        command.main(["x", "y", "--max-pixels", text])
    error = capsys.readouterr().err
    assert "--max-pixels: " in error
    assert text in error


SAVE = {"absolute_path": 1, "db_type": "minidb"}


@pytest.fixture
def nets(tmp_path):
    """Return a function that stores a predictor; ``part`` of it saves a parameter to a file, which is returned."""

    def store(part):
        target = tmp_path / "stolen"
        save = make_op("Save", ["w"], [], db=str(target), **SAVE)
        fill = make_op("GivenTensorFill", [], ["w"], shape=[2], values=[1.0, 2.0])
        init = NetDef(name="init", op=[fill, *([save] if part == "init" else [])])
        net = NetDef(
            name="net", op=[make_op("Add", ["x", "w"], ["y"], broadcast=1), *([save] if part == "net" else [])]
        )
        net.external_input.extend(["x", "w"])
        net.external_output.append("y")
        place = tmp_path / "predictor"
        place.mkdir()
        files.save_all({place / "init_net.pb": init, place / "predict_net.pb": net})
        return place, target

    return store


def profile_folder(place, tmp_path):
    return profile, [str(place), "--input", "x=1x2", "--runs=1", "--warmup=1"]


def profile_files(place, tmp_path):
    files_ = [str(place / "predict_net.pb"), "--init", str(place / "init_net.pb")]
    return profile, [*files_, "--input", "x=1x2", "--runs=1", "--warmup=1"]


def extract(place, tmp_path):
    return extract_predictor_net, [
        str(place / "predict_net.pb"), "--parameters", str(place / "init_net.pb"), "--inputs", "x", "--outputs", "y",
        "--output-dir", str(tmp_path / "out"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "part"),
    [*((command, part) for command in (profile_folder, profile_files) for part in ("net", "init")), (extract, "init")],
)
def test_nets_that_touch_files_run_only_if_trusted(command, part, nets, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(profile, "busy_share", lambda: 0.0)  # these two measure the machine
    monkeypatch.setattr(profiling, "measure_limits", lambda threads, **others: Limits(1e9, "", 1e9, threads))
    place, target = nets(part)
    module, arguments = command(place, tmp_path)
    assert module.main(arguments) == 1
    error = capsys.readouterr().err
    assert "holds Save -> []" in error
    assert "give trusted=True (on a command line: --trusted) if you trust its source" in error
    assert not target.exists()
    assert module.main([*arguments, "--trusted"]) == 0
    assert target.is_file()


@pytest.mark.parametrize("module", [predict, evaluate_predictor, char_lm])
def test_commands_that_load_a_predictor_say_how_to_trust_it(module, nets, tmp_path, capsys):
    place, target = nets("net")
    arguments = {
        predict: [str(place), "x.jpg", "--size=2"],
        evaluate_predictor: [str(place)],
        char_lm: ["--export", str(place), "--write=1"],
    }[module]
    assert module.main(arguments) == 1
    assert "(on a command line: --trusted)" in capsys.readouterr().err
    assert module.main([*arguments, "--trusted"]) == 1  # it is loaded, and then of the wrong kind for the command
    assert "trusted" not in capsys.readouterr().err


def test_limits_are_kept_with_the_options_of_a_run(tmp_path):
    from netbuilder.tools.training.options import parse

    options = parse(["--cpu", "--data=digits", flag(1000)])
    assert options.effective["max-pixels"] == 1000
    (tmp_path / "o.json").write_text(json.dumps(dict(options.effective)))
    assert parse(["--config", str(tmp_path / "o.json")]).input.max_pixels == 1000
    assert flag(1000) in options.input.arguments()
