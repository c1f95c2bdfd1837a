"""Why operators are not written to ONNX: the error of the export says it, and so does the table in docs/onnx.md."""

from __future__ import annotations

from netbuilder.ops.core.registry import find, is_registered

__all__ = ["FAMILIES", "GROUPS", "reason"]

FAMILIES = {
    "collectives": "it exchanges values between devices or processes",
    "records": "it reads, stores or queues records",
    "updates": "it updates parameters or the state of an optimizer",
    "quantized": "its rows are bytes with a scale of their own; dequantize them before the net",
    "losses": "it needs labels, or decodes labels on the host; export what is before it",
}
"""Packages of ``ops`` of which no operator that has no rule can be written, and why."""

GROUPS: tuple[tuple[str, str], ...] = (
    (
        "the shape of its result depends on the values of its inputs, and export needs those of all values",
        "BooleanMask BooleanMaskLengths BooleanUnmask SampleAs NonZero Range LengthsRangeFill Unique SparseToDense "
        "FlexibleTopK LengthsTopK LengthsToShape LengthsGather LengthsPad LengthsSplit LengthsTile LengthsToOffsets "
        "LengthsToRanges LengthsToSegmentIds LengthsToWeights SegmentIdsToLengths SegmentIdsToRanges PackSegments "
        "UnpackSegments PackRNNSequence UnpackRNNSequence AddPadding RemovePadding GatherPadding GatherRanges "
        "GatherRangesToDense SortedSegmentMean SortedSegmentSum SortedSegmentRangeLogMeanExp "
        "SortedSegmentRangeLogSumExp SortedSegmentRangeMax SortedSegmentRangeMean SortedSegmentRangeSum "
        "SortedSegmentWeightedSum SparseSortedSegmentMean SparseSortedSegmentSum SparseSortedSegmentWeightedSum "
        "SparseUnsortedSegmentMean SparseUnsortedSegmentSum SparseUnsortedSegmentWeightedSum "
        "UnsortedSegmentWeightedSum SplitByLengths VariableLengthSequencePadding SegmentOneHot NGramFromCategorical "
        "DenseVectorToIdList MergeIdLists PadEmptySamples BatchDenseToSparse BatchSparseToDense FindDuplicateElements "
        "SparseToDenseMask RemoveDataBlocks Partition LengthsPartition GatherByKey Find",
    ),
    (
        "it chooses boxes, whose number depends on the image; export the net up to it",
        "NonMaxSuppression BoxWithNMSLimit CollectAndDistributeFpnRpnProposals CollectRpnProposals "
        "DistributeFpnProposals GenerateProposals GenerateProposalsCPP RMACRegions",
    ),
    (
        "ONNX has no counterpart, and the nodes that compute it would be many and slow",
        "BBoxTransform HeatmapMaxKeypoint PSRoIPool RoIAlignRotated Col2Im Im2Col LC LC1D "
        "LC2D LC3D ConcatBatchMatMulBatchGatherOp DotProductWithPadding TT TTSparseLengthsSum "
        "BatchBucketOneHot BatchBucketize PiecewiseLinearTransform BisectPercentile "
        "Percentile Quantile Histogram AccumulateHistogram SelfBinningHistogram SparseLengthsPositionalWeightedSum "
        "SparseLengthsSumSparseLookup BRGNCHWCToPackedInt8BGRAStylizerDeprocess "
        "PackedInt8BGRANHWCToNCHWCStylizerPreprocess StumpFuncIndex CopyRowsToTensor UnsafeCoalesce",
    ),
    (
        "it prepares images on a GPU; export what is after it, which reads prepared images",
        "NormalizeImages",
    ),
    (
        "it draws random numbers",
        "Float16UniformFill GaussianFill MSRAFill UniformFill UniformIntFill XavierFill UniqueUniformFill "
        "WeightedMultiSampling WeightedSample SparseDropoutWithReplacement SparseItemwiseDropoutWithReplacement",
    ),
    (
        "it is written only if it has no inputs, or its inputs are constants",
        "DiagonalFill RangeFill Float16ConstantFill GivenTensorBoolFill GivenTensorByteStringToUInt8Fill "
        "GivenTensorDoubleFill GivenTensorFill GivenTensorInt16Fill GivenTensorInt64Fill GivenTensorIntFill "
        "GivenTensorStringFill IndexHash",
    ),
    (
        "it runs nets, and the shapes of what they make are known only then",
        "Do ParallelDo CreateScope HasScope RecurrentNetworkBlobFetcher rnn_internal_apply_link "
        "rnn_internal_accumulate_gradient_input AsyncNetBarrier",
    ),
    (
        "it is a node that ONNX itself runs; keep the model that it was read from",
        "ONNXNode",
    ),
    (
        "it runs Python",
        "Python",
    ),
    (
        "it checks, counts, prints or measures while the net runs, and computes nothing; leave it out of the predictor",
        "Assert EnforceFinite NanCheck AtomicFetchAdd AtomicFetchAdd64 CheckAtomicBool CheckCounterDone "
        "ConditionalSetAtomicBool CountDown CountUp CreateAtomicBool CreateCounter ResetCounter RetrieveCount FeedBlob "
        "Free Fail LogFatal ThrowException Print AveragePut IncrementPut StdDevPut Summarize StatRegistryCreate "
        "StatRegistryExport StatRegistryUpdate TimerBegin TimerEnd TimerGet TimerGetAndEnd WallClockTime "
        "EstimateAllBlobSizes GetAllBlobNames",
    ),
    (
        "it keeps a state from run to run",
        "DataCouple LastNWindowCollector ReservoirSampling IndexFreeze IndexGet IndexLoad IndexSize IndexStore "
        "IntIndexCreate LongIndexCreate StringIndexCreate ScatterAssign ScatterWeightedSum Accumulate",
    ),
    (
        "it works on maps or lists of features, which ONNX does not have",
        "CreateMap KeySplit KeyValueToMap MapToKeyValue MergeDenseFeatureTensors MergeMultiListFeatureTensors "
        "MergeMultiMapFeatureTensors MergeMultiScalarFeatureTensors MergeSingleListFeatureTensors "
        "MergeSingleMapFeatureTensors MergeSingleScalarFeatureTensors",
    ),
    (
        "it is part of a loss or of the backward pass; export what is before it",
        "ChannelBackpropStats SigmoidFocalLoss SoftmaxFocalLoss SigmoidCrossEntropyLoss SelectSmoothL1Loss "
        "SmoothL1Loss",
    ),
)
"""(why, the operators separated by spaces)."""


def reason(op_type: str) -> str:
    """Return why operators of a type cannot be written."""
    found = next((why for why, names in GROUPS if op_type in names.split()), None)
    if found is not None:
        return found
    cls = find(op_type) if is_registered(op_type) else None
    if cls is not None and (cls.gradient_of is not None or op_type.endswith("Gradient")):
        return "it computes gradients, which a predictor does without"
    _, _, family, *_ = (*cls.__module__.split("."), "", "", "") if cls is not None else ("",) * 3
    return FAMILIES.get(family, "ONNX has no counterpart")
