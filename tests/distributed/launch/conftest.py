"""What tests of launchers leave running when they fail."""

import pytest

from launched import Launched


@pytest.fixture(autouse=True)
def _abandoned():
    yield
    while Launched.started:
        Launched.started.pop().abandon()
