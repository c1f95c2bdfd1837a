"""Files that somebody names are opened by netbuilder.proto.files, which refuses pipes instead of waiting for them."""

import ast
import os
from pathlib import Path

import pytest

from netbuilder.proto import NetDef, ParseError, TensorProto
from netbuilder.proto.files import load

ROOT = Path(__file__).parents[1]

WRITERS = {
    "netbuilder/exchange/folder_lock.py": "os.open of a lock, for reading and writing: it waits for nobody",
    "netbuilder/caffe2/python/experiment_util.py": "a log to append to",
    "netbuilder/caffe2/python/models/seq2seq/train.py": "the name of the last checkpoint",
    "netbuilder/data/minidb.py": "appends, and writes a mark",
    "ops/control/print_op.py": "a log to append to",
    "netbuilder/distributed/stores/file.py": "os.open of a lock",
    "netbuilder/distributed/transport/host_sums.py": "/proc",
    "netbuilder/distributed/transport/start_watch.py": "/proc",
    "netbuilder/engines/cudnn/plan_processes.py": "a lock in its own folder of the cache",
    "netbuilder/engines/described_gpu.py": "a file of the package; asks is_file() of others first",
    "netbuilder/engines/kept_files.py": "files of its own folder of the cache",
    "netbuilder/engines/llvm/machine.py": "/proc",
    "netbuilder/engines/onednn/autotune.py": "/proc",
    "proto/opened_files.py": "here",
    "proto/whole_file.py": "writes drafts, and syncs folders",
    "tools/imagenet_trainer.py": "the null device",
    "tools/onednn_interface.py": "the null device",
    "tools/streams.py": "the null device",
    "tools/training/trace.py": "/proc",
    "tools/training/appended_file.py": "os.open for reading and writing: it waits for nobody",
    "tools/doctor.py": "/proc and /sys",
    "tools/speed_page.py": "figures and a page of the checkout",
    "tools/bench": "files that it has made, and /proc",
    "tools/proof/processes.py": "files that it has made",
    "netbuilder/graph/drawing/page.py": "files of the package",
    "netbuilder/data/digit_images.py": "a file of the package",
    "netbuilder/data/class_names.py": "asks is_file() first",
    "netbuilder/runtime/profile/process_memory.py": "/proc",
    "netbuilder/engines/gpu_info.py": "/proc",
    "netbuilder/distributed/transport/launchers.py": "/proc",
    "netbuilder/distributed/transport/pmi_server.py": "/proc",
    "ops/core/registry.py": "files of the package",
    "ops/core/given_numbers.py": "/sys",
}
"""Files with calls that open others, and why those are not files to read that somebody names."""


def calls(tree):
    """Yield the names of the calls that open a file by its path: open, os.open, and methods of pathlib."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                yield node.lineno, "open"
            elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                if (function.value.id, function.attr) in {("os", "open"), ("io", "open")}:
                    yield node.lineno, "os.open"
            if isinstance(function, ast.Attribute) and function.attr in ("read_text", "read_bytes"):
                if not (isinstance(function.value, ast.Name) and function.value.id == "opened_files"):
                    yield node.lineno, function.attr


@pytest.mark.parametrize("folder", ["netbuilder", "ops", "proto", "tools"])
def test_every_reader_opens_files_by_the_one_that_refuses_pipes(folder):
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in WRITERS or name.startswith("tools/bench/"):
            continue
        found += [f"{name}:{line}: {what}" for line, what in calls(ast.parse(path.read_text(encoding="utf-8")))]
    assert not found, "open these by netbuilder.proto.opened_files.open_file, or say in WRITERS what they are"


def test_the_list_has_no_more_than_there_is():
    for name in WRITERS:
        path = ROOT / name
        assert path.is_dir() or list(calls(ast.parse(path.read_text(encoding="utf-8")))), name


@pytest.mark.parametrize(
    "name",
    ["model.pb", "weights.npz", "model.onnx", "images", "labels.idx", "data.mdb", "secret", "rows", "words", "pairs"],
)
def test_a_pipe_is_refused_and_not_waited_for(name, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(ParseError, match=f"{name}' is a pipe, not a file; write what comes from it into one"):
        _reader(name)(path)


def _reader(name):
    from netbuilder.data.idx import read_idx
    from netbuilder.data.image_sets import ImageFiles
    from netbuilder.data.lmdb_pages import LmdbFile
    from netbuilder.data.npz_file import read_npz
    from netbuilder.data.text_rows import TextRows
    from netbuilder.distributed.stores.secret import read_secret
    from netbuilder.model.seq2seq.batches import gen_batches
    from netbuilder.model.seq2seq.vocabulary import gen_vocab

    if name == "model.onnx":
        pytest.importorskip("onnx")
        from netbuilder.exchange.onnx import read_onnx

        return read_onnx
    readers = {
        "weights.npz": read_npz,
        "labels.idx": read_idx,
        "images": lambda path: ImageFiles([path], [0])[0],
        "data.mdb": lambda path: LmdbFile(os.fspath(path), "data.mdb"),
        "secret": read_secret,
        "rows": lambda path: TextRows(path, [TensorProto.STRING]),
        "words": lambda path: gen_vocab(path, 0),
        "pairs": lambda path: gen_batches(path, path, {}, {}, 1, 1),
    }
    return readers.get(name, lambda path: load(path, NetDef))
