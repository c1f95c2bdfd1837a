"""Fixtures of the tests of commands."""

import pytest

from command_lines import folder_of_lines


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The current folder, with what the lines in VALID read."""
    with folder_of_lines(tmp_path_factory.mktemp("place")) as folder:
        yield folder
