"""Kinds of files, each with whole examples and the reader that gets damaged ones."""

from __future__ import annotations

import gzip
import io
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import golden_data
from fuzz.mutations import damaged_bytes, damaged_message, damaged_text
from netbuilder.data import (
    decode_image,
    encode_jpeg,
    image_list,
    image_record,
    open_records,
    read_blobs,
    read_idx,
    read_image_record,
    read_lmdb,
    read_minidb,
    read_npz_images,
    write_blobs,
    write_lmdb,
    write_minidb,
)
from netbuilder.data.image_codec import jpeg_size
from netbuilder.data.text_rows import TextRows
from netbuilder.exchange import load_predictor, save_predictor
from netbuilder.exchange.checkpoint_file import Checkpoint, read_checkpoint, read_manifest, write_checkpoint
from netbuilder.exchange.predictor_exporter import load_predictor_from_db
from netbuilder.graph import infer_shapes
from netbuilder.proto import MetaNetDef, NetDef, ParseError, TensorProto, files
from netbuilder.runtime import Workspace

__all__ = ["FILE_KINDS"]

Damage = Callable[[random.Random, bytes], bytes]
Trial = Callable[[random.Random], str]
"""One input: damages an example, reads it, and returns the name that an error must contain."""


class _File:
    """A kind of file: each trial writes a damaged example and reads it.

    Args:
        folder: where the file is written.
        name: of the file, which errors must contain.
        examples: whole files.
        read: reads a file.
        damage: makes damaged bytes of an example's.
    """

    def __init__(
        self, folder: Path, name: str, examples: list[bytes], read: Callable[[Path], object],
        damage: Damage | None = None,
    ) -> None:  # fmt: skip
        self.path, self.examples, self._name = folder / name, examples, name
        self.named = name
        self._read, self._damage = read, damage or partial(damaged_bytes, others=examples)
        for example in examples:  # each is right before it is damaged
            self.path.write_bytes(example)
            read(self.path)

    def __call__(self, rng: random.Random) -> None:
        data = self._damage(rng, rng.choice(self.examples))
        self.path.write_bytes(data)
        self.named = self._name
        then = self._read(self.path)
        self.named = ""  # errors of runs after loading need not name the file
        if callable(then):
            then()


