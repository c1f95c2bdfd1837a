"""What is traced of plain kernels, for all back ends: elementwise operators alone, in chains, and as updates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from netbuilder.engines.joined_updates import JoinedOperator, JoinedUpdates, UpdateForm
from netbuilder.engines.programs import Constant, HostNumber, Load, NotTraced, Program, Step, numpy_function
from netbuilder.engines.remembered import Remembered
from netbuilder.engines.tracing import Tracer
from netbuilder.ops.core.operator import Operator, TensorSpec
from netbuilder.ops.core.registry import CPU, GPU, plain_kernel
from netbuilder.proto.late_dataclass import dataclass

__all__ = [
    "ANY_SHAPE",
    "ELEMENTWISE",
    "UPDATES",
    "WITH_SUMS",
    "UpdateChain",
    "chainable_program",
    "keeps_zeros",
    "kernel_title",
    "operator_key",
    "trace_chain",
    "trace_inputs",
    "trace_operator",
    "trace_update_chain",
    "update_form",
]

ANY_SHAPE = (2,)
"""Stands for the shape of any tensor, so that updates which compute the same have the same program."""

ELEMENTWISE = frozenset(
    """
    Abs AbsGradient Acos AcosGradient Adadelta Adagrad Adam Add AddGradient AffineChannel AffineChannelGradient And
    Asin AsinGradient Atan AtanGradient AveragedLossGradient BatchBoxCox BatchMomentsGradient BernoulliJSD
    BernoulliJSDGradient BitwiseAnd BitwiseOr BitwiseXor Cast Cbrt CbrtGradient Ceil Clip ClipGradient
    ClipTensorByScaling Conditional ConstantFill Cos CosGradient Cosh CoshGradient CosineEmbeddingCriterion
    CosineEmbeddingCriterionGradient CrossEntropyGradient Cube CubeGradient DecayAdagrad Div DivGradient DivideBlobs
    DotProductGradient Dropout DropoutGrad EQ ElementwiseLinear Elu EluGradient Erf ErfGradient Exp ExpandGradient
    FP16MomentumSGDUpdate FP32MomentumSGDUpdate FloatToHalf Floor Ftrl GE GT Gelu GeluGradient HalfToFloat HardSigmoid
    HardSigmoidGradient IsNaN L1DistanceGradient LE LT LeakyRelu LeakyReluGradient LearningRate Log Log1p
    Log1pGradient Logit LogitGradient LpNormGradient MarginRankingCriterion MarginRankingCriterionGradient Max
    MaxGradient Mean MeanGradient Min MinGradient Mish MishGradient MomentsGradient MomentumSGD MomentumSGDUpdate Mul
    MulGradient NE NegateGradient Negative Not Or PRelu Pow Reciprocal ReciprocalGradient ReduceBackMaxGradient
    ReduceBackSumGradient ReduceFrontMaxGradient ReduceFrontSumGradient ReduceL1Gradient ReduceL2Gradient
    ReduceMaxGradient ReduceMeanGradient ReduceMinGradient ReduceSumGradient Relu ReluGradient ReluN ReluNGradient
    ReplaceNaN RestoreBlobs RmsProp RowMul Rsqrt RsqrtGradient SaveBlobs Scale Selu SeluGradient Sigmoid
    SigmoidCrossEntropyLossGradient SigmoidCrossEntropyWithLogitsGradient SigmoidGradient Sign Sin SinGradient Sinh
    SinhGradient SmoothL1LossGradient Softplus SoftplusGradient Softsign SoftsignGradient SpatialBN Sqr Sqrt
    SquaredL2DistanceGradient Sub SubGradient Sum SumInt SumRelu Swish SwishGradient Tan TanGradient Tanh TanhGradient
    ThresholdedRelu ThresholdedReluGradient UpdateGradientScale WeightedSum WeightedSumGradient Where Xor
    """.split()
)
"""Operators whose plain kernels are traced. One that cannot be, for its arguments or inputs, has another kernel."""

WITH_SUMS = frozenset(
    """
    BatchMoments C10LayerNorm_DontUseThisOpYet CosineSimilarityGradient DotProduct DotProductWithPadding
    ElementwiseLinearGradient GFtrl InstanceNorm InstanceNormGradient L1Distance Lars LayerNorm LayerNormGradient
    LearningRateAdaption LpNorm Moments Normalize NormalizeGradient NormalizeL1 PReluGradient Perplexity RMSNorm
    RMSNormGradient ReduceBackMean ReduceBackSum ReduceFrontMean ReduceFrontSum ReduceFrontWeightedSum ReduceL1
    ReduceL2 ReduceMean ReduceSum ReduceTailSum SigmoidCrossEntropyLoss SigmoidCrossEntropyWithLogits SmoothL1Loss
    SquaredL2Distance Storm SumElements SumReduceLike SumSqrElements TileGradient UpsampleNearestGradient
    WeightedSigmoidCrossEntropyWithLogits Wngrad
    """.split()
)
"""Operators whose plain kernels have sums over axes, and are traced."""

UPDATES = frozenset(
    "Adadelta Adagrad Adam DecayAdagrad DivideBlobs FP16MomentumSGDUpdate FP32MomentumSGDUpdate FloatToHalf Ftrl "
    "HalfToFloat MomentumSGD MomentumSGDUpdate RestoreBlobs RmsProp SaveBlobs WeightedSum".split()
)
"""The operators that can be joined as updates: elementwise but for numbers such as the learning rate."""


def kernel_title(op_type: str) -> str:
    """Return the title of an operator's kernels: its type in small letters, with underscores between words."""
    return re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()


