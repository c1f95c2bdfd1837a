"""Predictors in one database file: Caffe2's are read, netbuilder's are written as Caffe2's, faults refused."""

import json

import numpy as np
import pytest

import golden_data
from netbuilder.data.minidb import read_minidb, write_minidb
from netbuilder.exchange.predictor_exporter import (
    PredictorExportMeta,
    get_meta_net_def,
    load_from_db,
    load_predictor_from_db,
    net_of,
    prepare_prediction_net,
    save_to_db,
)
from netbuilder.graph import Net
from netbuilder.model import ModelHelper, brew
from netbuilder.proto import ArgumentError, BlobError, MetaNetDef, NetDef, NetError, ParseError, files
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.profile.memory import planned_memory
from structure import differences

EXPORT = golden_data.export("predictor_minidb")
FILE = EXPORT.folder / "model.minidb"
META = json.loads((EXPORT.folder / "meta.json").read_text())


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=META["rtol"], atol=META["atol"])


def test_golden_file_gives_the_numbers():
    workspace = Workspace(threads=1)
    name = prepare_prediction_net(FILE, "minidb", workspace=workspace)
    (data,) = EXPORT.arrays["inputs"].values()
    workspace.feed("data", data)
    workspace.run_net(name)
    close(workspace.fetch("softmax"), EXPORT.arrays["expected"]["softmax"])
    close(load_predictor_from_db(FILE).run(data=data)["softmax"], EXPORT.arrays["expected"]["softmax"])


def test_only_outputs_are_kept_unless_more_is_requested():
    (data,) = EXPORT.arrays["inputs"].values()
    planned = []
    for options in ({}, {"observable": "all"}):
        workspace = Workspace(threads=1)
        net = prepare_prediction_net(FILE, "minidb", workspace=workspace, **options)
        workspace.feed("data", data)
        workspace.run_net(net)
        planned.append(planned_memory(workspace, net.Name()))
        hidden = [blob for op in net.Proto().op[:-1] for blob in op.output]
        for blob in hidden if options else ():
            assert workspace.fetch(blob).size
    assert planned[0].blobs == workspace.fetch("softmax").nbytes < planned[1].blobs
    assert planned[0].total < planned[1].total


def golden_meta(shapes=None, **options):
    """The calls that made the golden files."""
    net = NetDef()
    net.CopyFrom(
        net_of(
            files.parse((EXPORT.folder / "meta_net_def.pb").read_bytes(), MetaNetDef, source="meta_net_def.pb"),
            "PREDICT_NET_TYPE",
        )
    )
    del net.external_input[:], net.external_output[:]
    shapes = shapes or {"data": (3, 3, 8, 8), "softmax": (3, 5)}
    return PredictorExportMeta(net, META["params"], ["data"], ["softmax"], shapes=shapes, **options)


def workspace_of_parameters():
    workspace = Workspace(threads=1)
    for name, value in EXPORT.arrays["params"].items():
        workspace.feed(name, value)
    return workspace


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("meta_net_def.pb", {}),
        (
            "meta_net_def_named.pb",
            {
                "shapes": {"data": (3, 3, 8, 8), "softmax": (6, 5)},
                "name": "convnet",
                "net_type": "dag",
                "num_workers": 2,
            },
        ),
    ],
)
def test_nets_are_those_that_caffe2_writes(file, options):
    want = files.parse((EXPORT.folder / file).read_bytes(), MetaNetDef, source=file)
    got = get_meta_net_def(golden_meta(**options))
    assert [(each.key, list(each.value)) for each in got.blobs] == [(e.key, list(e.value)) for e in want.blobs]
    assert [each.key for each in got.nets] == [each.key for each in want.nets]
    for ours, theirs in zip(got.nets, want.nets):
        assert differences(ours.value, theirs.value) == []
        assert (ours.value.type, ours.value.num_workers) == (theirs.value.type, theirs.value.num_workers)


def test_a_file_has_the_records_that_caffe2s_has(tmp_path):
    save_to_db("minidb", tmp_path / "model.minidb", golden_meta(), workspace=workspace_of_parameters())
    got, want = dict(read_minidb(tmp_path / "model.minidb")), dict(read_minidb(FILE))
    assert list(got) == list(want)
    values = load_predictor_from_db(tmp_path / "model.minidb", fold=False)
    for name, value in EXPORT.arrays["params"].items():
        assert np.array_equal(values.workspace.fetch(name), value)


@pytest.mark.parametrize("name", ["", "convnet"])
def test_written_and_read_back(tmp_path, name):
    """With a name, too, with which Caffe2 does not find the nets in its own file."""
    file = tmp_path / "model.minidb"
    save_to_db("minidb", file, golden_meta(name=name), workspace=workspace_of_parameters())
    workspace = Workspace(threads=1)
    net = prepare_prediction_net(file, "minidb", workspace=workspace)
    assert workspace.fetch("data").shape == (3, 3, 8, 8)
    (data,) = EXPORT.arrays["inputs"].values()
    workspace.feed("data", data)
    workspace.run_net(net)
    close(workspace.fetch("softmax"), EXPORT.arrays["expected"]["softmax"])


def test_more_nets_run_when_it_is_loaded(tmp_path):
    model = ModelHelper("m")
    brew.fc(model, "data", "scores", 3, 2)
    more, last = Net("more"), Net("last")
    more.Scale("scores_w", "scores_w", scale=0.0)
    last.ConstantFill([], "ready", shape=[1], value=7.0)
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    meta = PredictorExportMeta(
        model.net, ["scores_w", "scores_b"], ["data"], ["scores"], global_init_net=more, extra_init_net=last
    )
    save_to_db("minidb", tmp_path / "m", meta, workspace=workspace)
    loaded = Workspace()
    with pytest.raises(NetError, match=r"m': net 'global-init' holds Scale -> \['scores_w'\]; .* give trusted=True"):
        prepare_prediction_net(tmp_path / "m", "minidb", workspace=loaded)
    assert not loaded.blobs()
    name = prepare_prediction_net(tmp_path / "m", "minidb", workspace=loaded, trusted=True)
    assert loaded.fetch("ready") == 7
    loaded.feed("data", np.ones((4, 3), np.float32))
    loaded.run_net(name)
    assert np.array_equal(loaded.fetch("scores"), np.tile(workspace.fetch("scores_b"), (4, 1)))


def test_parameters_with_a_trainers_prefix(tmp_path):
    model = ModelHelper("m")
    brew.fc(model, "data", "scores", 3, 2)
    workspace, loaded = Workspace(), Workspace()
    workspace.run_net_once(model.param_init_net)
    for name in ("scores_w", "scores_b"):
        workspace.feed("trainer/" + name, workspace.fetch(name) + 1)
    meta = PredictorExportMeta(model.net, ["scores_w", "scores_b"], ["data"], ["scores"], trainer_prefix="trainer/")
    save_to_db("minidb", tmp_path / "m", meta, workspace=workspace)
    load_from_db(tmp_path / "m", "minidb", workspace=loaded)
    assert np.array_equal(loaded.fetch("scores_w"), workspace.fetch("scores_w") + 1)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((["w"], ["x", "x"], ["y"]), {}, NetError, r"inputs are named twice: \['x'\]"),
        ((["w"], ["x"], ["y", "y"]), {}, NetError, r"outputs are named twice"),
        ((["w", "x"], ["x"], ["y"]), {}, NetError, r"\['x'\] are both parameters and inputs"),
        ((["w", "y"], ["x"], ["y"]), {}, NetError, r"\['y'\] are both parameters and outputs"),
        ((["w"], ["x"], ["y"]), {"shapes": {"z": (1,)}}, ArgumentError, r"given for \['z'\]"),
    ],
)
def test_contradictions_are_refused(arguments, options, error, match):
    with pytest.raises(error, match=match):
        PredictorExportMeta(NetDef(name="n"), *arguments, **options)


def test_a_net_has_to_fit_the_names():
    net = NetDef(name="n", op=[make_op("FC", ["x", "w", "b"], ["y"])])
    with pytest.raises(NetError, match=r"predictor 'n' reads \['b'\], which are neither among its inputs \['x'\]"):
        PredictorExportMeta(net, ["w"], ["x"], ["y"])
    with pytest.raises(NetError, match=r"no operator makes the outputs \['z'\]"):
        PredictorExportMeta(net, ["w", "b"], ["x"], ["z"])
    fill = NetDef(op=[make_op("ConstantFill", [], ["b"], shape=[2])])
    for where in ("extra_init_net", "global_init_net"):
        assert PredictorExportMeta(net, ["w"], ["x"], ["y"], **{where: fill}).outputs == ("y",)


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(BlobError, match="conv1_w"):
        save_to_db("minidb", tmp_path / "m", golden_meta(), workspace=Workspace())
    with pytest.raises(ArgumentError, match="got 'leveldb'"):
        save_to_db("leveldb", tmp_path / "m", golden_meta(), workspace=workspace_of_parameters())
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_predictors_are_refused_whole(tmp_path):
    workspace = Workspace()
    with pytest.raises(FileNotFoundError):
        load_from_db(tmp_path / "none", "minidb", workspace=workspace)
    records = list(read_minidb(FILE))
    write_minidb(tmp_path / "no nets", records[1:])
    with pytest.raises(ParseError, match="no record '!!META_NET_DEF'"):
        load_from_db(tmp_path / "no nets", "minidb", workspace=workspace)
    write_minidb(tmp_path / "short", records[:-1])
    with pytest.raises(ParseError, match=r"parameters are missing: \['short_bn_riv'\]"):
        load_from_db(tmp_path / "short", "minidb", workspace=workspace)
    (tmp_path / "cut").write_bytes(FILE.read_bytes()[:-5])
    with pytest.raises(ParseError):
        load_from_db(tmp_path / "cut", "minidb", workspace=workspace)
    assert workspace.blobs() == []


def test_a_net_that_is_there_twice_has_to_be_named():
    meta = MetaNetDef()
    for name in ("a", "b"):
        meta.nets.add(key=f"PREDICT_NET_TYPE_{name}").value.name = name
    with pytest.raises(NetError, match="holds 2 nets under 'PREDICT_NET_TYPE'"):
        net_of(meta, "PREDICT_NET_TYPE")
    assert net_of(meta, "PREDICT_NET_TYPE_b").name == "b"
