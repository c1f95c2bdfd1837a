"""Kernels are used again where the inputs, what is published with them, and the choices are as before."""

from types import SimpleNamespace

import numpy as np
import pytest

from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.plan.kernels_of_nodes import KernelsOfNodes
from netbuilder.runtime.plan.values import Node, Value

SPEC = TensorSpec((2, 3), np.dtype(np.float32))


class Kernels:
    """Two operators, x -> y -> z; the first may publish something, and leave choices open."""

    def __init__(self, open_before=()):
        self.x, self.y, self.z = (Value(name, 0, SPEC) for name in "xyz")
        self.first, self.second = Node([], [self.x], [self.y]), Node([], [self.y], [self.z])
        self.both = Node([], [self.x], [self.z], originals=[self.first, self.second])
        self.open, self.calls, self.publish = [*open_before], [], None
        self.kernels = KernelsOfNodes([self.x, self.y, self.z], self._take)

    def _take(self):
        taken, self.open = self.open, []
        return taken

    def run(self, node):
        def make():
            self.calls.append(node)
            if node is self.first and self.publish is not None:
                self.y.published["key"] = self.publish
            return Prepared([SPEC], [SPEC], lambda *args: print)

        return self.kernels.kernel(node, make)

    def again(self):
        self.calls.clear()
        self.kernels.begin_again()
        self.run(self.first)
        self.run(self.second)
        return self.calls


@pytest.fixture
def made():
    each = Kernels()
    each.again()
    assert each.calls == [each.first, each.second]
    return each


def choice(key, worth=1):
    return SimpleNamespace(key=key, worth=worth)


def test_kernels_of_the_same_inputs_are_used_again(made):
    prepared = made.run(made.first)
    assert made.again() == []
    assert made.run(made.first) is prepared


def test_another_spec_makes_the_kernel_of_its_reader(made):
    made.y.spec = made.z.spec = TensorSpec((2, 3), np.dtype(np.float64))
    assert made.again() == [made.second]
    assert made.z.spec == SPEC, "until the new kernel says otherwise, it is as inferred"
    assert made.again() == []


def test_what_is_published_anew_makes_the_kernels_that_read_it(made):
    made.publish, made.x.spec = object(), TensorSpec((2, 3), np.dtype(np.float64))
    assert made.again() == [made.first, made.second]
    made.x.spec = SPEC
    assert made.again() == [made.first], "it has published the same"
    made.publish, made.x.spec = None, TensorSpec((2, 3), np.dtype(np.float64))
    assert made.again() == [made.first, made.second]
    assert made.y.published == {}


def test_kernels_chosen_without_measuring_are_made_again():
    made = Kernels(open_before=[choice("of a compilation that failed")])
    made.open = [choice("a", 1)]
    made.run(made.first)
    made.open = [choice("a", 2), choice("b", 4)]
    made.run(made.second)
    assert [(each.key, each.worth) for each in made.kernels.open_choices()] == [("a", 3), ("b", 4)]
    assert made.again() == [made.first, made.second]
    assert made.kernels.open_choices() == []
    assert made.again() == []


def test_another_order_of_images_makes_all(made):
    assert made.kernels.choose_image_order(lambda: "any order") == "any order"
    made.again()
    made.kernels.choose_image_order(lambda: "any order")
    assert made.again() == []
    made.open = [choice("times")]
    made.kernels.choose_image_order(lambda: "channels last")
    assert [each.key for each in made.kernels.open_choices()] == ["times"]
    assert made.again() == [made.first, made.second]


def test_a_fused_kernel_made_anew_forgets_those_of_its_parts(made):
    made.z.version = 7  # as the kernel of a fused update sets it
    made.z.lazy, made.z.guarded = print, True
    made.run(made.both)
    made.x.spec = TensorSpec((2, 3), np.dtype(np.float64))
    made.run(made.both)
    assert (made.z.version, made.z.lazy, made.z.guarded) == (0, None, False)
    assert made.again() == [made.first, made.second]


def test_external_values_take_the_specs_of_their_blobs(made):
    other = TensorSpec((2, 3), np.dtype(np.float64))
    made.x.blob = SimpleNamespace(spec=other)
    made.x.shares = made.y
    assert made.kernels.begin_again() == [made.x, made.y, made.z]
    assert made.x.spec is other and made.x.shares is None