def operator_key(op: Operator, specs: Sequence[TensorSpec]) -> tuple[Any, ...]:
    """Return a key that operators of one type with the same arguments and inputs share."""
    return (op.type, repr(op), op.n_out, *specs, *(spec.known for spec in specs))


def trace_operator(tracer: Tracer, op: Operator, given: Sequence[Any], outputs: Sequence[TensorSpec]) -> Sequence[Any]:
    """Return the symbols of an operator's outputs, in the types of ``outputs``.

    Raises:
        NotTraced: its plain kernel is not elementwise.
    """
    kernel = plain_kernel(op.type, GPU if tracer.is_gpu else CPU)
    if kernel is None:
        raise NotTraced(f"{op.type} has no plain kernel")
    found = tracer.run(kernel, op, given)
    return [tracer.as_stored(symbol, spec) for symbol, spec in zip(found, outputs)]


def trace_inputs(tracer: Tracer, op: Operator, specs: Sequence[TensorSpec]) -> list[Any]:
    """Return the symbols of an operator's inputs."""
    return [
        tracer.host_input(i) if op.input_location(i) == "host" else tracer.input(i, spec)
        for i, spec in enumerate(specs)
    ]


def chainable_program(op: Any, specs: Sequence[TensorSpec], *, is_gpu: bool) -> Program | None:
    """Return the program of an operator that can be part of a chain; None for others.

    The results of such an operator follow from the elements of its inputs on the device.
    """
    if any(op.input_location(i) == "host" for i in range(len(specs))):
        return None
    tracer = Tracer(is_gpu=is_gpu)
    try:
        plain = [spec.plain for spec in specs]
        outs = op.infer(*plain)
        program = tracer.program(trace_operator(tracer, op, trace_inputs(tracer, op, plain), outs))
    except NotTraced:
        return None
    return program if all(out.shape == outs[0].shape for out in outs) else None


def trace_chain(chain: JoinedUpdates, *, is_gpu: bool) -> tuple[Program, list[TensorSpec]]:
    """Return the program of a chain of elementwise operators, and the specs of its outputs.

    Raises:
        NotTraced: one of the operators cannot be traced.
    """
    tracer, given = Tracer(is_gpu=is_gpu), [spec.plain for spec in chain.specs]
    specs = dict(enumerate(given))
    values = {i: tracer.input(i, spec) for i, spec in specs.items()}
    (operators,) = chain.chains
    for joined in operators:
        outs = joined.op.infer(*(specs[i] for i in joined.inputs))
        found = trace_operator(tracer, joined.op, [values[i] for i in joined.inputs], outs)
        values.update(zip(joined.outputs, found))
        specs.update(zip(joined.outputs, outs))
    return tracer.program([values[i] for i in chain.outputs]), [specs[i] for i in chain.outputs]


_forms = Remembered[UpdateForm | None](4096)


def update_form(op: Any, specs: Sequence[TensorSpec], *, is_gpu: bool) -> UpdateForm | None:
    """Return how an operator takes part in a joined update; None: it cannot."""
    if op.type not in UPDATES:
        return None
    return _forms((is_gpu, operator_key(op, specs)), lambda: _traced_form(op, specs, is_gpu=is_gpu))


