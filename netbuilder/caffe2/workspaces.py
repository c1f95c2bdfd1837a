"""Workspaces and created nets as objects, as ``workspace.C`` returns them."""

from __future__ import annotations

from typing import Any

from netbuilder.caffe2.blobs import Blob, Blobs, feed
from netbuilder.graph import Net as GraphNet
from netbuilder.graph import Plan
from netbuilder.graph.defuse import undefined_inputs
from netbuilder.graph.message import message_of
from netbuilder.graph.observability import ALL
from netbuilder.ops.control.python_op import show_workspaces_as
from netbuilder.proto import BlobError, DeviceOption, NetDef, NetError, OperatorDef, PlanDef
from netbuilder.proto.suggestions import did_you_mean
from netbuilder.runtime import Workspace as NativeWorkspace
from netbuilder.runtime.execute import default

__all__ = ["CreatedNet", "Workspace", "create_net"]


def create_net(workspace: NativeWorkspace, net: Any, overwrite: bool = False) -> str:
    """Create a net in a workspace that has its inputs; return its name.

    Raises:
        BlobError: the net reads blobs that neither it nor the workspace provides.
        NetError: a net of this name exists, or the net is invalid.
    """
    proto = message_of(net)
    if missing := [blob for blob in undefined_inputs(proto.op) if not workspace.has(blob)]:
        known = {*workspace.blobs(), *(blob for op in proto.op for blob in op.output)}
        reader = next((op for op in proto.op if missing[0] in op.input), OperatorDef())
        made = f" (the first one is read at {reader.debug_info})" if reader.debug_info else ""
        raise BlobError(
            f"net {proto.name!r} reads {missing}, which neither it nor the workspace provides{made}; feed them first, "
            "run the net that writes them (parameters: the model's param_init_net), or list them in input_blobs"
            f"{did_you_mean(missing[0], known)}"
        )
    return workspace.create_net(proto, overwrite, observable_default=ALL, shares_counter=True)


class CreatedNet:
    """A created net of a workspace.

    Args:
        workspace, name: its workspace, and its name.
    """

    def __init__(self, workspace: NativeWorkspace, name: str) -> None:
        self._workspace = workspace
        self._name = name

    def run(self) -> None:
        """Run the net once."""
        self._workspace.run_net(self._name)

    def cancel(self) -> None:
        """Cancel the net's runs in other threads, also if they wait for a queue."""
        self._workspace.net(self._name).cancel()

    def __repr__(self) -> str:
        return f"<Net {self._name!r}>"


class _Current(type):
    @property
    def current(cls) -> Workspace:
        """The workspace that the functions of ``workspace`` use."""
        return Workspace.of(default.workspace())


class Workspace(metaclass=_Current):
    """A workspace under Caffe2's names.

    The methods of ``netbuilder.runtime.Workspace``, on which it is built, are also available.

    Args:
        parent: a workspace whose blobs this one shares.

    >>> ws = Workspace()
    >>> ws.create_blob("x").feed(np.float32([1, -1]))
    True
    >>> ws.run(OperatorDef(type="Relu", input=["x"], output=["y"]))
    >>> ws.blobs["y"].fetch().tolist()
    [1.0, 0.0]
    """

    def __init__(self, parent: Any = None) -> None:
        self._native = NativeWorkspace(parent=getattr(parent, "_native", parent))
        self._native.draw_anew()

    @classmethod
    def of(cls, native: NativeWorkspace) -> Workspace:
        """Wrap a workspace of netbuilder."""
        made = cls.__new__(cls)
        made._native = native
        return made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"Workspace has no attribute {name!r}")
        return getattr(self._native, name)

    def __repr__(self) -> str:
        return repr(self._native)

    def reset(self) -> None:
        """Remove all blobs and nets; random operators without a seed draw other numbers from now on."""
        self._native.reset()
        self._native.draw_anew()

    @property
    def blobs(self) -> Blobs:
        """The blobs by name."""
        return Blobs(self._native)

    @property
    def nets(self) -> dict[str, CreatedNet]:
        """The created nets by name."""
        return {name: CreatedNet(self._native, name) for name in self._native.nets()}

    def create_blob(self, name: Any) -> Blob:
        """Return the blob of this name, created empty if it does not exist."""
        self._native.make(str(name))
        return Blob(self._native, str(name))

    def has_blob(self, name: Any) -> bool:
        """Whether there is a blob of this name."""
        return self._native.has(name)

    def feed_blob(self, name: Any, arr: Any, device_option: DeviceOption | None = None) -> bool:
        """Set a blob; returns True."""
        return feed(self._native, str(name), arr, device_option)

    def fetch_blob(self, name: Any) -> Any:
        """Return the value of a blob."""
        return self._native.fetch(name)

    def remove_blob(self, blob: Any) -> None:
        """Remove a blob if it exists."""
        if self._native.has(blob):
            self._native.remove(blob)

    def create_net(self, net: Any, overwrite: bool = False) -> CreatedNet:
        """Create a net and return it.

        Raises:
            TypeError: ``net`` is neither a Net nor a NetDef.
            NetError: a net of this name exists, or the net is invalid.
            BlobError: the net reads blobs that neither it nor the workspace provides.
        """
        if not isinstance(net, (GraphNet, NetDef)):
            raise TypeError(f"Workspace.create_net: the net must be a Net or NetDef, got {net!r}")
        return CreatedNet(self._native, create_net(self._native, net, overwrite))

    def run(self, obj: Any) -> None:
        """Run an operator, a net or a plan once.

        Raises:
            NetError: ``obj`` is none of these, or an operator failed.
        """
        if isinstance(obj, OperatorDef):
            self._native.run_operator_once(obj)
        elif isinstance(obj, (GraphNet, NetDef)):
            self._native.run_net_once(obj, overwrite=True)
        elif isinstance(obj, (Plan, PlanDef)):
            self._native.run_plan(obj)
        else:
            raise NetError(f"Workspace.run: the object must be an operator, a net or a plan, got {obj!r}")


default.workspace().draw_anew()

# Python operators that get the workspace can use it by Caffe2's names and by netbuilder's.
show_workspaces_as(Workspace.of)
