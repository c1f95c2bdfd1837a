"""Caffe2 modules whose names come from other modules, and names that its modules import from each other."""

from __future__ import annotations

__all__ = ["MODULES", "REEXPORTS", "module_text", "source_module"]

MODULES: dict[str, tuple[str, str]] = {
    "proto.caffe2_legacy_pb2": (
        "The values of the argument ``legacy_pad``.",
        "ops.core.conv_geometry: CAFFE_LEGACY_POOLING NOTSET SAME VALID",
    ),
    "proto.hsm_pb2": (
        "Messages of the hierarchical softmax.",
        "proto.hsm_pb2: DESCRIPTOR HierarchyProto NodeProto PathNodeProto PathProto TreeProto",
    ),
    "proto.metanet_pb2": (
        "Messages of predictor files.",
        "proto.netbuilder_pb2: DESCRIPTOR BlobsMap MetaNetDef ModelInfo NetsMap PlansMap StringMap",
    ),
    "proto.predictor_consts_pb2": (
        "The keys of predictor files.",
        "proto.netbuilder_pb2: DESCRIPTOR PredictorConsts",
    ),
    "python.attention": (
        "Attention in Caffe2's four kinds.",
        "model.rnn.attention: AttentionType apply_dot_attention apply_recurrent_attention apply_regular_attention "
        "apply_soft_coverage_attention; model.rnn.cell: joined_name=s",
    ),
    "python.cached_reader": (
        "Readers that cache their records in a database.",
        "caffe2.jobs.file_readers: CachedReader",
    ),
    "python.checkpoint": (
        "Jobs that run epochs, save a checkpoint after each, and resume from one.",
        "caffe2.jobs.checkpoint_managers: CheckpointManager MultiNodeCheckpointManager db_name get_ckpt_filename; "
        "caffe2.jobs.job: Job JobRunner UploadTaskGroupBuilder epoch_limiter",
    ),
    "python.control": (
        "Branches and loops as execution steps.",
        "caffe2.jobs.control: BoolNet CombineConditions Do DoParallel DoUntil DoWhile For GetConditionBlobFromNet "
        "If IfNot MergeConditionNets NotNet Switch SwitchNot Until While",
    ),
    "python.crf": ("Linear-chain conditional random fields.", "model.rnn.crf: CRFWithLoss"),
    "python.crf_predict": (
        "The best path of a conditional random field.",
        "model.rnn.crf: apply_crf crf_update_predictions",
    ),
    "python.data_parallel_model": (
        "Data parallelism: replicas of a model over devices.",
        "parallel: AddBlobSync ConvertNetForDevice CreateNet ExtractPredictorNet FinalizeAfterCheckpoint "
        "GetCheckpointParams GetLearningRateBlobNames OptimizeGradientMemory RunInitNet RunNet RunWarmup Synchronize "
        "stripBlobName; "
        "caffe2.parallelize: Parallelize Parallelize_BMUF Parallelize_CPU Parallelize_CPU_BMUF Parallelize_GPU "
        "Parallelize_GPU_BMUF Parallelize_iDeep; "
        "caffe2.data_parallel_helpers: _AddBarrierToModelNets _AddDynamicMemoryOptimization _AddGradientOperators "
        "_AllReduce _AllReduceBlobs _AllReduceBlobsDistributed _AllReduceBlobsSingleHost _AnalyzeOperators _Broadcast "
        "_BroadcastComputedParams _BroadcastComputedParamsDistributed _BroadcastComputedParamsSingleHost "
        "_ComputeBlobsToSync _CreateBarrierNet _CreateOrCloneCommonWorld _DEFAULT_BARRIER_NET_TIMEOUT_SEC "
        "_DEFAULT_TIMEOUT_SEC _ForEachDevice _GetReverseOrderedGrads _GroupByDevice _InferBlobDevice _IsGPUBlob "
        "_IsIDEEPBlob _OptimizeGradientMemorySimple _RunComparison _SyncAllParams _SyncAllParamsDistributed "
        "_SyncAllParamsSingleHost _ValidateParams AddDistributedBlobSync CollectivesConcurrencyControl log",
    ),
    "python.dataio": (
        "Readers and writers of records, and pipes.",
        "caffe2.jobs.limited_readers: CompositeReader CompositeReaderBuilder CounterReader CountUntil "
        "ReaderWithDelay ReaderWithLimit ReaderWithLimitBase ReaderWithTimeLimit; caffe2.jobs.readers: Pipe "
        "PipedReaderBuilder Reader ReaderBuilder Writer",
    ),
    "python.db_file_reader": ("Data sets in databases as readers.", "caffe2.jobs.file_readers: DBFileReader"),
    "python.gru_cell": ("GRU cells and layers.", "model.rnn.gru: GRUCell; model.rnn.layers: GRU"),
    "python.helpers.algebra": (
        "Sums, products and the like.",
        "model.helpers.algebra: batch_mat_mul mat_mul reduce_sum sub sum transpose; model.helpers.outputs: arg_min; "
        "model.helpers.quantization: sparse_lengths_sum_4bit_rowwise_sparse",
    ),
    "python.helpers.arg_scope": (
        "Arguments that layer helpers get from a block around their calls.",
        "model.brew: arg_scope",
    ),
    "python.helpers.array_helpers": ("Concatenation.", "model.helpers.outputs: concat depth_concat"),
    "python.helpers.control_ops": ("Branches and loops.", "model.helpers.control: cond loop"),
    "python.helpers.conv": (
        "Convolutions.",
        "model.helpers.conv: conv conv_nd conv_transpose group_conv group_conv_deprecated",
    ),
    "python.helpers.db_input": ("Readers of databases.", "model.helpers.inputs: db_input"),
    "python.helpers.dropout": ("Dropout.", "model.helpers.dropout: dropout"),
    "python.helpers.elementwise_linear": (
        "A scale and a bias per feature.",
        "model.helpers.elementwise_linear: elementwise_linear",
    ),
    "python.helpers.fc": ("Fully connected layers.", "model.helpers.fc: fc"),
    "python.helpers.nonlinearity": ("Activation functions.", "model.helpers.nonlinearity: prelu relu tanh"),
    "python.helpers.normalization": (
        "Normalization, and softmax.",
        "caffe2.layer_norm: layer_norm; model.helpers.normalization: instance_norm lrn moments_with_running_stats "
        "spatial_bn spatial_gn; model.helpers.outputs: softmax",
    ),
    "python.helpers.pooling": ("Pooling.", "model.helpers.pooling: average_pool max_pool max_pool_with_index"),
    "python.helpers.quantization": (
        "Quantized tables.",
        "model.helpers.quantization: fused_8bit_rowwise_quantized_to_float",
    ),
    "python.helpers.train": (
        "Parts of training nets besides layers.",
        "model.helpers.outputs: accuracy; model.helpers.train: add_weight_decay iter",
    ),
    "python.hsm_util": (
        "Trees of words for the hierarchical softmax.",
        "ops.losses.hierarchical_softmax: create_hierarchy create_node_with_nodes create_node_with_words; "
        "proto: hsm_pb2",
    ),
    "python.modeling.initializers": (
        "Initializers of parameters.",
        "model.initializers: ExternalInitializer Initializer PseudoFP16Initializer "
        "PseudoFP16Initializer=pFP16Initializer ReversePseudoFP16Initializer "
        "ReversePseudoFP16Initializer=ReversepFP16Initializer update_initializer",
    ),
    "python.modeling.parameter_info": (
        "Descriptions of parameters.",
        "model.parameter_info: ParameterInfo ParameterTags",
    ),
    "python.models.resnet": (
        "Residual nets.",
        "zoo.residual: ResNetBuilder; zoo.resnet: create_resnet50 create_resnet_32x32; zoo.resnext: "
        "RESNEXT_BLOCK_CONFIG RESNEXT_STRIDES create_resnext",
    ),
    "python.models.seq2seq.beam_search": (
        "Beam search as a part of a net.",
        "model.seq2seq.beam_net: BeamSearchForwardOnly",
    ),
    "python.models.seq2seq.seq2seq_util": (
        "Words, encoders and decoders of sequence-to-sequence nets.",
        "model.seq2seq.decoder: LSTMWithAttentionDecoder build_embedding_decoder build_initial_rnn_decoder_states "
        "output_projection; model.seq2seq.encoder: build_embedding_encoder build_embeddings get_layer_scope "
        "rnn_bidirectional_layer rnn_unidirectional_layer; model.seq2seq.vocabulary: EOS EOS_ID GO GO_ID PAD PAD_ID "
        "UNK UNK_ID gen_vocab get_numberized_sentence",
    ),
    "python.models.shufflenet": (
        "ShuffleNet v2.",
        "zoo.shufflenet_v2: ShuffleNetV2Builder create_shufflenet_v2=create_shufflenet",
    ),
    "python.modifier_context": (
        "Modifiers of parameters by name, current within a block.",
        "caffe2.modifier_contexts: DEFAULT_MODIFIER ModifierContext UseModifierBase",
    ),
    "python.net_builder": (
        "Builders of nets and steps; ``ops``.",
        "caffe2.jobs.net_builder: NetBuilder; caffe2.jobs.operations: Operations ops",
    ),
    "python.net_printer": (
        "Nets, steps, plans, tasks and groups of tasks as text; and checks of their inputs.",
        "caffe2.analyzer: Analyzer analyze analyze_job analyze_net analyze_op analyze_step analyze_task "
        "analyze_task_group; caffe2.printer: Printer Text call commonprefix debug_net factor_prefix "
        "format_device_option format_value print_job print_net print_net_def print_op print_step print_task "
        "print_task_group to_string; caffe2.visitor: Visitor",
    ),
    "python.normalizer_context": (
        "Normalizers by name, current within a block.",
        "caffe2.modifier_contexts: NormalizerContext UseNormalizer",
    ),
    "python.optimizer_context": (
        "Optimizers by name, current within a block.",
        "caffe2.modifier_contexts: DEFAULT_MODIFIER=DEFAULT_OPTIM OptimizerContext UseOptimizer",
    ),
    "python.pipeline": (
        "Tasks whose threads read, process and write records.",
        "caffe2.jobs.operations: ops; caffe2.jobs.pipeline: DEFAULT_QUEUE_CAPACITY NetProcessor Output "
        "ProcessingReader make_processor normalize_processor_output pipe pipe_and_output processor_name",
    ),
    "python.queue_util": (
        "Queues as pipes between tasks.",
        "caffe2.jobs.queues: Queue QueueWrapper close_queue dequeue enqueue",
    ),
    "python.record_queue": ("A queue that threads fill from a reader.", "caffe2.jobs.record_queue: RecordQueue"),
    "python.regularizer_context": (
        "Regularizers by name, current within a block.",
        "caffe2.modifier_contexts: RegularizerContext UseRegularizer",
    ),
    "python.schema": (
        "Records: blobs by field name; feeding and fetching of records.",
        "caffe2.record_values: FeedRecord FetchRecord; caffe2.records: FIELD_SEPARATOR ConstRecord FeatureSpec "
        "Field InitEmptyRecord List ListWithEvicted Map MapWithEvicted Metadata NamedTuple NewRecord RawTuple "
        "Scalar Struct Tuple as_record attach_metadata_to_scalars data_type_for_dtype dtype_for_core_type "
        "equal_schemas from_blob_list from_column_list from_dtype is_schema_subset schema_check",
    ),
    "python.session": ("Sessions, which run tasks.", "caffe2.jobs.session: CompiledRunnable LocalSession Session"),
    "python.task": (
        "Tasks, groups of tasks, nodes.",
        "caffe2.jobs.cluster: Cluster Node; caffe2.jobs.outputs: TaskOutput TaskOutputList; caffe2.jobs.task: Task "
        "TaskGroup WorkspaceType final_output; caffe2.jobs.task_setup: SetupNets add_setup_steps get_setup_nets",
    ),
    "python.text_file_reader": ("Text files as readers.", "caffe2.jobs.file_readers: TextFileReader"),
}
"""Module name: its docstring and its names, grouped by the modules they come from ("there=here": renamed).

Module names omit ``netbuilder.caffe2.``, the modules that names come from omit ``netbuilder.``.
"""

