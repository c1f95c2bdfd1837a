"""ImageInput: what it reads, gives, draws and refuses."""

import numpy as np
import pytest
from hypothesis import strategies as st

import golden_data
from checks import CPU, DEVICES, GPU
from image_cases import photo, records
from netbuilder.data import (
    DBReader,
    image_libraries,
    image_record,
    read_minidb,
    tensor_to_proto,
    write_minidb,
    write_records,
)
from netbuilder.model import ModelHelper, brew
from netbuilder.ops.core.operator import decode, encode
from netbuilder.ops.records.image_input import ImageInput, image_input
from netbuilder.proto import PROTO_CUDA, ArgumentError, NetDef, NetError, ParseError, ShapeError, TensorProtos
from netbuilder.proto.arguments import make_device_option, make_op
from netbuilder.runtime import Workspace
from netbuilder.runtime.plan.run_context import KernelContext
from suite import OperatorSuite, refusal

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
IMAGES = golden_data.GOLDEN / "exports" / "image_db"
AUGMENTED = {
    "scale": 36, "crop": 24, "mirror": 1, "color_jitter": 1, "color_lighting": 1, "mean": 110.0, "std": 60.0,
}  # fmt: skip


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "images.minidb"
    write_minidb(path, records(12))
    return path


def run(path, times=1, *, outputs=2, device=CPU, reader=None, db_type="minidb", seed=0, **args):
    """Return the outputs of so many runs of a net that reads images."""
    workspace = Workspace(seed=seed)
    workspace.run_operator_once(make_op("CreateDB", [], ["reader"], db=str(path), db_type=db_type, **(reader or {})))
    names = ["data", "label", *(f"more_{k}" for k in range(outputs - 2))]
    read = make_op("ImageInput", ["reader"], names, **args)
    if device == GPU:
        read.device_option.CopyFrom(make_device_option(PROTO_CUDA, 0))
    workspace.create_net(NetDef(name="read", op=[read]))
    got = []
    for _ in range(times):
        workspace.run_net("read")
        got.append([workspace.fetch(name) for name in names])
    return got


def op(**args):
    return ImageInput(**{"batch_size": 2, "crop": 4} | args)


class TestImageInput(OperatorSuite):
    operator = ImageInput
    no_gradient = "reads a file"
    refusals = tuple(
        refusal(op(**args), [], match, ArgumentError)
        for args, match in (
            ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
            ({"crop": -1}, "crop, the sides of the images in pixels, must be given, got -1"),
            ({"decode_threads": 0}, r"decode_threads must lie in \[1, 64\], got 0"),
            ({"output_type": "int"}, "output_type must be one of"),
            ({"order": "CHWN"}, "order must be 'NCHW' or 'NHWC', got 'CHWN'"),
            ({"label_type": 6}, r"label_type must lie in \[0, 5\], got 6"),
            ({"label_type": 1}, "label_type 1 needs num_labels of at least 1, got 0"),
            ({"max_decode_error_ratio": 2.0}, r"must lie in \[0, 1\], got 2.0"),
            ({"scale_jitter_type": 2}, "must be 0 or 1, got 2"),
            ({"random_scale": (3,)}, r"random_scale must be two lengths, got \[3\]"),
            ({"output_type": "uint8", "color_jitter": True}, "excludes color_jitter"),
            ({"scale": 3}, "crop must not be larger than the image after scale, got 4 and 3"),
            ({"mean_per_channel": (1.0, 2.0)}, "mean must have 1 or 3 values"),
        )
    )

    def draw(self, data):
        args = {"crop": data.draw(st.integers(1, 4)), "batch_size": data.draw(st.integers(1, 5)), "is_test": True}
        return ImageInput(**args).with_arity(1, 2), [DBReader(IMAGES / "byte_images.minidb")]

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("on_gpu", [False, True])
    def test_forward(self, device, on_gpu):
        """Raw pixels that Caffe2 wrote are normalized, in either order."""
        raw = [record for _, record in read_minidb(IMAGES / "byte_images.minidb")]
        protos = [TensorProtos.FromString(value).protos for value in raw]
        shape = tuple(protos[0][0].dims)
        crop = min(shape[:2])
        top, left = (shape[0] - crop) // 2, (shape[1] - crop) // 2
        pixels = np.stack([np.frombuffer(p[0].byte_data, np.uint8).reshape(shape) for p in protos]).astype(np.float64)
        pixels = pixels[:, top : top + crop, left : left + crop]
        want = (pixels - [10, 20, 30]) / [2, 4, 5]
        args = {"mean_per_channel": [10.0, 20.0, 30.0], "std_per_channel": [2.0, 4.0, 5.0], "is_test": 1}
        ((data, label),) = run(
            IMAGES / "byte_images.minidb", device=device, batch_size=len(raw), crop=crop,
            use_gpu_transform=int(on_gpu), **args,
        )  # fmt: skip
        assert (data.dtype, label.dtype) == (np.float32, np.int32)
        np.testing.assert_allclose(data, want.transpose(0, 3, 1, 2) if on_gpu else want, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(label, [p[1].int32_data[0] for p in protos])

    def test_inplace(self):
        assert not self.operator.inplace


@pytest.mark.parametrize("device", DEVICES)
def test_the_number_of_threads_changes_nothing(database, device):
    first = run(database, 4, batch_size=5, decode_threads=1, device=device, **AUGMENTED)
    assert first[0][0].shape == (5, 24, 24, 3)
    assert [label.tolist() for _, label in first][:2] == [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]]
    for threads in (2, 5):
        for one, other in zip(
            first, run(database, 4, batch_size=5, decode_threads=threads, device=device, **AUGMENTED)
        ):
            np.testing.assert_array_equal(one[0], other[0])


