"""Each test of the graph gives nets their names as in a fresh process."""

import pytest

from netbuilder.graph import reset_names


@pytest.fixture(autouse=True)
def _fresh_names():
    reset_names()
