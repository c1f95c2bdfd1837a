"""Inserted checks of values."""

import numpy as np
import pytest
from check_finite import check_finite_pass

from netbuilder.graph import Net
from netbuilder.proto import BlobError, NetError
from netbuilder.runtime import Workspace


def test_values_are_checked_where_they_are_written():
    net = Net("logarithm")
    net.Log("x", "y")
    net.Exp("y", "z")
    result = check_finite_pass(net, blobs=["y"])
    assert [op.type for op in result.net.op] == ["Log", "EnforceFinite", "Exp"] and result.extras == {"checks": 1}
    workspace = Workspace()
    workspace.feed("x", np.float32([1, 2]))
    workspace.run_net_once(result.net)
    np.testing.assert_allclose(workspace.fetch("z"), [1, 2], rtol=1e-6)
    workspace.feed("x", np.float32([1, 0]))
    with pytest.raises(NetError, match="1 of the 2 elements of 'y' are infinite or NaN"):
        workspace.run_net_once(result.net, overwrite=True)
    with pytest.raises(BlobError, match=r"net 'logarithm': cannot check \['w'\]: no operator writes them"):
        check_finite_pass(net, blobs=["w"])
