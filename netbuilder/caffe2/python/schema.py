"""Records: blobs by the names of their fields. All that the library's own room has, and their values."""

from __future__ import annotations

from netbuilder.caffe2.absent import names_of
from netbuilder.graph.records import (
    FIELD_SEPARATOR,
    ConstRecord,
    FeatureSpec,
    Field,
    InitEmptyRecord,
    List,
    ListWithEvicted,
    Map,
    MapWithEvicted,
    Metadata,
    NamedTuple,
    NewRecord,
    RawTuple,
    Scalar,
    Struct,
    Tuple,
    as_record,
    attach_metadata_to_scalars,
    data_type_for_dtype,
    dtype_for_core_type,
    equal_schemas,
    from_blob_list,
    from_column_list,
    from_dtype,
    is_schema_subset,
    schema_check,
)
from netbuilder.runtime.records import FeedRecord, FetchRecord

__all__ = [
    "FIELD_SEPARATOR",
    "ConstRecord",
    "FeatureSpec",
    "FeedRecord",
    "FetchRecord",
    "Field",
    "InitEmptyRecord",
    "List",
    "ListWithEvicted",
    "Map",
    "MapWithEvicted",
    "Metadata",
    "NamedTuple",
    "NewRecord",
    "RawTuple",
    "Scalar",
    "Struct",
    "Tuple",
    "as_record",
    "attach_metadata_to_scalars",
    "data_type_for_dtype",
    "dtype_for_core_type",
    "equal_schemas",
    "from_blob_list",
    "from_column_list",
    "from_dtype",
    "is_schema_subset",
    "schema_check",
]

__getattr__ = names_of(__name__)
