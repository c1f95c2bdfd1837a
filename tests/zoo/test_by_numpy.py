"""What runs by NumPy in training steps of the nets of ``netbuilder-benchmark train-models``: small products alone."""

import pytest

from netbuilder.engines import onednn
from netbuilder.engines.llvm import machine
from netbuilder.runtime.profile.profiling import profile
from netbuilder.runtime.profile.roofline import Limits
from netbuilder.tools.bench.ours import Training
from netbuilder.tools.bench.work import MODELS

pytestmark = pytest.mark.skipif(not (machine.available() and onednn.available()), reason="needs llvmlite and oneDNN")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in ("dlrm", "tagger")]


@pytest.mark.parametrize("name", ["dlrm", "tagger", *SLOW])
def test_nothing_but_small_products(name):
    training = Training(MODELS[name].small)
    limits = {"CPU": Limits(1e12, "a guess", 1e11, 1)}
    found = profile(training.workspace, training.model.net.Name(), runs=1, warmup=1, limits=limits)
    assert [each for each in found.by_numpy() if each.kernel != "numpy.dot"] == []
