"""Errors of the operating system in words."""

import errno
import os

import pytest

from netbuilder.proto import opened_files
from netbuilder.proto.os_errors import error_text


def text_of(call):
    with pytest.raises(OSError) as found:
        call()
    return error_text(found.value)


def test_what_the_system_says_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    os.symlink("loop", "loop")
    os.symlink("nowhere", "dangling")
    (tmp_path / "net.pb").touch()
    for name, text in (
        ("nett.pb", "'nett.pb': no such file; near it is net.pb"),
        ("a.pbtxt", "'a.pbtxt': no such file, and its folder has none with a similar name"),
        ("zzz.pb", "'zzz.pb': no such file; its folder's .pb files are net.pb"),
        ("zzz.txt", "'zzz.txt': no such file, and its folder has none with a similar name"),
        ("none/net.pb", "'none/net.pb': no such file: the folder 'none' does not exist"),
        ("folder", "'folder' is a folder, not a file"),
        ("net.pb/x", "'net.pb/x': a part of this path is a file, not a folder"),
        ("loop", "'loop' is a symbolic link that leads back to itself"),
        ("dangling", "'dangling' is a symbolic link to 'nowhere', which does not exist"),
        ("x" * 300, f"'{'x' * 300}': file name too long"),
    ):
        assert text_of(lambda name=name: open(name, "rb")) == text
        assert text_of(lambda name=name: opened_files.read_bytes(name)) == text


def test_an_error_without_a_file_gets_its_name():
    def read():
        with opened_files.naming("net.pb"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert text_of(read) == "'net.pb': input/output error"


def test_what_we_say_is_kept():
    assert error_text(FileNotFoundError(errno.ENOENT, "the folder 'a' does not exist", "a/b")) == (
        "'a/b': the folder 'a' does not exist"
    )
    assert error_text(FileNotFoundError("'a': no such folder")) == "'a': no such folder"
    assert error_text(ValueError("x")) == "x"
