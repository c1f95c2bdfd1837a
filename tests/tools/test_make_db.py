"""netbuilder-make-db: sources, records, the check, descriptions of databases, errors."""

import struct

import numpy as np
import pytest

import golden_data
from image_cases import make_folder, photo
from netbuilder.data import ImageDatabase, image_libraries, open_records, read_minidb, write_minidb
from netbuilder.proto import NetError
from netbuilder.tools.databases.writing import check_database
from netbuilder.tools.make_db import main

pytestmark = pytest.mark.skipif(not image_libraries(), reason="needs a library for images")
GOLDEN = golden_data.GOLDEN / "exports" / "image_db"


def write_idx(path, array):
    array = np.asarray(array, np.uint8)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "images", ("cat", "dog"), 3)


@pytest.mark.parametrize("kind", ["lmdb", "minidb"])
def test_a_folder_goes_into_a_database_as_it_is(folder, tmp_path, kind, capsys):
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    path = tmp_path / "db"
    assert main([str(folder), str(path), "--type", kind]) == 0
    assert f"{kind}, 6 records, 2 labels; read back, all records match" in capsys.readouterr().out
    found = ImageDatabase(path)
    assert (found.records.db_type, found.classes, found.labels().tolist()) == (kind, ("cat", "dog"), [0, 0, 0, 1, 1, 1])
    assert [key for key, _ in (found.records[0], found.records[5])] == [b"00000000_cat/00.jpg", b"00000005_dog/02.jpg"]
    assert found[4].image == (folder / "dog" / "01.jpg").read_bytes()


