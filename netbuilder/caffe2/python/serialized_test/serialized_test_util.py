"""Tests of operators under the names for those whose cases are stored; here they only run."""

from __future__ import annotations

from typing import Any

import hypothesis

from netbuilder.caffe2.absent import names_of
from netbuilder.caffe2.python import hypothesis_test_util as hu

__all__ = ["SerializedTestCase", "given"]

__getattr__ = names_of(__name__)


def given(*given_args: Any, **given_kwargs: Any) -> Any:
    """Return ``hypothesis.given``: the test runs on random inputs; nothing is stored."""
    return hypothesis.given(*given_args, **given_kwargs)


class SerializedTestCase(hu.HypothesisTestCase):
    """``HypothesisTestCase``; Caffe2's would also write cases to files, or read them."""

    should_serialize = False

    def set_disable_serialized_check(self, val: bool) -> None:
        """Do nothing: there are no stored cases."""
