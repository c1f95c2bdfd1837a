"""The walk over the registry: every operator has its tests, a plain kernel and golden cases, or a reason not to."""

from __future__ import annotations

import functools

import pytest

import golden_data
import netbuilder.ops.all  # noqa: F401  (fills the registry)
from all_suites import all_suites
from netbuilder.ops.core.registry import CPU, find, operator_types, plain_kernel

# Operator -> what it goes without ("suite", "kernel", "golden") -> why.
EXEMPT: dict[str, dict[str, str]] = {
    "DepthSplit": {"golden": "no stored net has it; it is Split under its old name"},
    "If": {"golden": "no stored net holds nets; its structure was compared with Caffe2's by hand"},
    "While": {"golden": "no stored net holds nets"},
    "WhileGradient": {"golden": "of our own: Caffe2's gradient of a loop is a loop over scopes"},
    "Save": {
        "golden": "no stored net has it; files that it wrote, and what it gave in Caffe2, are compared in its tests"
    },
    "Load": {
        "golden": "no stored net has it; files that it wrote, and what it gave in Caffe2, are compared in its tests"
    },
    "RecurrentNetworkBlobFetcher": {"golden": "what is kept of steps is of our own form; run beside Caffe2 by hand"},
    "ReversePackedSegs": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "ZeroGradient": {"golden": "it has no output"},
    "Checkpoint": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "Snapshot": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "DBExists": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "GetAllBlobNames": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "Summarize": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "CreateTextFileReader": {"golden": "no stored net has it; files were read beside Caffe2 once"},
    "TextFileReaderRead": {"golden": "no stored net has it; files were read beside Caffe2 once"},
    "CreateBlobsQueue": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "EnqueueBlobs": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "SafeEnqueueBlobs": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "DequeueBlobs": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "SafeDequeueBlobs": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "CloseBlobsQueue": {"golden": "no stored net has it; it was run beside Caffe2 once"},
    "Python": {"golden": "functions cannot be stored; its gradient operator is compared in its own tests"},
    "PythonGradient": {"golden": "functions cannot be stored"},
    "NCCLAllGather": {"golden": "no stored net for GPUs gathers"},
    "NCCLReduce": {"golden": "no stored net for GPUs reduces to one of them"},
    "CopyFromCPUInput": {"golden": "no stored net has it; it copies as Copy does"},
    "EnsureCPUOutput": {"golden": "no stored net has it; it copies as Copy does"},
    "GivenTensorByteStringToUInt8Fill": {"golden": "no export stored holds bytes so; run beside Caffe2 once"},
    "FP16MomentumSGDUpdate": {"golden": "Caffe2 runs it on GPUs only; its description was followed"},
    "FP32MomentumSGDUpdate": {"golden": "as FP16MomentumSGDUpdate"},
    "LengthsWeightedSumWithMainInputGradient": {
        "golden": "no stored case has grad_on_weights; run beside Caffe2 by hand"
    },
    "SparseLengthsPositionalWeightedSum": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LengthsGather": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LengthsPad": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LengthsSplit": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LengthsToOffsets": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LengthsToRanges": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LengthsToWeights": {"golden": "no stored case; run beside Caffe2 by hand"},
    "SegmentIdsToRanges": {"golden": "no stored case; run beside Caffe2 by hand"},
    "PackSegments": {"golden": "no stored case; run beside Caffe2 by hand"},
    "UnpackSegments": {"golden": "no stored case; run beside Caffe2 by hand"},
    "SequenceMask": {"golden": "no stored case; run beside Caffe2 by hand"},
    "GivenTensorInt16Fill": {"golden": "no export stored holds int16; run beside Caffe2 once"},
    "SmoothL1Loss": {"golden": "Caffe2 has it for GPUs alone"},
    "SmoothL1LossGradient": {"golden": "Caffe2 has it for GPUs alone"},
    "SelectSmoothL1Loss": {"golden": "Caffe2 has it for GPUs alone"},
    "SelectSmoothL1LossGradient": {"golden": "Caffe2 has it for GPUs alone"},
    "Mish": {"golden": "no stored case; run beside Caffe2 by hand"},
    "MishGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "ReluN": {"golden": "no stored case; run beside Caffe2 by hand"},
    "ReluNGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Erf": {"golden": "no stored case; run beside Caffe2 by hand"},
    "ErfGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "ResizeNearest3D": {"golden": "no stored case; run beside Caffe2 by hand"},
    "ResizeNearest3DGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "CreateCounter": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "CountUp": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "CountDown": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "CheckCounterDone": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "ResetCounter": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "RetrieveCount": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "CreateAtomicBool": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "ConditionalSetAtomicBool": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "CheckAtomicBool": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "AtomicFetchAdd": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "AtomicFetchAdd64": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "TimerBegin": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "TimerEnd": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "TimerGet": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "TimerGetAndEnd": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "StatRegistryCreate": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "StatRegistryExport": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "StatRegistryUpdate": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "ImageInput": {"golden": "that Caffe2 has been built without OpenCV, which it needs for it"},
    "WallClockTime": {"golden": "no case can store the time"},
    "Do": {"golden": "no stored net holds nets; its gradient operator was compared with Caffe2's"},
    "CreateScope": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "HasScope": {"golden": "cases cannot store objects; run beside Caffe2 once"},
    "AveragePool1D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "AveragePool1DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "AveragePool2D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "AveragePool2DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "AveragePool3D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "AveragePool3DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Conv1D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Conv1DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Conv2D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Conv2DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Conv3D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Conv3DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "MaxPool1D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "MaxPool1DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "MaxPool2D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "MaxPool2DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "MaxPool3D": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "MaxPool3DGradient": {"golden": "Conv, MaxPool or AveragePool under another name"},
    "Tan": {"golden": "no stored case; run beside Caffe2 by hand"},
    "TanGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Asin": {"golden": "no stored case; run beside Caffe2 by hand"},
    "AsinGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Acos": {"golden": "no stored case; run beside Caffe2 by hand"},
    "AcosGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Atan": {"golden": "no stored case; run beside Caffe2 by hand"},
    "AtanGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Sinh": {"golden": "no stored case; run beside Caffe2 by hand"},
    "SinhGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Cosh": {"golden": "no stored case; run beside Caffe2 by hand"},
    "CoshGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "SumRepeatedRows": {"golden": "Caffe2 does not have it"},
    "Cbrt": {"golden": "no stored case; run beside Caffe2 by hand"},
    "CbrtGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Log1p": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Log1pGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Logit": {"golden": "no stored case; run beside Caffe2 by hand"},
    "LogitGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Mod": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BitwiseAnd": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BitwiseOr": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BitwiseXor": {"golden": "no stored case; run beside Caffe2 by hand"},
    "MergeDim": {"golden": "no stored case; run beside Caffe2 by hand"},
    "PrependDim": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Glu": {"golden": "no stored case; run beside Caffe2 by hand"},
    "RoIAlign": {"golden": "no stored case; run beside Caffe2 by hand"},
    "RoIAlignGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Im2Col": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Col2Im": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BooleanMask": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BooleanMaskGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BooleanUnmask": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BooleanMaskLengths": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Find": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Bucketize": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Histogram": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BatchOneHot": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BatchPermutation": {"golden": "no stored case; run beside Caffe2 by hand"},
    "BatchPermutationGradient": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Conditional": {"golden": "the recorded nets of beam searches hold it"},
    "ConvRelu": {"golden": "no stored case; run beside Caffe2 by hand"},
    "SumRelu": {"golden": "no stored case; run beside Caffe2 by hand"},
    "Print": {"golden": "it has no output"},
    "RecurrentNetwork": {
        "suite": "it is its step net, linked by names; see tests/ops/recurrent",
        "kernel": "the plan compiles its step net, whose operators have plain kernels",
    },
    "RecurrentNetworkGradient": {
        "suite": "it is its step net, linked by names; see tests/ops/recurrent",
        "kernel": "the plan compiles its step net, whose operators have plain kernels",
    },
    "rnn_internal_accumulate_gradient_input": {"golden": "Caffe2 puts it into nets while they run"},
    "rnn_internal_apply_link": {"golden": "Caffe2 puts it into nets while they run"},
}