def test_what_is_drawn_follows_from_seed_iteration_and_shard(tmp_path):
    path = tmp_path / "same.minidb"
    write_minidb(path, [(f"{k}", image_record(photo(0), 0)) for k in range(8)])
    (first, second) = run(path, 2, batch_size=4, **AUGMENTED)
    assert (first[0] != second[0]).any(axis=(1, 2, 3)).all() and (first[0][0] != first[0][1]).any()
    for options in ({"seed": 1}, {"reader": {"num_shards": 2, "shard_id": 1}}):
        ((other, _),) = run(path, batch_size=4, **options, **AUGMENTED)
        assert (other != first[0]).any(axis=(1, 2, 3)).all()


def test_replicas_draw_what_one_operator_for_all_draws(tmp_path):
    path = tmp_path / "same.minidb"
    write_minidb(path, [("0", image_record(photo(0), 0))])

    def images(batch_size, replica):
        op = ImageInput(batch_size=batch_size, **AUGMENTED).with_arity(1, 2)
        ctx = KernelContext(encode(op, ["reader"], ["data", "label"]), replica=replica)
        return image_input(op, ctx, DBReader(path))[0]

    np.testing.assert_array_equal(np.concatenate([images(2, 0), images(2, 1)]), images(4, 0))


@pytest.mark.parametrize("device", DEVICES)
def test_types_and_orders(database, device):
    args = {"batch_size": 3, "crop": 32, "scale": 40, "is_test": 1, "device": device}
    ((base, _),) = run(database, mean=100.0, std=50.0, **args)
    for order, name in (("NHWC", "float"), ("NCHW", "float"), ("NCHW", "float16"), ("NHWC", "float16")):
        ((got, _),) = run(database, mean=100.0, std=50.0, order=order, output_type=name, **args)
        assert got.dtype == (np.float32 if name == "float" else np.float16)
        want = base if order == "NHWC" else base.transpose(0, 3, 1, 2)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    ((raw, _),) = run(database, output_type="uint8", order="NCHW", **args)
    assert raw.dtype == np.uint8 and raw.shape == (3, 3, 32, 32)
    np.testing.assert_allclose((raw.transpose(0, 2, 3, 1).astype(float) - 100) / 50, base, atol=1e-5)
    ((gray, _),) = run(database, color=0, **args)
    assert gray.shape == (3, 32, 32, 1)


