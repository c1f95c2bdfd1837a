"""The walk over the registry: every operator has its tests, a plain kernel and golden cases, or a reason not to."""

from __future__ import annotations

import functools

import pytest

import golden_data
from all_suites import all_suites
from netbuilder.ops.core.registry import CPU, find, operator_types, plain_kernel

# What an operator may lack -> why -> which operators. The gradient operator of one of them (its name with
# "Gradient") may lack it too.
EXEMPT: dict[str, dict[str, str]] = {
    "suite": {
        "it works on records and on objects in blobs, see tests/ops/records/test_datasets.py": (
            "Append AtomicAppend CheckDatasetConsistency CollectTensor ComputeOffset ConcatTensorVector "
            "CreateTensorVector CreateTreeCursor GetCursorOffset PackRecords ReadNextBatch ReadRandomBatch "
            "ResetCursor SortAndShuffle TensorVectorSize TrimDataset UnPackRecords"
        ),
        "it is its step net, linked by names; see tests/ops/recurrent": "RecurrentNetwork",
    },
    "kernel": {
        "the plan compiles its step net, whose operators have plain kernels": "RecurrentNetwork",
    },
    "golden": {
        "Caffe2 computed the same when its tests were written; no case of it is stored": (
            "Acos Asin Atan BatchOneHot BatchPermutation BitwiseAnd BitwiseOr BitwiseXor BooleanMask "
            "BooleanMaskLengths BooleanUnmask Bucketize Cbrt Checkpoint CloseBlobsQueue Col2Im ConvRelu Cosh "
            "CreateBlobsQueue CreateMap CreateTextFileReader DataCouple DBExists DequeueBlobs EnqueueBlobs Erf "
            "EstimateAllBlobSizes FeedBlob Find GetAllBlobNames GivenTensorByteStringToUInt8Fill "
            "GivenTensorInt16Fill Glu Histogram HSoftmaxSearch HuffmanTreeHierarchy Im2Col KeySplit KeyValueToMap "
            "LastNWindowCollector LengthsGather LengthsPad LengthsSplit LengthsToOffsets LengthsToRanges "
            "LengthsToWeights Log1p Logit MapToKeyValue MergeDim Mish Mod NGramFromCategorical ONNXWhile "
            "PackSegments PrependDim ReluN RemoveDataBlocks ReservoirSampling ResizeNearest3D ReversePackedSegs "
            "RoIAlign SafeDequeueBlobs SafeEnqueueBlobs SegmentIdsToRanges SequenceMask Sinh Snapshot "
            "SparseDropoutWithReplacement SparseItemwiseDropoutWithReplacement SparseLengthsPositionalWeightedSum "
            "SparseLengthsSumSparseLookup StringEndsWith StringEquals StringJoin StringPrefix StringStartsWith "
            "StringSuffix Summarize SumRelu Tan TextFileReaderRead TT TTLinearGradient TTSparseLengthsSum "
            "UniqueUniformFill UnpackSegments WeightedMultiSampling WeightedSample"
        ),
        "cases cannot store objects; Caffe2 computed the same when its tests were written": (
            "AtomicFetchAdd AtomicFetchAdd64 CheckAtomicBool CheckCounterDone CloseRebatchingQueue "
            "ConditionalSetAtomicBool CountDown CountUp CreateAtomicBool CreateBlobsQueueDB CreateCounter "
            "CreateRebatchingQueue CreateScope DequeueRebatchingQueue EnqueueRebatchingQueue HasScope IndexFreeze "
            "IndexGet IndexLoad IndexSize IndexStore IntIndexCreate LongIndexCreate ResetCounter RetrieveCount "
            "StatRegistryCreate StatRegistryExport StatRegistryUpdate StringIndexCreate TimerBegin TimerEnd "
            "TimerGet TimerGetAndEnd WeightedSampleDequeueBlobs"
        ),
        "Caffe2 has it on GPUs only": (
            "DeformConv GroupSpatialSoftmax MaxPoolWithIndex PSRoIPool RoIAlignRotatedGradient RoIPoolF "
            "RoIPoolGradient SampleAs SelectSmoothL1Loss SigmoidCrossEntropyLoss SigmoidFocalLoss SmoothL1Loss "
            "SoftmaxFocalLoss SpatialNarrowAs UpsampleNearest"
        ),
        "Caffe2 has it on GPUs only; its description was followed": "FP16MomentumSGDUpdate FP32MomentumSGDUpdate",
        "Caffe2 does not have it; see tests/parallel/test_parallel_do.py": "ParallelDo",
        "Caffe2 does not have it; see tests/parallel/test_batch_means.py": "MeanDivisor WholeBatchMean",
        "Caffe2 does not have it; see tests/parallel/test_gradient_scaling.py": (
            "AllFinite DivideBlobs RestoreBlobs SaveBlobs UpdateGradientScale"
        ),
        "Conv, MaxPool or AveragePool under another name": (
            "AveragePool1D AveragePool2D AveragePool3D Conv1D Conv2D Conv3D MaxPool1D MaxPool2D MaxPool3D"
        ),
        "Caffe2 ran a script with it, tests/caffe2/scripts/records_in_blobs.py": (
            "Append AtomicAppend CheckDatasetConsistency CollectTensor ComputeOffset ConcatTensorVector "
            "CreateTensorVector CreateTreeCursor GetCursorOffset PackRecords ReadNextBatch ReadRandomBatch "
            "ResetCursor SortAndShuffle TensorVectorSize TrimDataset UnPackRecords"
        ),
        "Caffe2 runs it on several processes only; sums in float64 are compared": (
            "Allgather Allreduce Broadcast CloneCommonWorld CreateCommonWorld DestroyCommonWorld ReceiveTensor Reduce "
            "ReduceScatter"
        ),
        "Caffe2 does not have it; sums in float64 are compared": (
            "AllreduceBucket AllreduceInt8 AllreduceLowRank AllreduceThreshold AllreduceTopK AverageChunk "
            "BroadcastBucket GatherFromOwners ReduceToOwners"
        ),
        "Caffe2 does not have it; indexing of the whole table is compared": "LookupRows RowsToOwners",
        "it works on a store": "FileStoreHandlerCreate RedisStoreHandlerCreate StoreAdd StoreGet",
        "Caffe2 does not have it; ONNX's own cases are compared": (
            "CumSum GatherElements GatherND GridSample NonMaxSuppression NonZero Pad ReduceProd Round ScatterElements "
            "ScatterND Trilu WhereGradient"
        ),
        "it has no output": (
            "AveragePut Barrier Fail IncrementPut LogFatal Print SendTensor StdDevPut StoreSet StoreWait "
            "ThrowException ZeroGradient"
        ),
        "Caffe2 has no such operator; the cases of ONNX's own tests are compared": "ONNXGRU ONNXLSTM ONNXNode ONNXRNN",
        "its tests compare with files that Caffe2 wrote and with what it read": "Load Save",
        "functions cannot be stored; the gradient operator is compared in its own tests": "Python",
        "no stored net for GPUs has it": "NCCLAllGather NCCLReduce",
        "it copies as Copy does": "CopyFromCPUInput EnsureCPUOutput",
        "Caffe2 puts it into nets while they run": "rnn_internal_accumulate_gradient_input rnn_internal_apply_link",
        "it is Split under its old name": "DepthSplit",
        "no stored net holds nets; its structure was compared with Caffe2's by hand": "If",
        "no stored net holds nets": "While",
        "Caffe2 has another: its gradient of a loop is a loop over scopes": "WhileGradient",
        "its output has another form here; Caffe2 computed the same when its tests were written": (
            "RecurrentNetworkBlobFetcher"
        ),
        "no stored case has grad_on_weights; Caffe2 computed the same when its tests were written": (
            "LengthsWeightedSumWithMainInputGradient"
        ),
        "the Caffe2 that computed the golden data was built without OpenCV, which it needs for it": "ImageInput",
        "no case can store the time": "WallClockTime",
        "no stored net holds nets; its gradient operator was compared with Caffe2's": "Do",
        "Caffe2 does not have it": (
            "Attention CastGradient LogSoftmax NormalizeImages PowGradient RotaryEmbedding SumRepeatedRows"
        ),
        "the recorded nets of beam searches hold it": "Conditional",
        "Caffe2 has no kernel for it on a CPU": "SparseLengthsMax",
    },
}


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


def _exempt(what: str) -> list[str]:
    return [op_type for op_types in EXEMPT[what].values() for op_type in op_types.split()]


@pytest.mark.parametrize("what", ["suite", "kernel", "golden"])
def test_every_operator_is_tested(what):
    exempt = set(_exempt(what))
    missing = {op_type for op_type in operator_types() if not _has(op_type, what)}
    unexplained = {op_type for op_type in missing - exempt if op_type.removesuffix("Gradient") not in exempt}
    assert sorted(unexplained) == [], f"these have no {what}: add one, or say in EXEMPT, above, why not"
    assert sorted(exempt - missing) == [], f"these have a {what}: drop them from EXEMPT"


@pytest.mark.parametrize("what", EXEMPT)
def test_exemptions_are_of_registered_operators_each_listed_once(what):
    exempt = _exempt(what)
    assert set(exempt) <= set(operator_types())
    assert len(exempt) == len(set(exempt))


def test_every_operator_says_what_it_is():
    texts = {op_type: find(op_type).__dict__.get("__doc__") or "" for op_type in operator_types()}
    assert [name for name, text in texts.items() if not text or text.startswith(f"{name}(")] == []