for _op_type in (
    "Append AtomicAppend CheckDatasetConsistency CollectTensor ComputeOffset ConcatTensorVector "
    "CreateTensorVector CreateTreeCursor GetCursorOffset PackRecords ReadNextBatch ReadRandomBatch "
    "ResetCursor SortAndShuffle TensorVectorSize TrimDataset UnPackRecords"
).split():
    EXEMPT[_op_type] = {
        "suite": "it works on records and on objects in blobs, see test_datasets",
        "golden": "no stored net has it; a script was run on Caffe2, see tests/caffe2/scripts/records_in_blobs.py",
    }

for _op_type in (
    "IndexFreeze",
    "IndexGet",
    "IndexLoad",
    "IndexSize",
    "IndexStore",
    "IntIndexCreate",
    "LongIndexCreate",
    "StringIndexCreate",
):
    EXEMPT[_op_type] = {"golden": "cases cannot store objects; run beside Caffe2 once, see test_index"}

for _op_type in (
    "DeformConv",
    "DeformConvGradient",
    "MaxPoolWithIndex",
    "MaxPoolWithIndexGradient",
    "RoIAlignRotatedGradient",
    "RoIPoolGradient",
):
    EXEMPT[_op_type] = {"golden": "Caffe2 has it on GPUs only"}