def test_lmdb_and_a_database_of_its_own(tmp_path):
    pytest.importorskip("lmdb")
    write_records(tmp_path / "lmdb", "lmdb", records(6))
    ((data, label),) = run(tmp_path / "lmdb", db_type="lmdb", batch_size=6, crop=24, is_test=1)
    assert label.tolist() == [0, 1, 2, 0, 1, 2]
    workspace = Workspace()
    own = make_op("ImageInput", [], ["x", "y"], db=str(tmp_path / "lmdb"), batch_size=4, crop=24, is_test=1)
    workspace.create_net(NetDef(name="own", op=[own]))
    for want in ([0, 1, 2, 0], [1, 2, 0, 1]):
        workspace.run_net("own")
        assert workspace.fetch("y").tolist() == want
    np.testing.assert_array_equal(workspace.fetch("x")[2:], data[:2])
    with pytest.raises(ArgumentError, match="without a reader as input, db, the path"):
        Workspace().run_operator_once(make_op("ImageInput", [], ["x", "y"], batch_size=1, crop=1))


def test_shards_read_all_records_once(database):
    labels = [
        run(database, 2, batch_size=2, crop=8, reader={"num_shards": 3, "shard_id": k})[j][1].tolist()
        for k in range(3)
        for j in range(2)
    ]
    assert sorted(label for part in labels for label in part) == [0] * 4 + [1] * 4 + [2] * 4


def write_labels(path, *tensors, count=2):
    protos = TensorProtos.FromString(image_record(photo(0), 0))
    del protos.protos[1:]
    protos.protos.extend(tensor_to_proto(np.asarray(t)) for t in tensors)
    write_minidb(path, [(f"{k}", protos.SerializeToString()) for k in range(count)])
    return path


@pytest.mark.parametrize(
    ("args", "tensors", "want"),
    [
        ({}, [np.float32([2.5])], [2.5]),
        ({}, [np.int64([7])], [7]),
        ({"label_type": 1, "num_labels": 4}, [np.int32([0, 3])], [[1, 0, 0, 1]]),
        ({"label_type": 2, "num_labels": 3}, [np.int32([4, 5, 6])], [[4, 5, 6]]),
        ({"label_type": 3, "num_labels": 3}, [np.int32([0, 2]), np.float32([0.5, 0.25])], [[0.5, 0, 0.25]]),
        ({"label_type": 5, "num_labels": 2}, [np.float32([0.5, 1.5])], [[0.5, 1.5]]),
    ],
)
def test_labels(tmp_path, args, tensors, want):
    ((_, label),) = run(write_labels(tmp_path / "x", *tensors), batch_size=2, crop=8, **args)
    np.testing.assert_array_equal(label, want * 2)
    assert label.dtype == (np.float32 if any(t.dtype == np.float32 for t in tensors) else np.int32)


def test_further_outputs(tmp_path):
    path = write_labels(tmp_path / "x", np.int32([1]), np.float32([0.5]), np.int32([4, 5]))
    ((_, label, weight, pair),) = run(
        path, outputs=4, batch_size=2, crop=8, output_sizes=[1, 2], label_type=4
    )  # fmt: skip
    assert (label.tolist(), weight.tolist(), pair.tolist()) == ([1, 1], [[0.5], [0.5]], [[4, 5], [4, 5]])
    with pytest.raises(ParseError, match="x, record 0: tensor 3 holds 2 elements of int32, expected 1 of numbers"):
        run(path, outputs=4, batch_size=2, crop=8)
    with pytest.raises(ParseError, match="holds an image and 3 tensors, expected 4"):
        run(path, outputs=5, batch_size=2, crop=8, output_sizes=[1, 2])
    for args, message in (
        ({"label_type": 1, "num_labels": 1}, r"labels must lie in \[0, 1\), got \[1\]"),
        ({"label_type": 2, "num_labels": 3}, "tensor 1 holds 1 elements of int32, expected 3"),
    ):
        with pytest.raises(ParseError, match=message):
            run(path, batch_size=2, crop=8, **args)


def damage(path, *numbers):
    found = list(read_minidb(path))
    for k in numbers:
        protos = TensorProtos.FromString(found[k][1])
        protos.protos[0].string_data[0] = protos.protos[0].string_data[0][:-200]
        found[k] = (found[k][0], protos.SerializeToString())
    write_minidb(path, found)


