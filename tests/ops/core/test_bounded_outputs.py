"""Where only the data tell the size of a result: one that memory cannot hold is refused before it is tried.

The cases run in one process of their own, whose memory is limited: an operator without a bound gets a MemoryError
there and takes nothing from the tests.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from netbuilder.ops.core import given_numbers
from netbuilder.ops.core.operator import Operator
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.losses.hierarchical_softmax import create_hierarchy, create_node_with_words
from netbuilder.proto import NetError
from netbuilder.proto.arguments import make_op
from netbuilder.proto.hsm_pb2 import HierarchyProto, PathNodeProto, PathProto, TreeProto
from netbuilder.runtime import Workspace

MEMORY = 1 << 30  # that the operators believe the machine to have
ADDRESSES = 8 << 30  # that the process with the cases may use, libraries included
REFUSED = (
    r"(takes [\d,]+ bytes, and the memory of this machine has|cannot have the shape .*: no array can|arrays? can have)"
)


class Case(NamedTuple):
    """An operator, its inputs ``i0``, ``i1``, ..., and its outputs; a string is the name of a blob that is there."""

    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[str, ...]
    arguments: dict[str, Any]


def case(kind: str, *inputs: Any, outputs: int | tuple[str, ...] = 1, **arguments: Any) -> Case:
    names = tuple(f"o{i}" for i in range(outputs)) if isinstance(outputs, int) else outputs
    return Case(kind, inputs, names, arguments)


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def i32(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


MANY, MOST = 1 << 40, 1 << 62
ROW, WIDE, NONE = np.ones((1, 2), np.float32), np.ones((1, 1 << 16), np.float32), np.ones((1, 0), np.float32)
ONE, KEY, HERE = np.ones(1, np.float32), i64(0), np.ones(1, bool)
BYTES = np.ones(1 << 16, np.uint8)
IMAGE, NO_IMAGE = np.ones((1, 1, 2, 2), np.float32), np.ones((0, 1, 2, 2), np.float32)
OFTEN = np.zeros(1 << 11, np.int64)  # an index that occurs often
PACKED = (np.r_[i64(1 << 12), np.zeros(1 << 12, np.int64)], np.ones((1 << 12, 64), np.float32))  # one long, many empty
NEARLY = i64(MEMORY // 24 - 100)  # the rows of one feature fit, those of several do not
STEPS = HierarchyProto(
    paths=[PathProto(word_id=0, path_nodes=[PathNodeProto(index=0, length=1 << 16, target=0)] * 16)]
).SerializeToString()
TREE = TreeProto(root_node=create_node_with_words([0, 1], "root"))
create_hierarchy(TREE)
SPREADS = ("LengthsMeanGradient", "LengthsSumGradient", "SparseLengthsMeanGradient", "SparseLengthsSumGradient")
FILLS = ("ConstantFill", "GaussianFill", "MSRAFill", "RangeFill", "UniformFill", "XavierFill")
GIVEN = {
    "GivenTensorBoolFill": [True], "GivenTensorByteStringToUInt8Fill": ["a"], "GivenTensorDoubleFill": [1.0],
    "GivenTensorFill": [1.0], "GivenTensorInt16Fill": [1], "GivenTensorInt64Fill": [1], "GivenTensorIntFill": [1],
    "GivenTensorStringFill": ["a"],
}  # fmt: skip

CASES = [
    case("LengthsTile", ROW, i64(MANY)),
    case("LengthsTile", ROW, i64(MOST)),
    case("LengthsToSegmentIds", i64(MANY)),
    case("LengthsToWeights", i64(MANY)),
    case("LengthsSplit", i64(3), i64(MANY)),
    case("LengthsSplit", i64(3), i64(MOST)),
    case("LengthsGather", BYTES, i64(BYTES.size), OFTEN),
    case("LengthsRangeFill", np.full(1 << 8, 2**31 - 1, np.int32)),
    case("SegmentIdsToLengths", i64(MANY)),
    case("SegmentIdsToLengths", i64(0), np.ones((MANY, 0), np.float32)),
    case("SegmentIdsToRanges", i64(MANY)),
    case("SegmentIdsToRanges", i64(0), np.ones((MANY, 0), np.float32)),
    case("GatherRanges", BYTES, np.tile(i64(0, BYTES.size), (1, OFTEN.size, 1)), outputs=2),
    case("LengthsTopKGradient", i64(MANY), np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32), k=1),
    *(
        case(kind, ROW, i64(lengths))
        for kind in SPREADS
        for lengths in (MANY, MOST)
    ),
    case("PackSegments", i64(MANY), ROW),
    case("PackSegments", *PACKED),
    case("PackRNNSequence", *PACKED[::-1]),
    case("PadEmptySamples", i64(MANY), ROW, outputs=2),
    *(case(kind, ROW, i64(MANY)) for kind in ("UnsortedSegmentMean", "UnsortedSegmentSum")),
    case("UnsortedSegmentMean", NONE, i64(MANY)),
    *(
        case(f"SparseUnsortedSegment{kind}", x, i64(0), i64(segment))
        for kind in ("Mean", "Sum")
        for x, segment in ((ROW, MANY), (WIDE, 1 << 20), (NONE, MANY))
    ),
    *(
        case("SparseUnsortedSegmentWeightedSum", x, ONE, i64(0), i64(segment))
        for x, segment in ((ROW, MANY), (WIDE, 1 << 20))
    ),
    *(case("UnsortedSegmentWeightedSum", x, ONE, i64(segment)) for x, segment in ((ROW, MANY), (WIDE, 1 << 20))),
    case("SparseToDense", i64(MANY), ROW),
    case("CTCBeamSearchDecoder", np.ones((2, 1, 3), np.float32), outputs=3, num_candidates=MANY),
    case("CTCBeamSearchDecoder", np.ones((2, 1, 3), np.float32), outputs=3, beam_width=MANY),
    case("LRN", np.ones((1, 2, 2, 2), np.float32), outputs=2, size=MANY + 1, alpha=1.0, beta=0.5),
    case("HSoftmax", WIDE[:, :1].repeat(256, 0), np.ones((1 << 16, 1), np.float32), np.ones(1 << 16, np.float32),
         np.zeros(256, np.int32), outputs=2, hierarchy=STEPS),
    case("HSoftmaxGradient", WIDE[:, :1].repeat(256, 0), np.ones((1 << 16, 1), np.float32),
         np.ones(1 << 16, np.float32), np.zeros(256, np.int32), ONE, np.ones(256, np.float32), outputs=4,
         hierarchy=STEPS),
    case("HSoftmaxSearch", ROW, np.ones((2, 2), np.float32), np.ones(2, np.float32), outputs=2, topN=MANY,
         tree=TREE.SerializeToString()),
    case("MergeSingleListFeatureTensors", i64(MANY), ONE, HERE, outputs=4, feature_ids=[1]),
    case("MergeSingleMapFeatureTensors", i64(MANY), KEY, ONE, HERE, outputs=5, feature_ids=[1]),
    case("MergeMultiScalarFeatureTensors", i64(MANY), KEY, ONE, outputs=3),
    case("MergeMultiScalarFeatureTensors", *(NEARLY, KEY, ONE) * 8, outputs=3),
    case("MergeMultiListFeatureTensors", i64(MANY), KEY, i64(1), ONE, outputs=4),
    case("MergeMultiListFeatureTensors", i64(1), KEY, i64(MANY), ONE, outputs=4),
    case("MergeMultiMapFeatureTensors", i64(1), KEY, i64(MANY), KEY, ONE, outputs=5),
    case("MergeSingleScalarFeatureTensorsGradient", ~HERE, np.ones((0, MANY), np.float32), feature_ids=[1]),
    case("MergeSingleListFeatureTensorsGradient", i64(MANY), HERE, ONE, feature_ids=[1]),
    case("MergeSingleMapFeatureTensorsGradient", i64(MANY), HERE, ONE, feature_ids=[1]),
    case("MergeMultiScalarFeatureTensorsGradient", i64(MANY), ONE),
    case("MergeMultiListFeatureTensorsGradient", i64(1), i64(MANY), ONE),
    case("MergeMultiMapFeatureTensorsGradient", i64(1), i64(MANY), ONE),
    case("SegmentOneHot", i64(1), i64(0), i64(MANY)),
    case("OneHot", i64(0), i64(MANY)),
    case("OneHot", i64(), i64(MANY)),
    case("Range", i64(MOST)),
    case("Range", np.zeros(1), np.ones(1), np.full(1, 1e-300)),
    *(case(kind, i64(MANY), input_as_shape=1) for kind in FILLS),
    *(case(kind, i64(MANY), input_as_shape=1, values=values) for kind, values in GIVEN.items()),
    case("DiagonalFill", i64(MANY, MANY), input_as_shape=1),
    case("UniformIntFill", i64(MANY), input_as_shape=1, min=0, max=3),
    case("UniqueUniformFill", i64(MANY), input_as_shape=1, min=0, max=MOST, dtype=10),
    case("UniqueUniformFill", i64(1 << 26), input_as_shape=1, min=0, max=MOST, dtype=10),
    case("UniqueUniformFill", i64(1 << 26), input_as_shape=1, min=0, max=1 << 27, dtype=10),
    case("Tile", ROW, i64(MANY)),
    case("NumpyTile", ROW, i64(MANY, 1)),
    case("Expand", ROW, i64(MANY, 1)),
    case("TopK", ROW, i64(MANY), outputs=2),
    case("TopK", ROW, i64(MOST), outputs=2),
    *(
        case(kind, x, np.array([scale, 1], np.float32))
        for kind in ("ResizeNearest", "UpsampleBilinear")
        for x, scale in ((IMAGE, 1e12), (NO_IMAGE, 1e12), (IMAGE, np.inf))
    ),
    *(case(f"ReduceFront{kind}Gradient", np.ones(3, np.float32), i64(MANY, 3)) for kind in ("Sum", "Mean")),
    *(case(f"ReduceBack{kind}Gradient", np.ones(3, np.float32), i64(3, MANY)) for kind in ("Sum", "Mean")),
    case("ReduceFrontWeightedSumGradient", WIDE[0], WIDE[0], i64(1 << 16, 1 << 16)),
    case("ReservoirSampling", "i0", i64(MANY), ROW, "mutex", outputs=("i0", "i1"), num_to_collect=MANY),
    case("LastNWindowCollector", "i0", i32(2**31 - 2), ROW, outputs=("i0", "i1"), num_to_collect=MANY),
    case("ReadRandomBatch", "cursor", np.zeros(1 << 15, np.int64), i64(0, 1 << 16)[:, None], BYTES, batch_size=1 << 15),
    case("ImageInput", outputs=2, batch_size=MANY, crop=8, db="none", db_type="minidb"),
]  # fmt: skip

# Why no data make the outputs large -> which operators.
BOUNDED = {
    "it chooses some of the rows or elements of an input": (
        "BooleanMask BoxWithNMSLimit CollectAndDistributeFpnRpnProposals CollectRpnProposals CTCGreedyDecoder "
        "DenseVectorToIdList DistributeFpnProposals FindDuplicateElements FlexibleTopK GenerateProposals "
        "GenerateProposalsCPP MergeDenseFeatureTensors MergeIdLists MergeSingleScalarFeatureTensors "
        "NonMaxSuppression RemoveDataBlocks "
        "SampleAs Slice SparseLengthsSumSparseLookup StumpFuncIndex SumRepeatedRows Unique UnpackRNNSequence "
        "UnpackSegments"
    ),
    "it shares an input out among the outputs": (
        "DepthSplit KeySplit LengthsPartition Partition Split SplitByLengths"
    ),
    "the output has the elements of an input, or fewer": "Reshape SliceGradient TileGradient",
    "an index along each axis of each element of an input, at most": "NonZero",
    "X itself is an input": "ReduceBackMaxGradient ReduceFrontMaxGradient",
    "the segments have no gaps: there is one for each row or index, at most": (
        "SortedSegmentMean SortedSegmentRangeLogMeanExp SortedSegmentRangeLogSumExp SortedSegmentRangeMax "
        "SortedSegmentRangeMean SortedSegmentRangeSum SortedSegmentSum SortedSegmentWeightedSum "
        "SparseSortedSegmentMean SparseSortedSegmentSum SparseSortedSegmentWeightedSum"
    ),
    "at most one more id for each length": "SparseDropoutWithReplacement",
    "a byte holds at most 8 codes": "FusedRandRowwiseQuantizedToFloat",
    "the scales are arguments": "ResizeNearest3D",
    "it adds to an output that exists": "Accumulate",
    "it returns or keeps values that exist, or numbers and names of them": (
        "Append AsyncNetBarrier AtomicAppend CollectTensor ComputeOffset ConcatTensorVector CreateBlobsQueueDB "
        "CreateTensorVector CreateTreeCursor DataCouple DequeueBlobs DequeueRebatchingQueue EnqueueBlobs "
        "EnqueueRebatchingQueue EstimateAllBlobSizes GetAllBlobNames GetCursorOffset IndexStore MapToKeyValue "
        "PackRecords ReadNextBatch RecurrentNetworkBlobFetcher SafeDequeueBlobs SafeEnqueueBlobs SortAndShuffle "
        "StatRegistryExport StoreGet Summarize TensorVectorSize TrimDataset UnPackRecords UnsafeCoalesce "
        "WeightedSampleDequeueBlobs"
    ),
    "it returns what files hold; who reads them compares extents with the bytes that are there": (
        "CreateTextFileReader Load TensorProtosDBInput TextFileReaderRead"
    ),
    "it has no output, or none but its inputs": (
        "CheckDatasetConsistency Checkpoint CloseBlobsQueue CloseRebatchingQueue Fail LogFatal Print ResetCursor Save "
        "SendTensor Snapshot ThrowException"
    ),
    "it holds the inputs of all processes, whose number is fixed": "Allgather RowsToOwners",
    "it needs two processes; what the sender announces is checked": "ReceiveTensor",
    "the operators of its nets have bounds of their own": (
        "Do If ONNXWhile ParallelDo ParallelDoGradient While WhileGradient"
    ),
    "it is a function of the user": "Python PythonGradient",
    "onnx computes it; windows, pads and stated shapes are checked: tests/ops/control/test_onnx_node.py": "ONNXNode",
}  # fmt: skip


def prepared(workspace: Workspace) -> None:
    """Make the blobs that cases name."""
    workspace.run_operator_once(make_op("CreateMutex", [], ["mutex"]))
    workspace.run_operator_once(make_op("CreateTreeCursor", [], ["cursor"], fields=["bytes"]))


def outcome(workspace: Workspace, case: Case) -> list[str]:
    """Run a case; return the kind of its error and the message."""
    names = [f"i{i}" if not isinstance(value, str) else value for i, value in enumerate(case.inputs)]
    workspace.feed("i0", np.zeros((0, 2), np.float32))
    for name, value in zip(names, case.inputs):
        if not isinstance(value, str):
            workspace.feed(name, value)
    try:
        workspace.run_operator_once(make_op(case.kind, names, case.outputs, **case.arguments))
    except Exception as error:
        return ["refused" if isinstance(error, NetError) else type(error).__name__, str(error)]
    return ["ran", ""]


def run_all(limit: str) -> None:
    """Run all cases, in little memory, and print what came of each."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    given_numbers.CGROUP = Path(limit)
    given_numbers.machine_memory.cache_clear()
    workspace = Workspace(threads=1)
    prepared(workspace)
    for each in CASES:
        print(json.dumps(outcome(workspace, each)), flush=True)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    limit = tmp_path_factory.mktemp("limits") / "memory.max"
    limit.write_text(str(MEMORY))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(limit)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == len(CASES), f"ended with {run.returncode} at {CASES[len(found)]}\n{run.stderr}"
    return found


