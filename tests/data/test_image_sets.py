"""Sets of images: folders, lists, arrays, databases; records of every kind; errors."""

import numpy as np
import pytest

from image_cases import make_folder, photo, records
from netbuilder.data import (
    DummyImages,
    ImageArrays,
    ImageDatabase,
    ImageSubset,
    class_names_file,
    describe_record,
    encode_jpeg,
    image_folder,
    image_libraries,
    image_list,
    image_record,
    read_image_record,
    read_npz_images,
    tensor_to_proto,
    write_minidb,
)
from netbuilder.data.image_sets import part_folder
from netbuilder.proto import NetError, ParseError, TensorProtos
from netbuilder.tools.databases.sources import open_source
from netbuilder.tools.training.images import load_images

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def datum(data, label, extents=(), encoded=False):
    numbers = b"".join(bytes([(k + 1) << 3]) + varint(n) for k, n in enumerate(extents))
    return numbers + b"\x22" + varint(len(data)) + data + b"\x28" + varint(label) + (b"\x38\x01" if encoded else b"")


def test_a_folder_of_classes(tmp_path, caplog):
    make_folder(tmp_path, ("dog", "cat"), 3)
    (tmp_path / "cat" / "more").mkdir()
    (tmp_path / "cat" / "more" / "9.PNG").write_bytes(b"x")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    found = image_folder(tmp_path)
    assert found.classes == ("cat", "dog")
    assert found.labels().tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert [record.where[len(str(tmp_path)) :] for record in (found[0], found[3])] == ["/cat/00.jpg", "/cat/more/9.PNG"]
    assert "names do not end like those of images: 1" in caplog.text
    assert np.abs(found[4].pixels().astype(int) - photo(0)).mean() < 4 and found[4].label == 1


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder of images"):
        image_folder(tmp_path / "no")
    with pytest.raises(NetError, match="is empty; it must have a folder with images for each class: CLASS/IMAGE.jpg"):
        image_folder(tmp_path)
    (tmp_path / "cat").mkdir()
    with pytest.raises(NetError, match="cat': the folder of a class must hold images, and this one"):
        image_folder(tmp_path)


def test_folders_of_parts_are_no_classes(tmp_path):
    make_folder(tmp_path / "Train", ("cat", "dog"), 1)
    with pytest.raises(NetError, match=r"got 'Train'; the layout must be CLASS/IMAGE.jpg, or both .*, give '.*/Train'"):
        image_folder(tmp_path)
    assert part_folder(tmp_path, "train") is part_folder(tmp_path / "none", "val") is None
    for name in ("testing", "Valid", "test"):
        (tmp_path / name).mkdir()
    assert [part_folder(tmp_path, part).name for part in ("train", "val", "test")] == ["Train", "Valid", "test"]
    (tmp_path / "test").rmdir()
    assert part_folder(tmp_path, "test").name == "Valid"


def test_hidden_files_and_folders_are_left_out_everywhere(tmp_path, caplog):
    """Copies of notebooks, and what macOS writes next to each file: an image would be trained on and held out."""
    make_folder(tmp_path, ("dog", "cat"), 3)
    want = image_folder(tmp_path).files
    for name in ("cat/.ipynb_checkpoints/00-checkpoint.jpg", "cat/._00.jpg", "dog/more/.hidden/deep/a.jpg",
                 ".ipynb_checkpoints/b.jpg", ".cache.jpg"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / "cat" / "00.jpg").read_bytes())
    caplog.clear()
    found = image_folder(tmp_path)
    assert (found.files, found.classes) == (want, ("cat", "dog"))
    (record,) = caplog.records
    assert record.getMessage().endswith("hidden files and folders, whose names begin with a dot, left out: 3")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "is empty"),
        ([".a.jpg"], "has only hidden entries, such as '.a.jpg'"),
        (["a.jpg", "b.png", "c.txt"], "has 2 images, such as 'a.jpg', but no folders of classes"),
        (["a.txt"], "has no images, but 1 other entry, such as 'a.txt'"),
    ],
)
def test_what_is_no_folder_of_classes_is_described(tmp_path, names, message):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(NetError, match=message):
        image_folder(tmp_path)
    for load in (load_images, open_source):
        with pytest.raises(NetError, match=f"{message}; give .*a folder with one folder of images for each class"):
            load(str(tmp_path))


def test_one_image_is_no_set(tmp_path):
    make_folder(tmp_path, ("cat",), 1)
    for load in (load_images, open_source):
        with pytest.raises(NetError, match=r"00.jpg' is a single image; give .*a folder with one folder of images"):
            load(str(tmp_path / "cat" / "00.jpg"))