def test_damaged_images(database, caplog):
    damage(database, 1, 2)
    with pytest.raises(ParseError, match=r"1 of 2 images are damaged.*images.minidb, record 00000001: \d+ bytes"):
        run(database, batch_size=2, crop=8)
    expected = None
    for threads in (1, 4):
        ((data, label),) = run(database, batch_size=4, crop=8, max_decode_error_ratio=0.5, decode_threads=threads)
        assert label.tolist() == [0, 1, 2, 0]  # records 0, 4, 5, 3
        expected = data if expected is None else expected
        np.testing.assert_array_equal(data, expected)
    assert "2 damaged images replaced by the next ones" in caplog.text
    with pytest.raises(ParseError, match="2 of 4 images are damaged, max_decode_error_ratio allows 0.25"):
        run(database, batch_size=4, crop=8, max_decode_error_ratio=0.25)


def test_records_of_another_type_are_refused(database, tmp_path):
    with pytest.raises(
        ParseError, match="float_images.minidb, record 0: the record is TensorProtos: FLOAT .* must be an"
    ):
        run(IMAGES / "float_images.minidb", batch_size=2, crop=2)
    with pytest.raises(ParseError, match="with a JPEG, INT32 1; it must be a Datum; set use_caffe_datum=0"):
        run(database, batch_size=2, crop=2, use_caffe_datum=1)
    with pytest.raises(ShapeError, match="record 00000000: an image of 40 x 52 pixels is too small for a crop of 48"):
        run(database, batch_size=2, crop=48)
    workspace = Workspace()
    workspace.feed("x", np.zeros(3, np.float32))
    with pytest.raises(NetError, match="must be the reader that CreateDB makes"):
        workspace.run_operator_once(make_op("ImageInput", ["x"], ["a", "b"], batch_size=1, crop=1))
    mixed = tmp_path / "mixed.minidb"
    write_minidb(mixed, [("a", image_record(photo(0), 1)), ("b", image_record(photo(0), 1.0))])
    with pytest.raises(ShapeError, match="mixed.minidb, record b holds float32 where .* record a holds int32"):
        run(mixed, batch_size=2, crop=8)


def test_suspicious_data_is_warned_of(tmp_path, caplog):
    path = tmp_path / "flat.minidb"
    write_minidb(path, [(f"{k}", image_record(np.zeros((8, 8, 3), np.uint8), 3)) for k in range(8)])
    run(path, batch_size=8, crop=8)
    assert "8 of 8 images in the first batch have one color only" in caplog.text
    assert "all 8 labels in the first batch are 3" in caplog.text


def test_arguments_of_caffe2_are_understood():
    net = make_op(
        "ImageInput", ["reader"], ["data", "label"], batch_size=32, use_caffe_datum=1, mean=128.0, std=128.0, scale=256,
        minsize=-1, crop=224, mirror=1, use_gpu_transform=0, output_type="float", is_test=0, decode_threads=8,
    )  # fmt: skip
    found = decode(ImageInput, net, strict=True)
    assert (found.transform.scale, found.transform.crop, found.transform.mirror) == (256, 224, True)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_helper_gives_either_order(database, order, on_gpu):
    model = ModelHelper(name="images")
    reader = model.CreateDB("reader", db=str(database), db_type="minidb")
    found = brew.image_input(
        model, reader, ["data", "label"], order, on_gpu, batch_size=3, crop=16, scale=20, mirror=1, is_test=0
    )
    assert [str(blob) for blob in found] == ["data", "label"]
    workspace = Workspace()
    workspace.run_net_once(model.param_init_net)
    workspace.run_net_once(model.net)
    assert workspace.fetch("data").shape == ((3, 3, 16, 16) if order == "NCHW" else (3, 16, 16, 3))
    with pytest.raises(ArgumentError, match="order must be 'NCHW' or 'NHWC', got 'CHW'"):
        brew.image_input(model, reader, ["x", "y"], "CHW", batch_size=1, crop=1)
