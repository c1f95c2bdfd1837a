"""Why the compatibility layer does not have a module or name of Caffe2, and what there is instead."""

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
        "several hosts are not in this version",
        "python.data_parallel_model.AddDistributedBlobSync python.data_parallel_model.CollectivesConcurrencyControl",
    ),
    (
        "block-wise model updates are not in this version",
        "python.data_parallel_model.Parallelize_BMUF python.data_parallel_model.Parallelize_CPU_BMUF "
        "python.data_parallel_model.Parallelize_GPU_BMUF python.data_parallel_model.RunWarmup",
    ),
    (
        "an optimizer is built by its builder, as build_sgd; the tests of optimizers are Caffe2's own",
        "python.optimizer_test_util",
    ),
    (
        "its operators are not in this version",
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
        "quantized nets are not served",
        "python.workspace.FetchInt8Blob python.workspace.FetchInt8BlobRealVal python.workspace.Int8Tensor "
        "python.fakefp16_transform_lib python.fakelowp",
    ),
    (
        "netbuilder-benchmark lstm measures recurrent nets",
        "python.lstm_benchmark python.rnn.lstm_comparison",
    ),
    (
        "onnx.backend and onnx.frontend read and write models, and netbuilder.exchange.onnx with more options",
        "python.onnx.backend_cpp_rep python.onnx.backend_rep python.onnx.bin python.onnx.error "
        "python.onnx.helper python.onnx.onnxifi python.onnx.test_onnxifi python.onnx.tests "
        "python.onnx.workspace",
    ),
    (
        "it is a part of Caffe2's construction of control flow; net_builder, control, brew.cond and brew.loop add "
        "branches and loops",
        "python.control_ops_util",
    ),
    (
        "layer models are not served; brew adds layers to a ModelHelper",
        "python.layer_model_helper python.layer_model_instantiator python.layer_test_util python.layers "
        "python.functional",
    ),
    (
        "Caffe2's own tests are not a part of it; hypothesis_test_util has what tests are made of",
        "python.operator_test",
    ),
    (
        "scripts around Caffe2's examples are not a part of it; netbuilder-train is a trainer, and the examples "
        "run as they are",
        "python.examples python.embedding_generation_benchmark python.benchmark_generator python.models.download",
    ),
    (
        "Caffe 1 is not read",
        "python.caffe_translator python.utils.CaffeBlobToNumpyArray proto.caffe2_legacy_pb2",
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
        "it is a part of Caffe2's gradient construction; an operator's class has its gradient, see "
        "netbuilder.ops.core.operator.Operator",
        "python.core.GradGenMeta python.core.SparseGradGenMeta python.core.OpSSA "
        "python.core.IR.AUTOGEN_GRAD_SUFFIX python.core.IR.AppendSparseGenerators "
        "python.core.IR.BuildGradientGenerators python.core.IR.CheckGradientOperatorInput "
        "python.core.IR.DoGradientAccumulation python.core.IR.Play python.core.IR.SanityCheck",
    ),
    (
        "observers of nets are not served; BenchmarkNet times a net and its operators",
        "python.workspace.ClearGlobalNetObserver",
    ),
    (
        "create_param and AddParameter make parameters",
        "python.model_helper.ModelHelper.add_param_DEPRECATED python.model_helper.DEFAULT_OPTIM",
    ),
    (
        "brew.arg_scope is a block; its arguments reach the helpers by themselves",
        "python.helpers.arg_scope.get_current_scope",
    ),
)
"""Reasons, each with the names it is for, without "caffe2."."""

REASONS: dict[str, str] = {name: reason for reason, names in GROUPS for name in names.split()}


def reason_of(name: str) -> str:
    """Return why the compatibility layer lacks a module or name, "" if nothing is written about it.

    Args:
        name: without "caffe2.", such as "python.memonger"; what is in a missing module is missing with it.

    >>> reason_of("python.caffe_translator.main")
    'Caffe 1 is not read'
    """
    while name:
        if name in REASONS:
            return REASONS[name]
        name = name.rpartition(".")[0]
    return ""
