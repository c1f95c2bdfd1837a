"""Copies between all layouts of a value: also those of two engines, and of two views of the value."""

import numpy as np
import pytest

from layouts_of_filters import SHAPE, layouts_of_copies, stored_layouts
from machine_code import alone
from netbuilder.engines import onednn
from netbuilder.engines.layouts import convert
from netbuilder.engines.llvm import machine
from netbuilder.ops.core.operator import TensorSpec

pytestmark = pytest.mark.skipif(not (machine.available() and onednn.available()), reason="needs llvmlite and oneDNN")

NAMES = list(stored_layouts()) if onednn.available() else []
COPIES = list(layouts_of_copies()) if onednn.available() else []


@pytest.mark.parametrize("target", COPIES)
@pytest.mark.parametrize("source", NAMES)
def test_a_copy_does_not_depend_on_the_layout_of_what_is_copied(source, target):
    plain = TensorSpec(SHAPE, np.dtype(np.float32))
    value = np.random.default_rng(0).integers(-128, 128, SHAPE).astype(np.float32)  # of eight bits
    specs = plain.with_layout(stored_layouts()[source]), plain.with_layout(layouts_of_copies()[target])
    stored = convert(value, plain, specs[0], alone())
    np.testing.assert_array_equal(convert(stored, specs[0], plain, alone()), value)
    got, want = convert(stored, *specs, alone()), convert(value, plain, specs[1], alone())
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint8), want.reshape(-1).view(np.uint8))
