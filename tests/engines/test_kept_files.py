"""Folders of files that are kept between processes have a bounded size."""

import os

from netbuilder.engines.kept_files import remove_oldest


def files(folder, count, size=100):
    for k in range(count):
        path = folder / f"{k}.o"
        path.write_bytes(b"x" * size)
        os.utime(path, (1e9 + k, 1e9 + k))


def test_what_was_not_used_for_longest_is_removed(tmp_path):
    files(tmp_path, 10)
    (tmp_path / "folder").mkdir()
    os.utime(tmp_path / "0.o", (2e9, 1e9))  # read just now
    assert remove_oldest(tmp_path, limit=800) == 4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0.o", "5.o", "6.o", "7.o", "8.o", "9.o", "folder"]


def test_nothing_is_removed_below_the_limit(tmp_path):
    files(tmp_path, 10)
    assert remove_oldest(tmp_path, limit=1000) == 0
    assert len(list(tmp_path.iterdir())) == 10


def test_a_folder_that_is_not_there_and_files_that_cannot_be_removed(tmp_path, monkeypatch):
    assert remove_oldest(tmp_path / "nowhere", limit=0) == 0
    files(tmp_path, 3)

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "remove", refuse)
    assert remove_oldest(tmp_path, limit=0) == 0