def _message_damage(message_class: type[Any], texts: tuple[str, ...] = ()) -> Damage:
    """Return damage to fields half of the time, to bytes the other half."""

    def damage(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.4:
            return damaged_bytes(rng, data)
        message = message_class.FromString(data)
        damaged_message(rng, message, texts)
        return bytes(message.SerializePartialToString())

    return damage


def _pixels(height: int, width: int, channels: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def _png(pixels: Any) -> bytes:
    import cv2

    return bytes(cv2.imencode(".png", pixels)[1])


def _image_files() -> list[bytes]:
    return [
        encode_jpeg(_pixels(9, 13, 3)), encode_jpeg(_pixels(16, 16, 1)), _png(_pixels(7, 5, 3)), _png(_pixels(8, 8, 1))
    ]  # fmt: skip


def _lmdb(folder: Path) -> _File:
    long = [(f"{i:04}", bytes([i % 256]) * (i % 700)) for i in range(300)]
    sets = [
        [("a", b"alpha"), ("b", b"beta")],
        long,
        [(f"{i}", np.random.default_rng(i).bytes(9000 + i)) for i in range(5)],
        [(f"key{i:05}" + "x" * 400, b"v" * 100) for i in range(200)],  # several levels
    ]
    examples = []
    for number, records in enumerate(sets):
        write_lmdb(folder / f"whole{number}", records)
        examples.append((folder / f"whole{number}" / "data.mdb").read_bytes())

    def read(path: Path) -> None:
        try:
            for _ in read_lmdb(path):
                pass
        finally:
            records = open_records(path, "lmdb")
            if len(records):
                records[len(records) // 2]

    return _File(folder, "data.mdb", examples, read)


def _minidb(folder: Path) -> _File:
    examples = []
    for number, records in enumerate(([("a", b"alpha"), ("b", b"")], [(str(i), b"x" * i) for i in range(40)])):
        write_minidb(folder / f"whole{number}", records)
        examples.append((folder / f"whole{number}").read_bytes())

    def read(path: Path) -> None:
        for _ in read_minidb(path):
            pass
        records = open_records(path, "minidb")
        for number in range(len(records)):
            records[number]

    return _File(folder, "records.minidb", examples, read)


def _records(folder: Path) -> Callable[[random.Random], None]:
    raw = image_record(_pixels(4, 5, 3), 3)
    tensors = [image_record(data, 2) for data in _image_files()] + [raw, image_record(_pixels(3, 3, 1), 1.0)]
    floats = image_record(encode_jpeg(_pixels(8, 8, 3)), np.float32([1, 2]))
    # channels, height, width, data, label; then an encoded image
    datum = b"\x08\x01\x10\x02\x18\x02\x22\x04abcd\x28\x05"
    jpeg = encode_jpeg(_pixels(8, 8, 3))
    encoded = b"\x22" + bytes([len(jpeg) & 127 | 128, len(jpeg) >> 7]) + jpeg + b"\x28\x05\x38\x01"
    examples = [*tensors, floats, datum, encoded]

    def trial(rng: random.Random) -> None:
        value = damaged_bytes(rng, rng.choice(examples), examples)
        found = read_image_record(value, "the database, record 7", datum=rng.random() < 0.4)
        found.pixels(color=rng.random() < 0.7)
        found.label  # noqa: B018  (refuses what is none)

    trial.named = "record 7"  # type: ignore[attr-defined]
    return trial


def _images(folder: Path) -> Callable[[random.Random], None]:
    examples = _image_files()

    def trial(rng: random.Random) -> None:
        data = damaged_bytes(rng, rng.choice(examples), examples)
        library = rng.choice((None, None, "opencv", "pillow"))
        jpeg_size(data, library)
        decode_image(data, color=rng.random() < 0.7, where="picture.jpg", library=library)

    trial.named = "picture.jpg"  # type: ignore[attr-defined]
    return trial


def _idx_bytes() -> list[bytes]:
    images = b"\0\0\x08\x03" + np.array([3, 4, 5], ">u4").tobytes() + bytes(60)
    floats = b"\0\0\x0d\x01" + np.array([4], ">u4").tobytes() + np.zeros(4, ">f4").tobytes()
    return [images, b"\0\0\x08\x01" + np.array([9], ">u4").tobytes() + bytes(9), floats]


def _idx_gz(folder: Path) -> _File:
    def damage(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.5:
            return gzip.compress(damaged_bytes(rng, gzip.decompress(data)))
        if rng.random() < 0.02:  # a bomb: much out of little
            return gzip.compress(gzip.decompress(data)[:16] + bytes(1 << 26), 1)
        return damaged_bytes(rng, data)

    return _File(folder, "images-idx3.gz", [gzip.compress(data) for data in _idx_bytes()], read_idx, damage)


def _npz(folder: Path) -> _File:
    examples = []
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, images=_pixels(3, 4, 5), labels=np.arange(3))
        examples.append(out.getvalue())
    return _File(folder, "images.npz", examples, read_npz_images)


def _csv(folder: Path) -> _File:
    examples = [b"path,label\na.jpg,1\nb.jpg,2\n", b'a.jpg,cat\n"b,c.jpg",dog\n', "é.jpg,1\r\nü.png,3\r\n".encode()]
    return _File(folder, "list.csv", examples, image_list, damaged_text)


def _text_rows(folder: Path) -> _File:
    def read(path: Path) -> None:
        rows = TextRows(path, [TensorProto.STRING, TensorProto.FLOAT])
        while len(rows.next(3)[0]):
            pass

    return _File(folder, "rows.tsv", [b"a\t1\nb\t2.5\n", b"x\t-1e3\n"], read, damaged_text)


def _net_bytes() -> list[bytes]:
    found = [path.read_bytes() for path in golden_data.all_protobufs() if path.stat().st_size < 4000]
    found.sort(key=len)
    return found[:: max(len(found) // 20, 1)]


def _net(folder: Path) -> _File:
    def read(path: Path) -> None:
        infer_shapes([files.load(path, NetDef)])

    def whole(data: bytes) -> bool:
        (folder / "probe.pb").write_bytes(data)
        try:
            read(folder / "probe.pb")
        except Exception:
            return False
        return True

    def read_alone(path: Path) -> None:
        files.load(path, NetDef)

    examples = [data for data in _net_bytes() if whole(data)]
    return _File(folder, "net.pb", examples, read_alone, _message_damage(NetDef))


def _net_text(folder: Path) -> _File:
    examples = [str(files.to_text(NetDef.FromString(data))).encode() for data in _net_bytes()[:8] if _is_net(data)]
    return _File(folder, "net.pbtxt", examples, lambda path: files.load_text(path, NetDef), damaged_text)


def _is_net(data: bytes) -> bool:
    try:
        return bool(files.parse(data, NetDef).op)
    except ParseError:
        return False


_HOSTILE = (
    "Save",
    "Print",
    "Python",
    "While",
    "If",
    "Load",
    "CreateDB",
    "ConstantFill",
    "UniformFill",
    "RecurrentNetwork",
)


def _predictor(folder: Path) -> Callable[[random.Random], None]:
    place = folder / "predictor"
    net = NetDef.FromString(golden_data.export("mobile_convnet").protos["predict_net"])
    init = NetDef.FromString(golden_data.export("mobile_convnet").protos["init_net"])
    place.mkdir()
    x = np.zeros(golden_data.export("mobile_convnet").arrays["inputs"]["data"].shape, np.float32)
    workspace = Workspace()
    workspace.run_net_once(init)
    fed = [name for name in net.external_input if name == "data"]
    kept = [name for name in net.external_input if name != "data"]
    save_predictor(place, net, kept, inputs=fed, shapes={"data": x.shape}, workspace=workspace)
    own = NetDef.FromString((place / "predict_net.pb").read_bytes())

    def trial(rng: random.Random) -> None:
        nets = {"predict_net.pb": rng.choice((own, net)), "init_net.pb": init}
        for name, whole in nets.items():
            changed = NetDef()
            changed.CopyFrom(whole)
            if (name == "init_net.pb") == (rng.random() < 0.4):
                damaged_message(rng, changed, _HOSTILE)
            (place / name).write_bytes(changed.SerializePartialToString())
        predictor = load_predictor(place)
        predictor.run(dict.fromkeys(predictor.inputs, x))

    return trial


def _predictor_db(folder: Path) -> _File:
    path = next(golden_data.export("predictor_minidb").folder.glob("*.minidb"))

    def damage(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.5:
            return damaged_bytes(rng, data)
        (folder / "parts.minidb").write_bytes(data)
        records = list(read_minidb(folder / "parts.minidb"))
        number = rng.randrange(len(records))
        key, value = records[number]
        blob = files.parse(value, _blob_proto())
        if b"META" in key:
            meta = MetaNetDef.FromString(blob.content)
            damaged_message(rng, meta, _HOSTILE)
            blob.content = meta.SerializePartialToString()
        else:
            damaged_message(rng, blob)
        records[number] = key, blob.SerializePartialToString()
        write_minidb(folder / "parts.minidb", records)
        return (folder / "parts.minidb").read_bytes()

    return _File(folder, "predictor.minidb", [path.read_bytes()], load_predictor_from_db, damage)


def _blob_proto() -> Any:
    from netbuilder.proto import BlobProto

    return BlobProto


def _checkpoint(folder: Path) -> _File:
    blobs = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.int64([1, 2]), "s": np.array(b"text", object)}
    write_checkpoint(folder / "whole", Checkpoint(blobs, step=3, metric=0.5, state={"epoch": 1}))
    whole = (folder / "whole").read_bytes()

    def read(path: Path) -> None:
        read_manifest(path)
        found = read_checkpoint(path)
        assert found.step == 3, "a damaged checkpoint passes as one of another step"
        assert {name: value.tolist() for name, value in found.blobs.items()} == {
            name: value.tolist() for name, value in blobs.items()
        }, "a damaged checkpoint is read with other values"

    return _File(folder, "step.minidb", [whole], read)


def _blobs(folder: Path) -> _File:
    write_blobs(
        folder / "whole", {"w": np.arange(6, dtype=np.float32), "s": "text", "h": np.float16([1, 2])}, chunk_size=4
    )

    def damage(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.5:
            return damaged_bytes(rng, data)
        (folder / "parts").write_bytes(data)
        records = list(read_minidb(folder / "parts"))
        number = rng.randrange(len(records))
        blob = files.parse(records[number][1], _blob_proto())
        damaged_message(rng, blob)
        records[number] = records[number][0], blob.SerializePartialToString()
        write_minidb(folder / "parts", records)
        return (folder / "parts").read_bytes()

    return _File(folder, "blobs.minidb", [(folder / "whole").read_bytes()], read_blobs, damage)


def _onnx(folder: Path) -> _File:
    import onnx
    from onnx import helper, numpy_helper

    from netbuilder.exchange.onnx import read_onnx

    def model(nodes: list[Any], shape: tuple[int, ...], constants: dict[str, Any]) -> bytes:
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ("n", "m"))],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        return bytes(made.SerializeToString())

    node = helper.make_node
    examples = [
        model([node("Relu", ["x"], ["a"]), node("Add", ["a", "c"], ["y"])], (2, 3), {"c": np.float32([1, 2, 3])}),
        model(
            [node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("MaxPool", ["a"], ["b"],
             kernel_shape=[2, 2], strides=[2, 2]), node("Flatten", ["b"], ["f"]), node("Gemm", ["f", "m"], ["y"])],
            (1, 2, 4, 4), {"w": np.zeros((2, 2, 3, 3), np.float32), "m": np.zeros((8, 3), np.float32)},
        ),
        model(
            [node("Shape", ["k"], ["s"]), node("ConstantOfShape", ["s"], ["z"]),
             node("Concat", ["x", "z"], ["a"], axis=0), node("Slice", ["a", "b", "e"], ["y"])],
            (2, 3), {"k": np.zeros((2, 3), np.float32), "b": np.int64([0]), "e": np.int64([1])},
        ),
    ]  # fmt: skip

    def read(path: Path) -> object:
        found = read_onnx(path)
        extents = {name: found.extents[name] or () for name in found.inputs}
        shapes = {name: [n if isinstance(n, int) else 1 for n in extents[name]] for name in found.inputs}
        sizes = [math.prod(shape) * found.dtypes[name].itemsize for name, shape in shapes.items()]
        if sum(sizes) < 1 << 20:  # a large input is the caller's to make
            zeros = {name: np.zeros(shape, found.dtypes[name]) for name, shape in shapes.items()}
            return lambda: found.predictor().run(zeros)
        return None

    kinds = ("Relu", "Tile", "Expand", "Range", "ConstantOfShape", "Loop", "Resize", "Pad", "Split", "OneHot", "If")
    return _File(folder, "model.onnx", examples, read, _message_damage(onnx.ModelProto, kinds))


def _npz_parameters(folder: Path) -> _File:
    from netbuilder.tools.extract_predictor_net import _read_parameters

    out = io.BytesIO()
    np.savez(out, w=np.zeros((2, 3), np.float32), b=np.zeros(3, np.float32))

    def read(path: Path) -> Any:
        return _read_parameters(path, NetDef(), "net.pb", trusted=False)

    return _File(folder, "parameters.npz", [out.getvalue()], read)


FILE_KINDS: dict[str, Callable[[Path], Callable[[random.Random], None]]] = {
    "lmdb": _lmdb,
    "minidb": _minidb,
    "records": _records,
    "images": _images,
    "idx": lambda folder: _File(folder, "images-idx3", _idx_bytes(), read_idx),
    "idx.gz": _idx_gz,
    "npz": _npz,
    "npz of parameters": _npz_parameters,
    "csv": _csv,
    "rows of text": _text_rows,
    "pb": _net,
    "pbtxt": _net_text,
    "predictors": _predictor,
    "predictors in a database": _predictor_db,
    "checkpoints": _checkpoint,
    "blobs": _blobs,
    "onnx": _onnx,
}
"""Kind of file -> a function that prepares it in a folder and returns a trial."""
