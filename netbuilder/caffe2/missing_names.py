"""Why the compatibility layer lacks a module or name of Caffe2, and what to use instead."""

from __future__ import annotations

__all__ = ["GROUPS", "REASONS", "reason_of"]

GROUPS: tuple[tuple[str, str], ...] = (
    (
        "cases of operators' tests are not stored; the tests run",
        "python.serialized_test.serialized_test_util.testWithArgs "
        "python.serialized_test.serialized_test_util.SerializedTestCase.assertSerializedOperatorChecks "
        "python.serialized_test.serialized_test_util.SerializedTestCase.compare_test "
        "python.serialized_test.serialized_test_util.SerializedTestCase.get_output_dir "
        "python.serialized_test.serialized_test_util.SerializedTestCase.get_output_filename "
        "python.serialized_test.serialized_test_util.SerializedTestCase.serialize_test",
    ),
    (
        "use Parallelize_CPU(shared_model=True)",
        "python.data_parallel_model._PruneParametersForSharing "
        "python.data_parallel_model._RemapParameterBlobsForSharedModel",
    ),
    (
        "use Parallelize(combine_spatial_bn=True)",
        "python.data_parallel_model._CPUInterDeviceBatchNormalization "
        "python.data_parallel_model._GPUInterDeviceBatchNormalization python.data_parallel_model._InterleaveOps",
    ),
    (
        "later versions of Caffe2 call it _AllReduceBlobs; Parallelize does all of it in one call",
        "python.data_parallel_model._AllReduceGradients python.data_parallel_model._AllReduceGradientsDistributed "
        "python.data_parallel_model._AllReduceGradientsSingleHost",
    ),
    (
        "later versions of Caffe2 call it _SyncAllParams; Parallelize does all of it in one call",
        "python.data_parallel_model._AddDistributedParameterSync python.data_parallel_model._SyncParams",
    ),
    (
        "later versions of Caffe2 call it OptimizeGradientMemory, or Parallelize(optimize_gradient_memory=True)",
        "python.data_parallel_model._OptimizeGradientMemory",
    ),
    ("later versions of Caffe2 call it stripBlobName", "python.data_parallel_model.stripParamName"),
    (
        "it belongs to Caffe2's own tests; build optimizers with builders such as build_sgd",
        "python.optimizer_test_util",
    ),
    (
        "its operators are not supported",
        "python.brew.video_input python.cnn.CNNModelHelper.VideoInput python.helpers.tools",
    ),
    (
        "Caffe2 itself has no such operator in its usual builds",
        "python.brew.fc_decomp python.brew.fc_prune python.brew.fc_sparse python.brew.packed_fc "
        "python.cnn.CNNModelHelper.FC_Decomp python.cnn.CNNModelHelper.FC_Prune "
        "python.cnn.CNNModelHelper.FC_Sparse python.cnn.CNNModelHelper.PackedFC python.helpers.fc.fc_decomp "
        "python.helpers.fc.fc_prune python.helpers.fc.fc_sparse python.helpers.fc.packed_fc",
    ),
    (
        "quantized nets are not supported",
        "python.workspace.FetchInt8Blob python.workspace.FetchInt8BlobRealVal python.workspace.Int8Tensor "
        "python.fakefp16_transform_lib python.fakelowp",
    ),
    (
        "use netbuilder-benchmark lstm to benchmark recurrent nets",
        "python.lstm_benchmark python.rnn.lstm_comparison",
    ),
    (
        "use onnx.backend and onnx.frontend, or netbuilder.exchange.onnx, which has more options",
        "python.onnx.backend_cpp_rep python.onnx.bin python.onnx.error python.onnx.onnxifi "
        "python.onnx.test_onnxifi python.onnx.tests",
    ),
    (
        "it is internal to Caffe2's control flow; use net_builder, control, brew.cond or brew.loop for branches and "
        "loops",
        "python.control_ops_util",
    ),
    (
        "layer models are not supported; use ModelHelper and brew",
        "python.layer_model_helper python.layer_model_instantiator python.layer_test_util python.layers "
        "python.functional",
    ),
    (
        "Caffe2's own tests are not included; hypothesis_test_util has the helpers that they use",
        "python.operator_test",
    ),
    (
        "Caffe2's scripts and examples are not included; copies of them run unchanged, and netbuilder-train is a "
        "trainer",
        "python.examples python.embedding_generation_benchmark python.benchmark_generator",
    ),
    (
        "nothing is downloaded; the files of a trained model must be in $CAFFE2_MODELS/NAME or ~/.caffe2/models/NAME",
        "python.models.download.DOWNLOAD_BASE_URL python.models.download.DOWNLOAD_COLUMNS "
        "python.models.download.deleteDirectory python.models.download.downloadFromURLToFile "
        "python.models.download.getURLFromName python.models.download.progressBar "
        "python.models.download.signalHandler python.models.__sym_init__ python.models.squeezenet "
        "python.models.resnet50 python.models.bvlc_googlenet",
    ),
    (
        "it belongs to Caffe2's own build and has no counterpart here",
        "python.binarysize python.convert python.docs python.extension_loader python.hip_test_util "
        "python.ideep python.ideep_test_util python.mint python.mkl python.mkl_test_util python.nomnigraph "
        "python.nomnigraph_transformations python.numa_benchmark python.trt proto.prof_dag_pb2 "
        "proto.torch_pb2 python.workspace.StartMint python.workspace.FetchTorch "
        "python.workspace.GetNumNUMANodes python.workspace.GetBlobNUMANode python.workspace.IsNUMAEnabled "
        "python.workspace.GetStats python.workspace.CreateOfflineTensor "
        "python.workspace.CallWithExceptionIntercept python.core.Net.operator_registry_",
    ),
    (
        "it is internal to Caffe2's gradient construction; here an operator's class defines its gradient, see "
        "netbuilder.ops.core.operator.Operator",
        "python.core.GradGenMeta python.core.SparseGradGenMeta python.core.OpSSA "
        "python.core.IR.AUTOGEN_GRAD_SUFFIX python.core.IR.AppendSparseGenerators "
        "python.core.IR.BuildGradientGenerators python.core.IR.CheckGradientOperatorInput "
        "python.core.IR.DoGradientAccumulation python.core.IR.Play python.core.IR.SanityCheck",
    ),
    (
        "global observers are not supported; use BenchmarkNet to time a net and its operators",
        "python.workspace.ClearGlobalNetObserver",
    ),
    (
        "use create_param or AddParameter",
        "python.model_helper.ModelHelper.add_param_DEPRECATED python.model_helper.DEFAULT_OPTIM",
    ),
    (
        "inside a brew.arg_scope block the helpers get its arguments without this function",
        "python.helpers.arg_scope.get_current_scope",
    ),
    (
        'use Python\'s logger "netbuilder"',
        "python.checkpoint.logger python.memonger.log python.modeling.gradient_clipping.logger "
        "python.modeling.parameter_sharing.logger python.models.resnet.log python.net_drawer.logger "
        "python.optimizer.logger python.queue_util.logger python.schema.logger python.workspace.logger",
    ),
    (
        "later versions of Caffe2 have context.Managed and context.DefaultManaged instead",
        "python.context.ContextInfo python.context.ContextManager python.context.context_manager "
        "python.context.current python.context.define_context python.context.get_active_context",
    ),
    (
        "later versions of Caffe2 have no such name; use get_param_info or GetOptimizationParamInfo",
        "python.model_helper.ModelHelper.param_info python.modeling.parameter_info.ParameterType "
        "python.modeling.parameter_info.ParameterInfo.grad_type",
    ),
    (
        "it is internal to Caffe2",
        "python.brew.HelperWrapper python.core.DEFAULT_REMAP_FUNCS python.crf.CRFWithLoss.pad_labels "
        "python.crf.CRFWithLoss.pad_predictions python.data_parallel_model.barrier_instance "
        "python.dyndep.dll_lock python.models.shufflenet.OUTPUT_CHANNELS python.optimizer.FP16_ENGINES "
        "python.workspace.operator_tracebacks",
    ),
    (
        "later versions of Caffe2 have no such member",
        "python.cached_reader.CachedReader.build_cache python.cached_reader.CachedReader.has_cache "
        "python.checkpoint.Job.add_stop_signal python.dataio.PipedReaderBuilder.enqueue_splits "
        "python.dataio.PipedReaderBuilder.splits python.dataio.ReaderBuilder.enqueue_splits "
        "python.dataio.ReaderBuilder.splits "
        "python.predictor.predictor_exporter.PredictorExportMeta.train_init_plan_name "
        "python.predictor.predictor_exporter.PredictorExportMeta.train_plan_name",
    ),
)
"""Reasons, each with the names that it applies to, without "caffe2."."""

REASONS: dict[str, str] = {name: reason for reason, names in GROUPS for name in names.split()}


def reason_of(name: str) -> str:
    """Return why the compatibility layer lacks a module or name; "" if no reason is listed.

    Args:
        name: without "caffe2.", such as "python.memonger"; names in a missing module get the reason of the module.

    >>> reason_of("python.helpers.tools.video_input")
    'its operators are not supported'
    """
    while name:
        if name in REASONS:
            return REASONS[name]
        name = name.rpartition(".")[0]
    return ""