for _op_type in (
    "GroupSpatialSoftmax GroupSpatialSoftmaxGradient SampleAs SampleAsGradient SigmoidCrossEntropyLoss "
    "SigmoidCrossEntropyLossGradient SigmoidFocalLoss SigmoidFocalLossGradient SoftmaxFocalLoss "
    "PSRoIPool PSRoIPoolGradient RoIPoolF RoIPoolFGradient "
    "SoftmaxFocalLossGradient SpatialNarrowAs SpatialNarrowAsGradient UpsampleNearest UpsampleNearestGradient"
).split():
    EXEMPT[_op_type] = {"golden": "Caffe2 has it in a module apart, for GPUs"}

for _op_type in (
    "CreateMap DataCouple KeySplit KeyValueToMap LastNWindowCollector MapToKeyValue NGramFromCategorical "
    "RemoveDataBlocks ReservoirSampling SparseDropoutWithReplacement SparseItemwiseDropoutWithReplacement "
    "SparseLengthsSumSparseLookup StringEndsWith StringEquals StringJoin StringPrefix StringStartsWith StringSuffix "
    "UniqueUniformFill WeightedMultiSampling WeightedSample"
).split():
    EXEMPT[_op_type] = {"golden": "no stored case; run beside Caffe2 by hand"}

for _op_type in ("TT", "TTLinearGradient", "TTSparseLengthsSum", "TTSparseLengthsSumGradient"):
    EXEMPT[_op_type] = {"golden": "no stored case; run beside Caffe2 by hand"}

for _op_type in ("AveragePut", "IncrementPut", "StdDevPut"):
    EXEMPT[_op_type] = {"golden": "it has no output; run beside Caffe2 once"}

for _op_type in (
    "CloseRebatchingQueue CreateBlobsQueueDB CreateRebatchingQueue DequeueRebatchingQueue EnqueueRebatchingQueue "
    "WeightedSampleDequeueBlobs"
).split():
    EXEMPT[_op_type] = {"golden": "cases cannot store objects; run beside Caffe2 once"}

EXEMPT["FeedBlob"] = {"golden": "no stored case; run beside Caffe2 by hand"}
for _op_type in ("Fail", "LogFatal", "ThrowException"):
    EXEMPT[_op_type] = {"golden": "it has no output"}
for _op_type in ("HSoftmaxSearch", "HuffmanTreeHierarchy"):
    EXEMPT[_op_type] = {"golden": "cases cannot store strings; run beside Caffe2 by hand"}
EXEMPT["SparseLengthsMax"] = {"golden": "Caffe2 has no kernel for it on a CPU"}
EXEMPT["EstimateAllBlobSizes"] = {"golden": "cases have no workspace; run beside Caffe2 by hand"}

for _op_type in ("ONNXGRU", "ONNXLSTM", "ONNXNode", "ONNXRNN"):
    EXEMPT[_op_type] = {"golden": "Caffe2 has no such operator; the cases of ONNX's own tests are compared"}

EXEMPT["ONNXWhile"] = {"golden": "no stored net holds nets; run beside Caffe2 by hand"}


@functools.cache
def golden_operators() -> set[str]:
    """Return the operators that golden cases run, as forward or as gradient operators, or that golden nets hold."""
    found = {op.type for case in golden_data.cases() for op in (case.operator, *case.gradient_ops)}
    for name in golden_data.nets():
        found |= {op.type for proto in golden_data.net(name).protos.values() for op in proto.op}
    for name in golden_data.exports():
        export = golden_data.export(name)
        for stored in export.protos:
            if not stored.startswith("meta_net_def"):
                found |= {op.type for op in export.net(stored).op}
    return found


def _has(op_type: str, what: str) -> bool:
    if what == "suite":
        return op_type in all_suites()
    if what == "kernel":
        return plain_kernel(op_type, CPU) is not None
    return op_type in golden_operators()


@pytest.mark.parametrize("what", ["suite", "kernel", "golden"])
def test_every_operator_is_tested(what):
    exempt = {op_type for op_type, row in EXEMPT.items() if what in row}
    missing = {op_type for op_type in operator_types() if not _has(op_type, what)}
    assert sorted(missing - exempt) == [], f"these have no {what}, and EXEMPT does not say why"
    assert sorted(exempt - missing) == [], f"these have a {what}: drop their lines from EXEMPT"


def test_exemptions_are_of_registered_operators():
    assert EXEMPT.keys() <= set(operator_types())
    assert {what for row in EXEMPT.values() for what in row} <= {"suite", "kernel", "golden"}
    assert all(reason for row in EXEMPT.values() for reason in row.values())


def test_every_operator_says_what_it_is():
    texts = {op_type: find(op_type).__dict__.get("__doc__") or "" for op_type in operator_types()}
    assert [name for name, text in texts.items() if not text or text.startswith(f"{name}(")] == []