@pytest.mark.one_in(24)
@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{case.kind}-{i}" for i, case in enumerate(CASES)])
def test_what_memory_cannot_hold_is_refused(index: int, outcomes: list[list[str]]) -> None:
    case, (what, message) = CASES[index], outcomes[index]
    assert what == "refused", f"{what}: {message}"
    assert re.search(rf"{case.kind}: .*{REFUSED}", message), message


def may_be_dynamic(cls: type[Operator]) -> bool:
    """Whether the output shapes of some operators of a class depend on data."""
    sets = any("with_arity" in vars(base) and '"dynamic"' in inspect.getsource(base.with_arity) for base in cls.__mro__)
    return cls.dynamic or sets or cls.static_for is not Operator.static_for


def test_every_operator_whose_size_the_data_tell_has_a_case_or_a_reason() -> None:
    dynamic = {op_type for op_type in operator_types() if may_be_dynamic(find(op_type))}
    tested = {case.kind for case in CASES}
    listed = [op_type for names in BOUNDED.values() for op_type in names.split()]
    assert sorted(dynamic - tested - set(listed)) == [], "add a case with hostile data, or a reason to BOUNDED"
    assert sorted(set(listed) - dynamic) == [], "no such operator, or its shapes do not depend on data"
    assert len(listed) == len(set(listed)) and not tested & set(listed)


@pytest.mark.parametrize("tiles", [1 << 40, 1 << 62])
def test_no_elements_however_often_they_are_repeated(tiles: int) -> None:
    workspace = Workspace(threads=1)
    workspace.feed("x", np.ones((0, 2), np.float32))
    workspace.feed("tiles", i64(tiles))
    for kind in ("Tile", "TileGradient"):
        workspace.run_operator_once(make_op(kind, ["x", "tiles"], ["y"]))
        assert workspace.fetch("y").shape == (0, 2)


if __name__ == "__main__":
    run_all(sys.argv[1])
