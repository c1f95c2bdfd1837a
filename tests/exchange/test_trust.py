"""What a predictor from a file may do: init nets fill, predict nets compute; files, loops and code need trust."""

import inspect
import os
import re
from pathlib import Path

import numpy as np
import pytest

from netbuilder.exchange import Predictor, load_predictor
from netbuilder.exchange.trust import FILLS, check_harmless
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, is_registered, operator_types, plain_kernel
from netbuilder.proto import NetDef, NetError, OperatorDef, TensorShape, TensorShapes, files
from netbuilder.proto.arguments import make_op, set_argument
from netbuilder.tools.predict import main as predict


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Nothing is written here by a net that is refused."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert not os.listdir(tmp_path / "here")


def nets(init_ops=(), ops=()):
    init = NetDef(name="init", op=[make_op("GivenTensorFill", [], ["w"], shape=[2], values=[1.0, 2.0]), *init_ops])
    net = NetDef(name="net", op=[make_op("Add", ["x", "w"], ["y"], broadcast=1), *ops])
    net.external_input.extend(["x", "w"])
    net.external_output.append("y")
    return init, net


def stored(folder, init_ops=(), ops=()):
    init, net = nets(init_ops, ops)
    folder.mkdir()
    files.save_all({folder / "init_net.pb": init, folder / "predict_net.pb": net})
    return folder


STEP = NetDef(name="step", op=[make_op("Print", ["x"], [], to_file=1)])

HARMFUL = {
    "Save": make_op("Save", ["w"], [], db="stolen", db_type="minidb", absolute_path=0),
    "Load": make_op("Load", [], ["z"], db="secret", db_type="minidb", absolute_path=0),
    "CreateDB": make_op("CreateDB", [], ["db"], db="secret", db_type="minidb"),
    "Print": make_op("Print", ["w"], [], to_file=1),
    "Python": make_op("Python", ["w"], ["z"], token="os.system"),
    "While": make_op("While", ["w"], ["z"], loop_net=NetDef(name="loop")),
    "DequeueBlobs": make_op("DequeueBlobs", ["q"], ["z"]),
    "FileStoreHandlerCreate": make_op("FileStoreHandlerCreate", [], ["h"], path="made"),
    "StoreSet": make_op("StoreSet", ["h", "w"], [], blob_name="w"),
    "StoreWait": make_op("StoreWait", ["h"], [], blob_names=["w"]),
    "RedisStoreHandlerCreate": make_op("RedisStoreHandlerCreate", [], ["h"], host="example.invalid", port=1),
    "CreateCommonWorld": make_op("CreateCommonWorld", ["h"], ["c"], rank=0, size=2),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_an_init_net_runs_fills_alone(tmp_path, name):
    folder = stored(tmp_path / "p", init_ops=[HARMFUL[name]])
    with pytest.raises(NetError, match=rf"predict_net.pb': init net 'init' holds {name} -> .* give trusted=True"):
        load_predictor(folder)


@pytest.mark.parametrize("name", HARMFUL)
def test_a_predict_net_that_touches_files_or_loops_needs_trust(tmp_path, name):
    folder = stored(tmp_path / "p", ops=[HARMFUL[name]])
    with pytest.raises(NetError, match=rf"predict net 'net' holds {name} -> .* which .*; give trusted=True"):
        load_predictor(folder)


@pytest.mark.parametrize(
    "holder",
    [
        make_op("If", ["w"], [], then_net=STEP),
        make_op("If", ["w"], [], else_net=NetDef(op=[make_op("If", ["w"], [], then_net=STEP)])),
        make_op("RecurrentNetwork", ["x"], ["z"], step_net=STEP),
        make_op("If", ["w"], [], then_net=STEP.SerializeToString()),
    ],
    ids=["If", "nested", "RecurrentNetwork", "bytes"],
)
def test_nets_in_arguments_are_looked_through(holder):
    with pytest.raises(NetError, match="holds Print"):
        check_harmless(nets(ops=[holder])[1], "predictor")


def test_trust_runs_all(tmp_path):
    target = tmp_path / "saved"
    save = make_op("Save", ["w"], [], db=str(target), db_type="minidb", absolute_path=1)
    x = np.zeros((1, 2), np.float32)
    for k, parts in enumerate(({"init_ops": [save]}, {"ops": [save]})):
        predictor = load_predictor(stored(tmp_path / f"p{k}", **parts), trusted=True)
        assert predictor.run(x=x)["y"].tolist() == [[1, 2]]
        assert target.is_file()
        target.unlink()


def test_printing_to_the_log_and_fills_need_no_trust():
    init_ops = [
        make_op("ConstantFill", [], ["c"], shape=[3], value=2.0),
        make_op("Cast", ["c"], ["d"], to=2),
        make_op("XavierFill", [], ["e"], shape=[2, 2]),
    ]
    init, net = nets(init_ops, [make_op("Print", ["y"], [])])
    assert Predictor(init, net).run(x=np.zeros((1, 2), np.float32))["y"].tolist() == [[1, 2]]


def test_the_command_says_how_to_trust(tmp_path, capsys):
    folder = stored(tmp_path / "p", ops=[HARMFUL["Save"]])
    assert predict([str(folder), "x.jpg", "--size", "2"]) == 1
    assert "(on a command line: --trusted)" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(FILLS))
