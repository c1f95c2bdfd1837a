"""The input and output records of a net: its blobs by the names of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from netbuilder.caffe2.records import Field, Struct, from_blob_list, from_column_list
from netbuilder.graph.blob import BlobReference, blob_name
from netbuilder.graph.net import Net, RemapFunction
from netbuilder.proto import NetError

__all__ = ["RecordNet", "clone_and_bind_net"]


class RecordNet(Net):
    """A net that may have an input record and an output record.

    Attributes:
        _input_record, _output_record: the records, or None.
    """

    _input_record: Any = None
    _output_record: Any = None

    def input_record(self) -> Any:
        """Return the net's input record, or None."""
        return self._input_record

    def output_record(self) -> Any:
        """Return the net's output record, or None."""
        return self._output_record

    def set_input_record(self, input_record: Field) -> Any:
        """Set and return the input record; blobs that the net does not define become external inputs.

        A record without blobs gets new ones.

        Raises:
            NetError: the net has an input record with other blobs, or only some of the fields have blobs.
        """
        _check_record(self, "input", input_record, self._input_record)
        if not input_record.has_blobs():
            if any(scalar.has_blobs() for scalar in input_record.all_scalars()):
                raise NetError(
                    f"net {self}: only some fields of the input record have blobs; give blobs to all fields or to none"
                )
            names = [name or "unnamed_scalar" for name in input_record.field_names()]
            input_record = from_blob_list(input_record, [BlobReference(self.NextName(name), self) for name in names])
        for blob in input_record.field_blobs():
            if not self.BlobIsDefined(blob):
                self.AddExternalInput(blob)
        self._input_record = input_record
        return input_record

    def set_output_record(self, record: Field) -> None:
        """Set the output record; its blobs become external outputs.

        Raises:
            NetError: the net has an output record with other blobs, or the fields have no blobs.
            BlobError: the net does not define a blob.
        """
        _check_record(self, "output", record, self._output_record)
        declared = set(self._net.external_output)
        for blob in record.field_blobs():
            if str(blob) not in declared:
                self.AddExternalOutput(blob)
                declared.add(str(blob))
        self._output_record = record

    def AppendOutputRecordField(self, field_name: str, record: Any) -> None:
        """Add a field to the net's output record.

        Raises:
            NetError: the net has no output record.
        """
        if self._output_record is None:
            raise NetError(f"net {self} has no output record to add {field_name!r} to; call set_output_record first")
        added = Struct((field_name, record))
        declared = set(self._net.external_output)
        self.AddExternalOutput(*[blob for blob in added.field_blobs() if str(blob) not in declared])
        self._output_record = self._output_record + added

    def recover_input_record_by_prefix(self, prefix: str) -> None:
        """Set the input record to the external inputs whose names begin with ``prefix``."""
        record = _by_prefix(self.external_inputs, prefix)
        if record is not None:
            self.set_input_record(record)

    def recover_output_record_by_prefix(self, prefix: str) -> None:
        """Set the output record to the external outputs whose names begin with ``prefix``."""
        record = _by_prefix(self.external_outputs, prefix)
        if record is not None:
            self.set_output_record(record)

    def Clone(
        self,
        name: str,
        blob_remap: Mapping[Any, Any] | None = None,
        op_id_mask: Iterable[int] | None = None,
        remap_funcs: Mapping[str, RemapFunction] | None = None,
        keep_schema: bool = True,
        update_external_list: bool = False,
    ) -> Net:
        """Return a copy of the net; see ``Net.Clone``.

        Args:
            keep_schema: give the copy this net's records, with the new blobs.
        """
        copy = super().Clone(name, blob_remap, op_id_mask, remap_funcs, update_external_list=update_external_list)
        names = {blob_name(old): blob_name(new) for old, new in (blob_remap or {}).items()}
        for which in ("_input_record", "_output_record"):
            record = getattr(self, which)
            if keep_schema and record is not None:
                blobs = [BlobReference(names.get(str(blob), str(blob)), copy) for blob in record.field_blobs()]
                setattr(copy, which, from_blob_list(record, blobs))
        return copy


def _check_record(net: Any, which: str, record: Any, before: Any) -> None:
    if not isinstance(record, Field):
        raise TypeError(f"net {net}: the {which} record must be a record such as a schema.Struct, got {record!r}")
    if before is not None and not (
        record.has_blobs()
        and before == record
        and list(map(str, before.field_blobs())) == list(map(str, record.field_blobs()))
    ):
        raise NetError(f"net {net}: already has another {which} record")


def _by_prefix(blobs: list[BlobReference], prefix: str) -> Any:
    found = [blob for blob in blobs if str(blob).startswith(prefix)]
    names = [str(blob)[len(prefix) :] for blob in found]
    return from_column_list(names, col_blobs=found) if found else None


def clone_and_bind_net(
    net: RecordNet,
    name: str,
    prefix: str,
    blob_remap: Mapping[Any, Any] | None = None,
    inputs: Field | None = None,
    keep_schema: bool = True,
) -> tuple[Net, dict[BlobReference, BlobReference]]:
    """Return a copy of a net that reads ``inputs``, with a prefix on other blobs, and a dict old blob -> new blob.

    Args:
        name: of the copy.
        prefix: put before the names of blobs that are neither renamed by ``blob_remap`` nor external inputs outside
            of the input record.
        blob_remap: old blob -> new blob.
        inputs: replaces the net's input record; None: keep it.
        keep_schema: give the copy the net's records.

    Raises:
        NetError: ``inputs`` lacks a field of the net's input record, or the net has no such record.
    """
    names = {str(old): str(new) for old, new in (blob_remap or {}).items()}
    record = net.input_record()
    if inputs is not None:
        if record is None:
            raise NetError(f"clone_and_bind_net: net {net} has no input record to bind {inputs.field_names()} to")
        given = dict(zip(inputs.field_names(), inputs.field_blobs()))
        expected = dict(zip(record.field_names(), record.field_blobs()))
        if missing := [field for field in expected if field not in given]:
            raise NetError(f"clone_and_bind_net: net {net} reads the fields {missing}, which the inputs do not have")
        names.update((str(blob), str(given[field])) for field, blob in expected.items())
    outside = set(net.Proto().external_input)
    for blob in net.UsedBlobNames():
        if blob not in names and blob not in outside:
            names[blob] = prefix + blob
    copy = net.Clone(name, blob_remap=names, keep_schema=keep_schema)
    return copy, {BlobReference(old): BlobReference(new) for old, new in names.items()}