def test_lists(tmp_path):
    make_folder(tmp_path / "images", ("a",), 2)
    path = tmp_path / "list.csv"
    path.write_text("path,label\nimages/a/00.jpg, 4\n\nimages/a/01.jpg,2\n")
    found = image_list(path)
    assert (found.labels().tolist(), found.classes, found[1].label) == ([4, 2], (), 2)
    path.write_text("a/00.jpg,zebra\na/01.jpg,ape\n")
    named = image_list(path, root=tmp_path / "images")
    assert (named.labels().tolist(), named.classes) == ([1, 0], ("ape", "zebra"))
    assert named[0].pixels().shape == (40, 52, 3)
    for text, message in (
        ("a.jpg,1,2\n", r"line 1 must be path,label; got \['a.jpg', '1', '2'\]"),
        ("a.jpg,1\nb.jpg\n", "line 2 must be path,label"),
        ("path,label\n", "lists no image"),
        ("a.jpg,1\nb.jpg,two\n", "all names; got '1' and 'two'"),
        ("a.jpg,-1\n", "must be from 0 to 2147483647, got -1"),
    ):
        path.write_text(text)
        with pytest.raises(ParseError, match=message):
            image_list(path)


def test_arrays_and_npz(tmp_path):
    images = np.stack([photo(k) for k in range(4)])
    rgb = ImageArrays(images, np.int64([3, 1, 0, 2]))
    np.testing.assert_array_equal(rgb[1].pixels(), images[1][:, :, ::-1])
    assert rgb[0].pixels(color=False).shape == (40, 52, 1)
    np.savez(tmp_path / "two.npz", x_train=images[:3, :, :, 0], y_train=[0, 1, 2], x_test=images[3:], y_test=[5])
    train, test = (read_npz_images(tmp_path / "two.npz", part) for part in ("train", "test"))
    assert (len(train), len(test), test.labels().tolist()) == (3, 1, [5])
    np.testing.assert_array_equal(train[2].pixels(), np.repeat(images[2][:, :, :1], 3, axis=2))
    np.savez(tmp_path / "one.npz", images=images, labels=[0, 1, 2, 3])
    assert len(read_npz_images(tmp_path / "one.npz")) == 4
    with pytest.raises(ParseError, match="has no test images"):
        read_npz_images(tmp_path / "one.npz", "test")
    (tmp_path / "bad.npz").write_bytes((tmp_path / "one.npz").read_bytes()[:-100])
    with pytest.raises(ParseError, match="bad.npz' cannot be read as npz"):
        read_npz_images(tmp_path / "bad.npz")
    for wrong, labels, message in (
        (images.astype(float), [0] * 4, "must be uint8"),
        (images[:, :, :, :2], [0] * 4, "must be uint8"),
        (images, [0] * 3, "must be 4 whole numbers"),
        (images, [0.0] * 4, "must be 4 whole numbers"),
        (images, [-1] * 4, "must be from 0 to 2147483647, got -1 to -1"),
    ):
        with pytest.raises(ParseError, match=message):
            ImageArrays(wrong, np.array(labels))


@pytest.mark.parametrize("jpeg", [False, True])
def test_databases(tmp_path, jpeg):
    path = tmp_path / "images.minidb"
    write_minidb(path, records(6, jpeg=jpeg))
    class_names_file(path).write_text("a\nb\nc\n")
    found = ImageDatabase(path)
    assert (len(found), found.classes, found.labels().tolist()) == (6, ("a", "b", "c"), [0, 1, 2, 0, 1, 2])
    assert found[4].where.endswith("images.minidb, record 00000004")
    assert np.abs(found[4].pixels().astype(int) - photo(4)).mean() < (4 if jpeg else 1e-9)
    half = ImageSubset(found, np.array([5, 1]))
    assert (len(half), half[0].where[-1], half.labels().tolist()) == (2, "5", [2, 1])
    write_minidb(path, [])
    with pytest.raises(ParseError, match="the database is empty"):
        ImageDatabase(path)


def test_data_of_caffe(tmp_path):
    image = photo(3)
    raw = datum(image.transpose(2, 0, 1).tobytes(), 300, (3, 40, 52))
    np.testing.assert_array_equal(read_image_record(raw, "r", datum=True).pixels(), image)
    packed = datum(encode_jpeg(image), 2, encoded=True)
    assert read_image_record(packed, "r", datum=True).label == 2
    assert read_image_record(raw, "r", datum=True).label == 300
    assert describe_record(raw) == "Datum: bytes, 3 x 40 x 52"
    assert describe_record(packed) == "Datum: an encoded image, 0 x 0 x 0"
    write_minidb(tmp_path / "x", [("0", raw), ("1", packed)])
    assert ImageDatabase(tmp_path / "x").labels().tolist() == [300, 2]


