"""The methods of a net under construction for its blobs: defined blobs, fresh names, external inputs and outputs."""

from __future__ import annotations

from typing import Any

from netbuilder.graph.blob import BlobReference, ScopedBlobReference, ScopedName, blob_name
from netbuilder.graph.blob_table import BlobTable
from netbuilder.proto import BlobError, NetDef, OperatorDef, UsageError
from netbuilder.proto.suggestions import did_you_mean

__all__ = ["NetBlobs"]


class NetBlobs:
    """The methods of ``Net`` for its blobs.

    Args:
        net: the message; it is changed.
    """

    def __init__(self, net: NetDef) -> None:
        self._net = net
        self._blobs = BlobTable(net)

    def Proto(self) -> NetDef:
        """Return the net's message itself, not a copy: changing it changes the net."""
        return self._net

    def Name(self) -> str:
        """Return the net's name."""
        return self._net.name

    def __format__(self, spec: str) -> str:
        return format(self._net.name, spec)

    def NextName(self, prefix: str | None = None, output_id: int | None = None) -> str:
        """Return a new name of an output: ``<net>/<prefix>[_n][:output_id]``, or ``<net>_blob_<n>`` without prefix."""
        self._blobs.refresh()
        return self._blobs.next_name(prefix, output_id)

    def NextBlob(self, prefix: str = "unnamed") -> BlobReference:
        """Return a reference to a blob named ``prefix`` that is new to the net, without scope."""
        self._blobs.refresh()
        return BlobReference(self._blobs.next_blob(blob_name(prefix)), self)

    def NextScopedBlob(self, prefix: str | BlobReference = "unnamed") -> BlobReference:
        """Return a reference to a blob named ``prefix`` that is new to the net, in the current scope."""
        self._blobs.refresh()
        return BlobReference(self._blobs.next_blob(ScopedName(prefix)), self)

    def BlobIsDefined(self, blob: Any) -> bool:
        """Whether an operator writes ``blob``, or it is an external input."""
        self._blobs.refresh()
        return blob_name(blob) in self._blobs

    def writer_of(self, blob: Any) -> OperatorDef | None:
        """Return the last operator that writes ``blob``; None: none does."""
        return self._blobs.writer(blob_name(blob))

    def UsesBlob(self, blob: Any) -> bool:
        """Whether an operator reads ``blob``, or it is an external input."""
        name = blob_name(blob)
        return self.is_external_input(name) or any(name in op.input for op in self._net.op)

    def UsedBlobNames(self) -> set[str]:
        """Return all names in the net."""
        names = {name for op in self._net.op for blobs in (op.input, op.output) for name in blobs}
        return names.union(self._net.external_input, self._net.external_output)

    def GetBlobRef(self, blob_name: Any) -> BlobReference:
        """Return a reference to a blob of the net.

        Raises:
            BlobError: the net does not define it.
        """
        name = str(blob_name)
        if not self.BlobIsDefined(name):
            raise BlobError(
                f"net {self} does not define blob {name!r}{did_you_mean(name, sorted(self.UsedBlobNames()))}"
            )
        return BlobReference(name, self)

    def is_external_input(self, blob: Any) -> bool:
        """Whether ``blob`` is an external input."""
        self._blobs.refresh()
        return blob_name(blob) in self._blobs.external

    @property
    def external_inputs(self) -> list[BlobReference]:
        """References to the blobs that must exist before the net runs."""
        return [BlobReference(name, self) for name in self._net.external_input]

    @property
    def external_outputs(self) -> list[BlobReference]:
        """References to the blobs declared as the net's outputs."""
        return [BlobReference(name, self) for name in self._net.external_output]

    def AddExternalInput(self, *inputs: Any) -> Any:
        """Declare external inputs, named without scope; return a reference, or a list of several.

        Args:
            inputs: blobs, or lists of blobs.

        Raises:
            UsageError: a blob is an external input already.
        """
        self._blobs.refresh()
        names = [blob_name(blob) for given in inputs for blob in (given if isinstance(given, list) else [given])]
        for i, name in enumerate(names):
            if name in self._blobs.external or name in names[:i]:
                raise UsageError(
                    f"net {self}: {name!r} is an external input already; net.GetBlobRef({name!r}) gives a reference"
                )
        for name in names:
            self._blobs.add_external(name)
        references = [BlobReference(name, self) for name in names]
        return references[0] if len(references) == 1 else references

    AddExternalInputs = AddExternalInput

    def AddScopedExternalInputs(self, *inputs: Any) -> Any:
        """Declare external inputs under the current name scope; return a reference, or a list of several."""
        return self.AddExternalInput(*[ScopedBlobReference(name) for name in inputs])

    def AddExternalOutput(self, *outputs: Any) -> None:
        """Declare outputs of the net, named without scope.

        Raises:
            BlobError: the net does not define one of them.
        """
        references = [self.GetBlobRef(blob_name(blob)) for blob in outputs]
        self._net.external_output.extend(str(blob) for blob in references)

    AddExternalOutputs = AddExternalOutput

    def AddScopedExternalOutputs(self, *outputs: Any) -> None:
        """Declare outputs of the net, named under the current name scope."""
        self.AddExternalOutput(*[ScopedBlobReference(name) for name in outputs])