def _traced_form(op: Any, specs: Sequence[TensorSpec], *, is_gpu: bool) -> UpdateForm | None:
    tracer, outs = Tracer(is_gpu=is_gpu), op.infer(*specs)
    try:
        found = trace_operator(tracer, op, trace_inputs(tracer, op, specs), outs)
        program = tracer.program(found)
    except NotTraced:
        return None
    loads = program.loads()
    numbers = {number.input for number in program.numbers if isinstance(number, HostNumber)}
    numbers |= {load.input for load in loads if load.shape == ()}
    tensors = [load for load in loads if load.input not in numbers]
    if any(load.shape != program.shape for load in tensors) or not tensors:
        return None
    numbers |= {i for i, spec in enumerate(specs) if op.input_location(i) == "host"}
    copies = {}
    for j, expression in enumerate(program.outputs):
        same = [k for k, other in enumerate(program.outputs) if k > j and other is expression]
        if same:
            copies[j] = same[0]
    return UpdateForm(frozenset(numbers), copies)


@dataclass(eq=False)
class UpdateChain:
    """One chain of a joined update.

    Args:
        program: over the values that it reads, by their positions in ``reads``.
        reads: the inputs of the call that are in the device's memory.
        tensors: those of them that are tensors, not numbers.
        writes: the outputs of the call.
        made: their specs, plain.
        shape: of its tensors; some have several values for each element.
        origins: the operator that each number of the program comes from.
    """

    program: Program
    reads: list[int]
    tensors: list[int]
    writes: list[int]
    made: list[TensorSpec]
    shape: tuple[int, ...]
    origins: list[JoinedOperator]


_NOTHING = Program(ANY_SHAPE, (), (), ())


def trace_update_chain(
    ctx: Any, chain: Sequence[JoinedOperator], updates: JoinedUpdates, *, is_gpu: bool
) -> UpdateChain:
    """Return a chain with its program.

    Raises:
        NotTraced: one of its operators cannot be traced.
    """
    tracer = Tracer(op_def=ctx.op_def, is_gpu=is_gpu)
    values: dict[int, Any] = {}
    made: dict[int, TensorSpec] = {}
    reads: list[int] = []
    tensors: list[int] = []
    origins: list[JoinedOperator] = []
    for joined in chain:
        specs = [made[i] if i in made else updates.specs[i].plain for i in joined.inputs]
        form = update_form(joined.op, specs, is_gpu=is_gpu)
        if form is None:
            raise NotTraced(joined.op.type)
        outs = joined.op.infer(*specs)
        for k, i in enumerate(joined.inputs):
            if i in values:
                continue
            if joined.op.input_location(k) == "host":
                values[i] = tracer.host_input(i)
                continue
            shape = () if k in form.numbers else _any(specs[k], outs[0])
            values[i] = tracer.input(len(reads), TensorSpec(shape, specs[k].dtype))
            reads.append(i)
            if k not in form.numbers:
                tensors.append(i)
        shapeless = [out.with_shape(_any(out, outs[0])) for out in outs]
        found = trace_operator(tracer, joined.op, [values[i] for i in joined.inputs], shapeless)
        origins += [joined] * (len(tracer.numbers) - len(origins))
        values.update(zip(joined.outputs, found))
        made.update(zip(joined.outputs, outs))
    writes = [j for j, value in enumerate(updates.outputs) if value in made]
    program = tracer.program([values[updates.outputs[j]] for j in writes]) if writes else _NOTHING
    specs_made = [made[updates.outputs[j]] for j in writes]
    return UpdateChain(program, reads, tensors, writes, specs_made, outs[0].shape, origins)


def _any(spec: TensorSpec, first: TensorSpec) -> tuple[int, ...]:
    """Return what stands for the shape of a tensor, which has that of the first output, or several values for each."""
    return ANY_SHAPE + spec.shape[first.ndim :]


def keeps_zeros(program: Program) -> bool:
    """Whether all outputs are zero where all tensors are, so that padding of zeros stays zero.

    Numbers that are not known here, such as a learning rate, are tried with two values.
    """
    return all(_of_zeros(program, number) for number in (0.375, 1.25))


def _of_zeros(program: Program, number: float) -> bool:
    found: dict[int, Any] = {}

    def value(expression: Any, dtype: Any) -> Any:
        if isinstance(expression, Step):
            return found[id(expression)].astype(dtype)
        if isinstance(expression, Constant):
            return np.asarray(expression.value).astype(dtype)
        return np.asarray(0 if isinstance(expression, Load) and expression.shape else number).astype(dtype)

    with np.errstate(all="ignore"):
        for step in program.steps():
            if step.function == "where":
                condition, x, y = step.operands
                made = np.where(value(condition, bool), value(x, step.compute), value(y, step.compute))
            else:
                made = numpy_function(step.function)(*(value(operand, step.compute) for operand in step.operands))
            found[id(step)] = np.asarray(made).astype(step.dtype)
        return all(value(output, dtype) == 0 for output, dtype in zip(program.outputs, program.dtypes))
