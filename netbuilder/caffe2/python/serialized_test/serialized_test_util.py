"""Operator tests under the names that Caffe2 uses for tests with stored cases; here they run without storing."""

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
"""Where Caffe2 keeps its cases; does not exist here."""

_output_context = threading.local()  # the options of Caffe2's conftest; see SerializedTestCase.setUp

__getattr__ = names_of(__name__)


def given(*given_args: Any, **given_kwargs: Any) -> Any:
    """Return ``hypothesis.given``: the test runs on random inputs and stores nothing."""
    return hypothesis.given(*given_args, **given_kwargs)


class SerializedTestCase(hu.HypothesisTestCase):
    """``HypothesisTestCase``; Caffe2's class also writes cases to files and reads them."""

    should_serialize = False

    def setUp(self) -> None:
        """Refuse ``pytest --generate-serialized``.

        Raises:
            NetError: the option is set.
        """
        super().setUp()
        if getattr(_output_context, "should_generate_output", False):
            raise NetError("cases of operator tests cannot be stored; run the tests without --generate-serialized")

    def set_disable_serialized_check(self, val: bool) -> contextlib.nullcontext[None]:
        """Return a context manager that does nothing: there are no stored cases."""
        return contextlib.nullcontext()