REEXPORTS: dict[str, str] = {
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
    "recurrent": "rnn_cell: LSTM LSTMWithAttention MILSTM",  # where they were until April 2017
    "rnn_cell": "attention: apply_dot_attention apply_recurrent_attention apply_regular_attention "
    "apply_soft_coverage_attention; model_helper: ModelHelper; modeling.initializers: Initializer; "
    "modeling.parameter_info: ParameterTags; modeling.parameter_sharing: ParameterSharing",
    "schema": "core: BlobReference",
    "session": "task: Cluster Task TaskGroup WorkspaceType",
    "task": "schema: Field from_blob_list",
    "text_file_reader": "dataio: Reader; schema: Scalar Struct data_type_for_dtype",
}
"""Further names of modules, grouped by the modules they come from; all without ``caffe2.python.``."""


def source_module(module: str, name: str) -> str | None:
    """Return the module that a name in ``REEXPORTS`` comes from, or None; modules omit ``caffe2.python.``.

    >>> source_module("dataset", "Struct")
    'schema'
    """
    for part in REEXPORTS.get(module, "").split("; "):
        home, _, names = part.partition(": ")
        if name in names.split():
            return home
    return None


def module_text(name: str) -> str | None:
    """Return the source code of a module in ``MODULES``, or None.

    A name assigned in the module is assigned in its source, too, if that belongs to the compatibility layer.
    """
    if name not in MODULES:
        return None
    doc, sources = MODULES[name]
    lines, listed, forwarded = [], [], {}
    for part in sources.split("; "):
        source, _, names = part.partition(": ")
        for there, _, here in (entry.partition("=") for entry in names.split()):
            lines.append(f"from netbuilder.{source} import {there} as {here or there}")
            listed.append(here or there)
            if source.startswith("caffe2."):
                forwarded[listed[-1]] = (f"netbuilder.{source}", there)
    return f'''"""{doc}"""
import sys
from netbuilder._modules import ReexportingModule
from netbuilder.caffe2.missing import names_of
{"; ".join(lines)}
__all__ = {sorted(name for name in listed if not name.startswith("_"))}
__getattr__ = names_of(__name__)
_sources = {forwarded}
sys.modules[__name__].__class__ = ReexportingModule
'''
