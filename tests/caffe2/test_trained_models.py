"""models.download: models whose files are in place are used, others are refused with the place."""

import json

import numpy as np
import pytest

from netbuilder.caffe2.python import models, workspace
from netbuilder.caffe2.python.models import download
from netbuilder.proto import NetDef, NetError, ParseError, files
from netbuilder.proto.arguments import make_op

INIT = NetDef(name="i", op=[make_op("GivenTensorFill", [], ["w"], shape=[2], values=[1.0, 2.0])])
PREDICT = NetDef(
    name="p", op=[make_op("Add", ["x", "w"], ["y"], broadcast=1)], external_input=["x", "w"], external_output=["y"]
)


def write(folder, value_info=True):
    folder.mkdir(parents=True)
    files.save_all({folder / "init_net.pb": INIT, folder / "predict_net.pb": PREDICT})
    if value_info:
        (folder / "value_info.json").write_text(json.dumps({"x": [1, [1, 2]]}))


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("CAFFE2_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CAFFE2_MODELS", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("variable", [None, "CAFFE2_MODELS", "ONNX_MODELS"])
def test_a_model_in_its_place(places, variable, monkeypatch):
    root = places / "home" / "models"
    if variable:
        root = places / "others"
        monkeypatch.setenv(variable, str(root))
    write(root / "small")
    downloader = download.ModelDownloader(variable) if variable else download.ModelDownloader()
    init_net, predict_net, value_info = downloader.get_c2_model("small")
    assert (init_net.name, predict_net.name, value_info) == ("small_init", "small", {"x": [1, [1, 2]]})
    assert str(root / "small") in downloader.get_c2_model_dbg("small")[3]
    y = workspace.Predictor(init_net, predict_net).run([np.float32([[1, 1]])])[0]
    assert y.tolist() == [[2, 3]]


def test_missing_files_are_named_with_their_place(places):
    downloader, root = download.ModelDownloader(), places / "home" / "models"
    with pytest.raises(
        NetError, match=f"model 'small': netbuilder downloads nothing; .* must be in '{root / 'small'}'"
    ):
        downloader.get_c2_model("small")
    write(root / "small", value_info=False)
    with pytest.raises(NetError, match="where there is no value_info.json; copy"):
        downloader.get_c2_model("small")
    (root / "small" / "value_info.json").write_text("{x")
    with pytest.raises(NetError, match=r"value_info.json': it is no JSON: Expecting"):
        downloader.get_c2_model("small")
    (root / "small" / "init_net.pb").write_bytes(b"\xff\xff")
    with pytest.raises(ParseError, match="init_net.pb"):
        downloader.get_c2_model("small")


def test_the_command_installs(places, capsys):
    target = places / "home" / "models" / "small"
    for arguments in (["small"], ["-i", "small"]):
        assert download.main(arguments) == 1
        assert "netbuilder downloads nothing" in capsys.readouterr().err
    with pytest.raises(ImportError, match="has no .*python.models.small"):
        from caffe2.python.models import small
    write(places / "here" / "small", value_info=False)
    assert download.main(["small"]) == 0 and not target.exists()
    assert download.main(["--install", "small", "a b"]) == 1
    assert capsys.readouterr().err == "download: 'a b' is not a valid model name\n"
    from caffe2.python.models import small

    assert small.init_net == INIT and small.predict_net == PREDICT and models.small.predict_net == PREDICT
    files.save(places / "here" / "small" / "init_net.pb", NetDef(name="newer"))
    assert download.main(["-i", "small"]) == 0 and models.small.init_net == INIT
    assert download.main(["-i", "-f", "small"]) == 0 and models.small.init_net.name == "newer"


def test_names():
    assert download.validModelName("bvlc_googlenet") and download.validModelName("style/crayon-1")
    assert not any(map(download.validModelName, ["", "__init__", "a b", "../../x", "a.b"]))
    with pytest.raises(ImportError, match=r"python.models.squeezenet: nothing is downloaded; .*CAFFE2_MODELS/NAME"):
        from caffe2.python.models import squeezenet  # noqa: F401
