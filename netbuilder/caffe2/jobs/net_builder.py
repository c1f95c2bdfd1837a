"""NetBuilder: nets and steps built in ``with`` blocks by ``Operations``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netbuilder.caffe2.lenient import LenientNet as Net
from netbuilder.graph import BlobReference
from netbuilder.graph.context_stack import Managed, builder_names
from netbuilder.graph.scope import SEPARATOR
from netbuilder.proto import NetError

__all__ = ["NetBuilder"]


class NetBuilder(Managed):
    """A sequence of nets and builders, which can be converted to an execution step.

    Args:
        name: appended to the name of the enclosing builder; prefix of nets made in the block.
        initial_scope: blobs that exist outside of it, for ``_use_control_ops``.
        _stop_blob_required: whether the block must have a stop condition.
        _stop_blob: its stop blob, if it exists already.
        _fullname: its full name, instead of ``name``.
        _use_control_ops: make branches and loops operators of one net, instead of steps.

    >>> with NetBuilder("double") as builder:
    ...     twice = builder.current_net().Add(["x", "x"], "twice")
    >>> builder.get()[0].Name()
    'double'
    """

    def __init__(
        self,
        name: str | None = None,
        initial_scope: Iterable[Any] | None = None,
        _stop_blob_required: bool = False,
        _stop_blob: Any = None,
        _fullname: str | None = None,
        _use_control_ops: bool = False,
    ) -> None:
        around = NetBuilder.current(required=False)
        if _fullname:
            self.name = _fullname
        else:
            self.name = SEPARATOR.join(part for part in (around.name if around else "", name) if part)
        self._outer_names = {str(blob) for blob in initial_scope or ()}
        self._around = around
        self._frozen = False
        self._current_net: Net | None = None
        self._children: list[Any] = []
        self._stop_blob = _stop_blob
        self._stop_blob_required = _stop_blob_required
        self._use_control_ops = _use_control_ops or bool(around and around._use_control_ops)

    def __str__(self) -> str:
        return self.name or "Un-named NetBuilder"

    @property
    def stops_by(self) -> Any:
        """The blob that ends the step when it is true; None if the step runs once."""
        return self._stop_blob

    def steps_or_nets(self) -> list[Any]:
        """Return the nets and builders that a step of this builder runs."""
        return self.get()

    def stop_blob(self) -> BlobReference:
        """Return the blob that ends this builder's step when it is true; it is false at the beginning."""
        self._assert_mutable()
        if self._stop_blob is None:
            net = self.current_net()
            self._stop_blob = BlobReference(net.NextName("stop_blob"), net)
            first = net
            if self._current_net is not self._children[0]:
                first = Net("stop_blob_init")
                self._children.insert(0, first)
            first.Const(False, blob_out=self._stop_blob)
        return self._stop_blob

    def stop_if(self, blob: Any) -> None:
        """End the step here if ``blob`` is true; later operators go into another net."""
        stop = self.stop_blob()
        self.current_net().Or([stop, blob], [stop])
        self._current_net = None

    def _assert_mutable(self) -> None:
        if self._frozen:
            raise NetError(f"NetBuilder {self}: its block has ended, so nothing can be added")

    def add(self, child: Any) -> Any:
        """Append a net, builder or step, and return it; a net becomes the current one."""
        self._assert_mutable()
        self._current_net = child if isinstance(child, Net) else None
        self._children.append(child)
        return child

    def current_net(self, name: str | None = None) -> Net:
        """Return the net that operators are added to; with a name, a new one."""
        if self._current_net is None or name is not None:
            self.add(Net(name or ""))
        assert self._current_net is not None
        return self._current_net

    def freeze(self) -> None:
        """Allow no more additions to it and its builders."""
        for child in self._children:
            if hasattr(child, "freeze"):
                child.freeze()
        self._current_net = None
        self._frozen = True

    def get(self) -> list[Any]:
        """Return the nets and builders in it; with ``_use_control_ops``, once the block has ended, one net."""
        return self._children

    def last_child(self) -> Any:
        """Return the net or builder that was added last; None if there is none."""
        return self._children[-1] if self._children else None

    def __exit__(self, etype: Any, *args: Any) -> Any:
        result = super().__exit__(etype, *args)
        if etype is not None:
            return result
        if self._stop_blob_required and self._stop_blob is None:
            raise NetError(f"NetBuilder {self}: its block needs a stop condition: call ops.stop_if(blob) or ops.stop()")
        self.freeze()
        if self._use_control_ops and self._children:
            self._children = [NetBuilder.merge_nets(self._children, self.known_names())]
        else:
            self._children = self._with_control_nets()
        return result

    def _with_control_nets(self) -> list[Any]:
        """Return the children, with blocks that become an operator (``ops.IfNet``) replaced by a net."""
        known = self.known_names()
        children = []
        for child in self._children:
            if hasattr(child, "add_to"):
                net = Net(child.name or "control")
                child.add_to(net, known)
                if not net.op_len:  # an Else: the IfNet before it has added the operator
                    continue
                child = net
            if isinstance(child, Net):
                known |= child.UsedBlobNames()
            children.append(child)
        return children

    def known_names(self) -> set[str]:
        """Return the blobs that the enclosing builders have made so far."""
        names = set(self._outer_names)
        if self._around is not None:
            names |= self._around.known_names() | self._around.own_names()
        return names

    def own_names(self) -> set[str]:
        """Return the blobs of the nets in it."""
        return {name for child in self._children if isinstance(child, Net) for name in child.UsedBlobNames()}

    @staticmethod
    def merge_nets(nets_or_builders: Iterable[Any], outer_blob_names: Iterable[Any]) -> Net | None:
        """Merge nets, and builders such as branches and loops, into one net; return None for nothing.

        Args:
            outer_blob_names: blobs that exist outside of the net.
        """
        net: Net | None = None
        known = set(map(str, outer_blob_names))
        for child in nets_or_builders:
            if not isinstance(child, Net) and not hasattr(child, "add_to"):
                raise NetError(f"NetBuilder: {child!r} cannot be part of one net; use steps, without _use_control_ops")
            if not isinstance(child, Net):
                net = Net("") if net is None else net
                child.add_to(net, known | net.UsedBlobNames())
            elif net is None:
                net = child
            else:
                net.AppendNet(child)
        return net


def _name_around() -> str:
    builder = NetBuilder.current(required=False)
    return builder.name if builder is not None else ""


builder_names.append(_name_around)
