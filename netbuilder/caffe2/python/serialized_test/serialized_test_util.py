"""Tests of operators under the names for those whose cases are stored; here they only run."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import hypothesis

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import hypothesis_test_util as hu
from netbuilder.proto import NetError

__all__ = ["SerializedTestCase", "given"]

operator_test_type = "operator_test"
TOP_DIR = os.path.dirname(os.path.realpath(__file__))
DATA_SUFFIX = "data"
DATA_DIR = os.path.join(TOP_DIR, DATA_SUFFIX)
"""Where Caffe2 keeps its cases; there are none."""

_output_context = threading.local()  # the options of Caffe2's conftest; see SerializedTestCase.setUp

__getattr__ = names_of(__name__)


def given(*given_args: Any, **given_kwargs: Any) -> Any:
    """Return ``hypothesis.given``: the test runs on random inputs; nothing is stored."""
    return hypothesis.given(*given_args, **given_kwargs)


class SerializedTestCase(hu.HypothesisTestCase):
    """``HypothesisTestCase``; Caffe2's would also write cases to files, or read them."""

    should_serialize = False

    def setUp(self) -> None:
        """Refuse what ``pytest --generate-serialized`` asks for.

        Raises:
            NetError: cases were to be written.
        """
        super().setUp()
        if getattr(_output_context, "should_generate_output", False):
            raise NetError("cases of operators' tests are not stored; leave out --generate-serialized, the tests run")

    def set_disable_serialized_check(self, val: bool) -> contextlib.nullcontext[None]:
        """Return a block that does nothing: there are no stored cases."""
        return contextlib.nullcontext()