def test_fills_are_operators_that_need_no_trust(name):
    assert is_registered(name) and not find(name).outside_effects()
    assert not find(name).stateful or name.endswith("Fill")


def is_allowed(name):
    try:
        check_harmless(NetDef(op=[OperatorDef(type=name)]), "predictor")
    except NetError as error:
        assert f"holds {name} -> [], which " in str(error)
        return False
    return True


# What a program reaches files, other processes, threads and the clock with; the rest of data/ has databases and queues.
_OUTSIDE = re.compile(
    r"^(?:import|from) (?:os|pathlib|socket|subprocess|shutil|tempfile|threading|time|urllib|http|importlib"
    r"|netbuilder\.data(?!\.(?:blob_values|counter|extents|forking|gc_paused|key_index|key_map)))\b.*|\bopen\(",
    re.MULTILINE,
)
_JUDGED_BY_HAND = {
    "from netbuilder.data.dataset import field_lengths": "in memory",
    "from netbuilder.data.image_transform import channel_scales": "in memory",
    "open(": "Print, whose to_file is checked",
    "import os": "Print, whose to_file is checked",
    "import importlib": "ONNXNode imports onnx",
}


def test_every_operator_is_allowed_by_what_it_declares_and_its_source():
    """Files of allowed operators and kernels import nothing that leaves the process; all others are refused."""
    allowed = set(filter(is_allowed, operator_types()))
    assert 700 < len(allowed) < len(operator_types())
    found = {}
    for name in allowed:
        kernel = plain_kernel(name, 0)
        sources = [find(name), *([kernel] if hasattr(kernel, "__code__") else [])]
        for file in {inspect.getsourcefile(inspect.unwrap(each)) for each in sources}:
            # A file that has refused operators, too, has what these need.
            if not any(inspect.getsourcefile(find(other)) == file for other in REFUSED - allowed):
                found.update(dict.fromkeys(_OUTSIDE.findall(Path(file).read_text()), name))
    assert {line: name for line, name in found.items() if line not in _JUDGED_BY_HAND} == {}


REFUSED = {name for name in operator_types() if find(name).outside_effects()}


def test_an_operator_with_effects_is_refused_unless_it_says_that_they_stay_inside():
    for name in operator_types():
        cls = find(name)
        if cls.stateful and not cls.draws and cls.effects is None or cls.waits:
            assert not is_allowed(name)

    class Unknown(Operator):
        stateful = True

    class Harmless(Unknown):
        effects = ""

    assert Unknown.outside_effects() == "is not known to stay within its workspace"
    assert Harmless.outside_effects() == Operator.outside_effects() == ""


NEGATIVE = TensorShapes(shapes=[TensorShape(name="x", dims=[-1])]).SerializeToString()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("predictor_inputs", [b"\xff\xfe"]), ("predictor_outputs", 7), ("predictor_shapes", 3.5),
     ("predictor_shapes", NEGATIVE), ("predictor_weights", b"\xff")],
)  # fmt: skip
def test_damaged_arguments_name_the_file(tmp_path, argument, value):
    folder = stored(tmp_path / "p")
    net = files.load(folder / "predict_net.pb", NetDef)
    set_argument(net, argument, value)
    files.save(folder / "predict_net.pb", net)
    with pytest.raises(NetError, match=r"predict_net.pb'|init_net.pb'"):
        load_predictor(folder)


def test_a_fill_without_output_and_an_output_named_twice(tmp_path):
    fill = make_op("GivenTensorFill", [], [], shape=[2], values=[1.0, 2.0])
    with pytest.raises(NetError, match="GivenTensorFill.* makes 1 output "):
        load_predictor(stored(tmp_path / "a", init_ops=[fill]))
    init, net = nets()
    net.external_output.append("y")
    assert Predictor(init, net).outputs == ("y",)
