"""Names that Caffe2's modules take over from each other, and that scripts import from either."""

from __future__ import annotations

__all__ = ["TAKEN_OVER", "home_of"]

TAKEN_OVER: dict[str, str] = {
    "cached_reader": "db_file_reader: DBFileReader; pipeline: pipe; task: Cluster TaskGroup",
    "checkpoint": "net_builder: ops; task: Node Task TaskGroup TaskOutput WorkspaceType final_output",
    "dataio": "schema: Field Struct from_blob_list",
    "dataset": "dataio: Reader Writer; schema: InitEmptyRecord Struct from_blob_list from_column_list",
    "db_file_reader": "dataio: Reader; dataset: Dataset; schema: from_column_list",
    "model_helper": "optimizer_context: OptimizerContext; regularizer_context: RegularizerContext",
    "modeling.initializers": "core: BlobReference DataType ScopedBlobReference; modeling.parameter_info: ParameterInfo",
    "net_builder": "task: Task TaskGroup",
    "net_printer": "checkpoint: Job; task: TaskOutput WorkspaceType",
    "pipeline": "dataio: Reader Writer; net_builder: NetBuilder; schema: Field as_record; task: Node Task TaskGroup",
    "predictor.predictor_exporter": "predictor_constants: predictor_constants",
    "queue_util": "task: TaskGroup",
    "record_queue": "dataio: Reader Writer; schema: Field Struct from_column_list",
    "rnn_cell": "attention: apply_dot_attention apply_recurrent_attention apply_regular_attention "
    "apply_soft_coverage_attention; model_helper: ModelHelper; modeling.initializers: Initializer; "
    "modeling.parameter_info: ParameterTags; modeling.parameter_sharing: ParameterSharing",
    "schema": "core: BlobReference",
    "session": "task: Cluster Task TaskGroup WorkspaceType",
    "task": "schema: Field from_blob_list",
    "text_file_reader": "dataio: Reader; schema: Scalar Struct data_type_for_dtype",
}
"""Module, without ``caffe2.python.``, to the modules that its other names come from, each with these names."""


def home_of(module: str, name: str) -> str | None:
    """Return the module that a name of a module comes from, both without ``caffe2.python.``; None: from no other.

    >>> home_of("dataset", "Struct")
    'schema'
    """
    for part in TAKEN_OVER.get(module, "").split("; "):
        home, _, names = part.partition(": ")
        if name in names.split():
            return home
    return None