def test_shuffled_by_a_seed(folder, tmp_path):
    orders = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert main([str(folder), str(tmp_path / name), "--type=minidb", "--shuffle", seed, "--threads=3"]) == 0
        orders.append([value for _, value in read_minidb(tmp_path / name)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


@pytest.mark.parametrize(
    ("options", "shape", "encoded"),
    [
        (["--resize", "20"], (20, 26, 3), True),
        (["--size", "16", "24", "--encode", "raw"], (16, 24, 3), False),
        (["--encode", "raw"], (40, 52, 3), False),
        (["--encode", "jpeg", "--quality", "50"], (40, 52, 3), True),
    ],
)
def test_sizes_and_encodings(folder, tmp_path, options, shape, encoded):
    assert main([str(folder), str(tmp_path / "db"), "--type=minidb", *options]) == 0
    found = ImageDatabase(tmp_path / "db")[3]
    assert isinstance(found.image, bytes) == encoded
    assert found.pixels().shape == shape


def test_lists_arrays_idx_files_and_databases(folder, tmp_path):
    (tmp_path / "list.csv").write_text("images/dog/00.jpg,4\nimages/cat/01.jpg,2\n")
    images = np.stack([photo(k) for k in range(4)])
    np.savez(tmp_path / "some.npz", images=images, labels=[3, 2, 1, 0])
    (tmp_path / "mnist").mkdir()
    for part, names in (("train", "train"), ("test", "t10k")):
        write_idx(tmp_path / "mnist" / f"{names}-images-idx3-ubyte", images[:3, :, :, 0])
        write_idx(tmp_path / "mnist" / f"{names}-labels-idx1-ubyte", [5, 6, 7] if part == "train" else [8, 9, 9])
    idx = str(tmp_path / "mnist" / "train-images-idx3-ubyte")
    for source, options, labels in (
        ("list.csv", [], [4, 2]),
        ("some.npz", [], [3, 2, 1, 0]),
        ("mnist", [], [5, 6, 7]),
        ("mnist", ["--part", "test"], [8, 9, 9]),
        (idx, ["--labels", idx.replace("images-idx3", "labels-idx1")], [5, 6, 7]),
        ("db", [], [5, 6, 7]),
    ):
        target = tmp_path / ("copy" if source == "db" else "db")
        assert main([str(tmp_path / source), str(target), "--type=minidb", "--replace", *options]) == 0
        assert ImageDatabase(target).labels().tolist() == labels
    gray = ImageDatabase(tmp_path / "copy")[1]
    np.testing.assert_array_equal(gray.image, images[1, :, :, :1])


def test_damaged_images(folder, tmp_path, capsys):
    (folder / "cat" / "01.jpg").write_bytes(b"\xff\xd8\xff and no more")
    target = tmp_path / "db"
    assert main([str(folder), str(target), "--type=minidb"]) == 1
    assert "cat/01.jpg: 15 bytes that begin with ff d8 ff" in capsys.readouterr().err
    assert not target.exists()
    assert main([str(folder), str(target), "--type=minidb", "--skip-damaged"]) == 0
    said = capsys.readouterr()
    assert "5 records, 2 labels, 1 damaged image skipped" in said.out and "skipped: " in said.err
    assert len(open_records(target)) == 5
    for path in folder.rglob("*.jpg"):
        path.write_bytes(b"no image")
    assert main([str(folder), str(target), "--type=minidb", "--skip-damaged", "--replace"]) == 1
    assert "nothing to write: all 6 images are damaged, the first: " in capsys.readouterr().err
    assert ImageDatabase(target).classes == ("cat", "dog") and len(open_records(target)) == 5  # as before


def test_the_check_finds_what_is_not_as_written(folder, tmp_path):
    from netbuilder.tools.databases.sources import open_source
    from netbuilder.tools.databases.writing import Choices, write_database

    path = str(tmp_path / "db")
    written = write_database(open_source(folder), path, "minidb", Choices(), lambda n: None)
    check_database(path, "minidb", written, lambda n: None)
    records = list(read_minidb(path))
    write_minidb(path, records[:-1])
    with pytest.raises(NetError, match="holds 5 records, but 6 were written"):
        check_database(path, "minidb", written, lambda n: None)
    write_minidb(path, [*records[1:], records[0]])
    with pytest.raises(NetError, match="differs from what was written; check the disk"):
        check_database(path, "minidb", written, lambda n: None)


def test_what_a_database_holds(folder, tmp_path, capsys):
    assert main([str(folder), str(tmp_path / "db"), "--type=minidb"]) == 0
    capsys.readouterr()
    assert main(["--inspect", str(tmp_path / "db")]) == 0
    text = capsys.readouterr().out
    for line in (
        "db: minidb, 6 records", "first keys: '00000000_cat/00.jpg', '00000001_cat/01.jpg'",
        "6 of TensorProtos: STRING with a JPEG, INT32 1", "images: 6 of the first 100 are 40 x 52 x 3",
        "labels: 2 different, from 0 to 1", "  0 (cat): 3", "  1 (dog): 3",
    ):  # fmt: skip
        assert line in text
    assert main(["--inspect", str(GOLDEN / "float_images.minidb")]) == 0
    text = capsys.readouterr().out
    assert "20 records" in text and "FLOAT" in text and "20 records without a readable image and label" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["db"], "give SOURCE and DATABASE"),
        (["--inspect", "a", "b"], "or --inspect and DATABASE"),
        (["a", "b", "--resize=3", "--size", "2", "2"], "cannot be given together"),
        (["a", "b", "--quality=0"], "--quality: must be a whole number from 1 to 100, got '0'"),
        (["a", "b", "--threads=0"], "--threads: .* the number of decoding threads must be in .1, 64., got 0"),
        (["a", "b", "--shuffle=-1"], "--shuffle: must be a whole number, 0 or greater, got '-1'"),
    ],
)
def test_wrong_options(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    import re

    assert re.search(message, capsys.readouterr().err)


def test_what_is_not_there(tmp_path, capsys):
    for arguments, message in (
        (["nowhere", "db"], "'nowhere' does not exist; give a folder with one folder of images"),
        (["--inspect", "nowhere"], "no such database"),
        ([str(tmp_path), str(tmp_path / "db")], "is empty; give a folder with one folder of images for each class"),
    ):
        assert main(arguments) == 1
        assert message in capsys.readouterr().err


def test_the_kind_follows_from_the_name_and_nothing_is_replaced_unasked(folder, tmp_path, capsys):
    assert main([str(folder), str(tmp_path / "x.minidb")]) == 0
    assert open_records(tmp_path / "x.minidb").db_type == "minidb"
    before = (tmp_path / "x.minidb").read_bytes()
    capsys.readouterr()
    assert main([str(folder), str(tmp_path / "x.foo")]) == 1
    assert "is not a type of database" in (said := capsys.readouterr().err) and "'.foo'" in said
    assert ".lmdb or .minidb" in said
    assert main([str(folder), str(tmp_path / "x.minidb"), "--shuffle=1"]) == 1
    assert "exists; give --replace" in capsys.readouterr().err
    assert (tmp_path / "x.minidb").read_bytes() == before
    assert main([str(folder), str(tmp_path / "x.minidb"), "--shuffle=1", "--replace"]) == 0
    assert (tmp_path / "x.minidb").read_bytes() != before
    assert main([str(folder), str(folder / "cat"), "--type=lmdb", "--replace"]) == 1
    assert "is a folder but not a database" in capsys.readouterr().err


def test_parts_are_split_as_in_training(folder, tmp_path, capsys):
    whole = tmp_path / "set"
    for name, count in (("train", 3), ("valid", 2)):
        make_folder(whole / name, ("cat", "dog"), count)
    for part, name, count in (("train", "train", 6), ("test", "valid", 4)):
        assert main([str(whole), str(tmp_path / f"{part}.minidb"), "--part", part]) == 0
        assert f"{count} records of {whole / name}, 2 labels" in capsys.readouterr().out
    assert main([str(folder), str(tmp_path / "none.minidb"), "--part=test"]) == 1
    assert "has no parts, such as folders train and test; leave --part out" in capsys.readouterr().err
