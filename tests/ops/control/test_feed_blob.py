"""FeedBlob."""

import numpy as np
from hypothesis import strategies as st

from netbuilder.ops.control.feed_blob import FeedBlob
from netbuilder.ops.core.operator import STRING
from netbuilder.proto import ArgumentError
from netbuilder.proto.arguments import make_op
from netbuilder.runtime import Workspace
from suite import OperatorSuite, refusal


class TestFeedBlob(OperatorSuite):
    operator = FeedBlob
    no_gradient = "strings have none"
    refusals = (refusal(FeedBlob(), [], "value, a string, must be given", ArgumentError),)

    def draw(self, data):
        return FeedBlob(data.draw(st.sampled_from([b"hello", b"\x00\xff"]))), []

    def reference(self, op):
        return [np.array(op.value, STRING)]

    def test_as_workspaces_feed_it(self):
        workspace = Workspace()
        workspace.run_operator_once(make_op("FeedBlob", [], ["a"], value="text"))
        workspace.feed("b", "text")
        assert workspace.fetch("a") == workspace.fetch("b") == b"text"
        assert workspace.spec("a") == workspace.spec("b")
