"""Helpers of tests of nets: random arrays, and a test case with an empty workspace."""

from __future__ import annotations

import os
import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import core, workspace
from netbuilder.graph import Net

__all__ = [
    "TestCase",
    "caffe2_flaky",
    "get_default_test_flags",
    "is_flaky_test_mode",
    "numOps",
    "randBlob",
    "randBlobFloat32",
    "randBlobsFloat32",
    "rand_array",
    "str_compare",
]

FLAKY_VARIABLE = "CAFFE2_RUN_FLAKY_TESTS"
_MARK = "__caffe2_flaky__"

__getattr__ = names_of(__name__)


def rand_array(*dims: int) -> np.ndarray[Any, Any]:
    """Return a float32 array of this shape, uniform in [-0.5, 0.5), from NumPy's global generator."""
    return np.array(np.random.rand(*dims) - 0.5, np.float32)


def randBlob(name: Any, type: Any, *dims: int, **kwargs: Any) -> None:
    """Feed a blob with random numbers, uniform in [-0.5, 0.5).

    Args:
        name: the blob.
        type: NumPy data type.
        dims: the shape.
        kwargs: ``offset``: added to each number.
    """
    offset = kwargs.get("offset", 0.0)
    workspace.FeedBlob(name, np.array(np.random.rand(*dims) - 0.5 + offset, type))


def randBlobFloat32(name: Any, *dims: int, **kwargs: Any) -> None:
    """Feed a blob as ``randBlob`` does, in float32."""
    randBlob(name, np.float32, *dims, **kwargs)


def randBlobsFloat32(names: Iterable[Any], *dims: int, **kwargs: Any) -> None:
    """Feed several blobs as ``randBlob`` does, in float32."""
    for name in names:
        randBlobFloat32(name, *dims, **kwargs)


def numOps(net: Net) -> int:
    """Return the number of a net's operators."""
    return len(net.Proto().op)


def str_compare(a: str | bytes, b: str | bytes, encoding: str = "utf8") -> bool:
    """Whether two texts, each str or bytes, are equal."""
    first, second = (text.decode(encoding) if isinstance(text, bytes) else text for text in (a, b))
    return first == second


def get_default_test_flags() -> list[str]:
    """Return the arguments that test cases pass to ``GlobalInit``."""
    return ["caffe2", "--caffe2_log_level=0"]


def is_flaky_test_mode() -> bool:
    """Whether only tests marked by ``caffe2_flaky`` run: the variable CAFFE2_RUN_FLAKY_TESTS is 1."""
    return os.environ.get(FLAKY_VARIABLE, "0") == "1"


def caffe2_flaky(test_method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a test of a ``TestCase``: it runs only if ``is_flaky_test_mode()``."""
    setattr(test_method, _MARK, True)
    return test_method


class TestCase(unittest.TestCase):
    """A test case whose tests start with an empty current workspace, and an empty one as ``self.ws``."""

    test_flags = get_default_test_flags()

    @classmethod
    def setUpClass(cls) -> None:
        """Pass the flags to ``GlobalInit``."""
        core.GlobalInit(cls.test_flags)
        core.RefreshRegisteredOperators(trigger_lazy=False)

    def setUp(self) -> None:
        """Reset the current workspace and create ``ws``; skip flaky tests, or in flaky mode all others."""
        marked = getattr(getattr(self, self._testMethodName), _MARK, False)
        if marked != is_flaky_test_mode():
            raise unittest.SkipTest(f"{FLAKY_VARIABLE}=1 runs only the tests marked as flaky")
        self.ws = workspace.C.Workspace()
        workspace.ResetWorkspace()

    def tearDown(self) -> None:
        """Reset the current workspace."""
        workspace.ResetWorkspace()

    def make_tempdir(self) -> Path:
        """Return a new folder that is removed after the test."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder
