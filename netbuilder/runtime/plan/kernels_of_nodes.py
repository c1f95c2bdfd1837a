"""The kernels of a range's nodes, of which most are used again when the range is compiled once more.

A range is compiled again when a blob has taken another layout, or when a choice between kernels has been measured.
Neither changes the nodes, and few of their kernels: a node gets a new one if an input has another layout than before,
if the producer of an input publishes something else, or if the old kernel was chosen without measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from netbuilder.engines.open_choice import OpenChoice
from netbuilder.ops.core.contexts import Prepared
from netbuilder.ops.core.operator import TensorSpec
from netbuilder.runtime.plan.values import Node, Value

__all__ = ["KernelsOfNodes"]

TakeChoices = Callable[[], list[OpenChoice]]


class _Made(NamedTuple):
    """A node's kernel, None if there is none; the specs it was made for; and the choices that were open."""

    prepared: Prepared | None
    specs: list[TensorSpec | None]
    choices: list[OpenChoice]


class KernelsOfNodes:
    """Makes the kernels of a range's nodes, each when it is needed.

    Args:
        values: the values of the range, before any kernel is made.
        take_choices: returns the choices between kernels that were made unmeasured since the last call.
    """

    def __init__(self, values: Sequence[Value], take_choices: TakeChoices) -> None:
        self._values = [*values]
        self._inferred = {value: (value.spec, value.version) for value in values}
        self._take_choices = take_choices
        self._made: dict[Node, _Made] = {}
        self._image_order = ""
        self._of_image_order: list[OpenChoice] = []
        self._published_anew: set[Value] = set()
        take_choices()  # of a compilation that failed

    def begin_again(self) -> list[Value]:
        """Return the values, for other steps: the external ones have the layouts of their blobs."""
        self._published_anew.clear()
        for value in self._values:
            value.shares = None
            if value.blob is not None and value.blob.spec is not None:
                value.spec = value.blob.spec
        return [*self._values]

    def forget(self) -> None:
        """Forget all kernels: engines have built what they lacked."""
        for node in [*self._made]:
            self._forget(node)

    def choose_image_order(self, choose: Callable[[], str]) -> str:
        """Return in which order the next kernels store images: all are made again if it is another one than before."""
        image_order = choose()
        self._of_image_order = self._take_choices()
        if self._image_order != image_order:
            self._made.clear()
        self._image_order = image_order
        return image_order

    def kernel(self, node: Node, make: Callable[[], Prepared | None]) -> Prepared | None:
        """Return the kernel of a node, made by ``make`` unless the one from before fits; None: a fused node has none.

        The producers of the node's inputs must have theirs.
        """
        specs = [value.spec for value in node.inputs]
        before = self._made.get(node)
        if before is not None and self._fits(before, node, specs):
            return before.prepared
        outputs = [*_outputs(node)]
        published = [value.published for value in outputs]
        if before is not None:
            self._forget(node)
        prepared = make()
        self._made[node] = _Made(prepared, specs, self._take_choices())
        changed = (value for value, old in zip(outputs, published) if value.published != old)
        self._published_anew.update(changed)
        return prepared

    def _fits(self, made: _Made, node: Node, specs: list[TensorSpec | None]) -> bool:
        anew = any(value in self._published_anew for value in node.inputs)
        return not made.choices and not anew and made.specs == specs

    def _forget(self, node: Node) -> None:
        """Undo what the kernel of a node, or those of its parts, say of the node's outputs."""
        for value in _outputs(node):
            value.spec, value.version = self._inferred[value]
            value.published = {}
            value.lazy = value.lazy_from = None
            value.lazy_reads, value.guarded = (), False
        for part in _parts(node):
            self._made.pop(part, None)

    def open_choices(self) -> list[OpenChoice]:
        """Return the choices that were made unmeasured, each once, worth what it is worth to all nodes."""
        found: dict[str, OpenChoice] = {}
        for choices in (self._of_image_order, *(made.choices for made in self._made.values())):
            for choice in choices:
                first = found.setdefault(choice.key, choice)
                if first is not choice:
                    first.worth += choice.worth
        return [*found.values()]


def _parts(node: Node) -> Iterator[Node]:
    """Yield a node, and the nodes that it replaces."""
    yield node
    for original in node.originals:
        yield from _parts(original)


def _outputs(node: Node) -> Iterator[Value]:
    for part in _parts(node):
        yield from part.outputs
