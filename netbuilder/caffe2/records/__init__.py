"""Records: blobs by field name, in structures, lists and maps."""

from netbuilder.caffe2.records.build import (
    ConstRecord,
    InitEmptyRecord,
    NewRecord,
    as_record,
    attach_metadata_to_scalars,
    from_blob_list,
    from_dtype,
)
from netbuilder.caffe2.records.columns import from_column_list
from netbuilder.caffe2.records.compare import equal_schemas, is_schema_subset, schema_check
from netbuilder.caffe2.records.data_types import data_type_for_dtype, dtype_for_core_type
from netbuilder.caffe2.records.field import FIELD_SEPARATOR, FeatureSpec, Field, Metadata
from netbuilder.caffe2.records.lists import List, ListWithEvicted, Map, MapWithEvicted
from netbuilder.caffe2.records.scalar import Scalar
from netbuilder.caffe2.records.struct import NamedTuple, RawTuple, Struct, Tuple

__all__ = [
    "FIELD_SEPARATOR",
    "ConstRecord",
    "FeatureSpec",
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