def test_records_of_another_type_are_refused_with_what_they_are():
    raw = datum(b"\0" * 6, 1, (1, 2, 3))
    protos = image_record(photo(0), 1)
    floats = TensorProtos(protos=[tensor_to_proto(np.zeros((3, 4), np.float32))]).SerializeToString()
    for value, is_datum, message in (
        (raw, False, r"db: the record is Datum: bytes, 1 x 2 x 3; it must be TensorProtos.*set use_caffe_datum=1"),
        (
            protos,
            True,
            r"the record is TensorProtos: BYTE 40 x 52 x 3, INT32 1; it must be a Datum; set use_caffe_datum=0",
        ),
        (floats, False, "the record is TensorProtos: FLOAT 3 x 4; its first tensor must be an image: STRING"),
        (b"", False, "0 bytes of an unknown kind that begin with nothing"),
        (b"some text", False, "9 bytes of an unknown kind that begin with 73 6f 6d 65"),
        (b"some text", True, "9 bytes of an unknown kind"),
        (protos[:-3], False, "of an unknown kind"),
        (datum(b"\0" * 5, 1, (1, 2, 3)), True, "with 5 bytes; it must be an encoded image, or 1 or 3 channels"),
        (datum(b"\0" * 12, 1, (2, 2, 3)), True, "or 1 or 3 channels with as many bytes"),
    ):
        with pytest.raises(ParseError, match=message):
            read_image_record(value, "db", datum=is_datum)


def test_labels_must_be_whole_numbers():
    for label, message in ((np.int32([1, 2]), "int32 of shape"), (0.5, "must be a whole number, got 0.5")):
        with pytest.raises(ParseError, match=f"db: the label .*{message}"):
            read_image_record(image_record(photo(0), label), "db").label  # noqa: B018
    assert read_image_record(image_record(photo(0), 3.0), "db").label == 3
    with pytest.raises(NetError, match="pixels must be uint8"):
        image_record(photo(0).astype(float), 1)


def test_dummy_images():
    found = DummyImages(40, 6, 7, classes=3)
    assert (len(found), found[17].label, found[17].pixels().shape) == (40, 2, (6, 7, 3))
    np.testing.assert_array_equal(found[0].pixels(), found[16].pixels())
    with pytest.raises(NetError, match="count, height, width and classes must be 1 or more"):
        DummyImages(0, 6, 7)


def test_images_are_cut_out_of_records_as_they_were_put_in():
    from netbuilder.data.image_records import encoded_image

    for data in (b"", b"x", encode_jpeg(photo(1)), bytes(range(256)) * 70):
        record = image_record(data, 5)
        assert encoded_image(record)[0] == data
        read = read_image_record(record, "r")
        assert (read.image, read.label) == (data, 5)
    assert encoded_image(image_record(photo(1), 5)) is None
    for end in range(1, 40):  # cut short anywhere
        with pytest.raises(ParseError, match="r: "):
            read_image_record(image_record(b"some image", 5)[:-end], "r").label  # noqa: B018


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a.jpg,1\n\xe9.jpg,2\n", "line 2: byte 8 is not UTF-8 text"),
        (b"a\0b.jpg,1\n", "NUL|must be path,label"),
        (b"a.jpg," + b"9" * 5000 + b"\n", "labels must be from 0 to 2147483647, got 9999"),
        (b"a.jpg,4294967296\n", "labels must be from 0 to 2147483647, got 4294967296"),
        (b"a.jpg," + b"x" * 200_000 + b"\n", "line 1 cannot be read as CSV: field larger than"),
    ],
)
def test_lists_that_are_no_text_or_have_no_labels(tmp_path, data, message):
    (tmp_path / "list.csv").write_bytes(data)
    with pytest.raises(ParseError, match=f"list.csv'.*({message})"):
        image_list(tmp_path / "list.csv")


def test_a_list_may_begin_with_a_mark_and_digits_of_other_scripts_are_names(tmp_path):
    (tmp_path / "list.csv").write_bytes("\ufeffpath,label\na.jpg,²\nb.jpg,³\n".encode())
    assert image_list(tmp_path / "list.csv").classes == ("²", "³")


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ParseError, match="labels must be from 0 to 2147483647, got 0 to 4294967296"):
        ImageArrays(np.zeros((2, 3, 3), np.uint8), np.array([0, 2**32]))
