"""The default workspace is empty before and after each test of the compatibility layer."""

import pytest

from netbuilder.caffe2 import install_alias
from netbuilder.caffe2.immediate import StopImmediate
from netbuilder.runtime.execute import default

install_alias(children=False)  # without it, this folder would be a package named caffe2


@pytest.fixture(autouse=True)
def _empty_workspace():
    default.switch("default")
    default.reset()
    yield
    StopImmediate()
    default.switch("default")
    default.reset()
