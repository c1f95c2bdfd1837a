"""What tests of nets begin with: random arrays, a test case with an empty workspace."""

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
    """Return numbers drawn from [-0.5, 0.5), float32, of these extents; NumPy's seed decides."""
    return np.array(np.random.rand(*dims) - 0.5, np.float32)


def randBlob(name: Any, type: Any, *dims: int, **kwargs: Any) -> None:
    """Feed a blob with numbers drawn from [-0.5, 0.5).

    Args:
        name: the blob.
        type: NumPy type to convert them to.
        dims: extents.
        kwargs: ``offset``: added to each.
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
    """Whether texts are equal, one or both of them as bytes."""
    first, second = (text.decode(encoding) if isinstance(text, bytes) else text for text in (a, b))
    return first == second


def get_default_test_flags() -> list[str]:
    """Return what test cases hand to ``GlobalInit``."""
    return ["caffe2", "--caffe2_log_level=0"]


def is_flaky_test_mode() -> bool:
    """Whether the tests marked by ``caffe2_flaky`` run, and no others: CAFFE2_RUN_FLAKY_TESTS is set to 1."""
    return os.environ.get(FLAKY_VARIABLE, "0") == "1"


def caffe2_flaky(test_method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test of a ``TestCase``, as a decorator: it runs only if ``is_flaky_test_mode()`` holds."""
    setattr(test_method, _MARK, True)
    return test_method


class TestCase(unittest.TestCase):
    """A test case whose tests each find an empty workspace, ``self.ws`` as well."""

    test_flags = get_default_test_flags()

    @classmethod
    def setUpClass(cls) -> None:
        """Hand the flags to ``GlobalInit``."""
        core.GlobalInit(cls.test_flags)
        core.RefreshRegisteredOperators(trigger_lazy=False)

    def setUp(self) -> None:
        """Empty the current workspace and make another one; skip the test if it is not of the kind that runs."""
        marked = getattr(getattr(self, self._testMethodName), _MARK, False)
        if marked != is_flaky_test_mode():
            raise unittest.SkipTest(f"{FLAKY_VARIABLE}=1 runs the tests marked as flaky, and only those")
        self.ws = workspace.C.Workspace()
        workspace.ResetWorkspace()

    def tearDown(self) -> None:
        """Empty the current workspace."""
        workspace.ResetWorkspace()

    def make_tempdir(self) -> Path:
        """Return a new folder, which is removed after the test."""
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder
