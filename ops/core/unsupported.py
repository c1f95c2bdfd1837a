"""Operators of Caffe2's last release that this version does not have, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterable

from netbuilder.proto.suggestions import did_you_mean

__all__ = ["ABSENT", "GROUPS", "instead_of"]

GROUPS: tuple[tuple[str, str], ...] = (
    (
        "feed arrays by workspace.feed or a Prefetch, or read a database by TensorProtosDBInput",
        "VideoInput",
    ),
    (
        "NCCLAllreduce sums over the GPUs of one host, ReduceScatter over processes",
        "NCCLReduceScatter",
    ),
    (
        "8-bit integer nets are not in this version, unlike tables of few bits (FloatToFused8BitRowwiseQuantized)",
        "Dequantize Int8Add Int8AddRelu Int8AveragePool Int8AveragePoolRelu Int8BatchMatMul Int8ChannelShuffle "
        "Int8Concat Int8Conv Int8ConvPackWeight Int8ConvRelu Int8ConvTranspose Int8Dequantize "
        "Int8DequantizeRowWise Int8ElementwiseLinear Int8FC Int8FCPackWeight Int8FCRelu Int8Flatten Int8Gather "
        "Int8GenQuantParams Int8GivenIntTensorFill Int8GivenTensorFill Int8GroupNorm Int8LSTMUnit Int8LeakyRelu "
        "Int8MaxPool Int8MaxPoolRelu Int8Mul Int8Quantize Int8Relu Int8Reshape Int8ResizeNearest Int8RoIAlign "
        "Int8Sigmoid Int8Slice Int8Softmax Int8SpatialBN Int8SpatialBNRelu Int8Sum Int8SumRelu Int8Tanh "
        "Int8Transpose Quantize",
    ),
    (
        "FC takes its weights as they are; oneDNN packs them by itself",
        "FbFCPacked FbGemmPack FbGemmPackTranspose",
    ),
    (
        "it keeps all parameters in one blob of cuDNN's; rnn_cell.LSTM and InferenceLSTM have them apart",
        "Recurrent RecurrentGradient RecurrentParamGet RecurrentParamSet",
    ),
    (
        "it calls PyTorch, which this library does without",
        "ATen",
    ),
    (
        "it passes a part of a net to a compiler for other hardware; nets run here by plans, or elsewhere as ONNX",
        "Onnxifi",
    ),
    (
        "Python passes NumPy arrays to a function, which offer DLPack themselves",
        "PythonDLPack PythonDLPackGradient",
    ),
    (
        "it ends the process, by intention; Fail and ThrowException end the run",
        "Crash ThrowChildThreadException",
    ),
    (
        "nvidia-smi, or CuPy's memory pool, tells how much memory of a GPU is taken",
        "GetGPUMemoryUsage",
    ),
)
"""(what to use instead, the operators separated by spaces)."""

ABSENT: dict[str, str] = {name: instead for instead, names in GROUPS for name in names.split()}
"""For each such operator, what to use instead."""


def instead_of(op_type: str, known: Iterable[str]) -> str:
    """Return a hint for an operator that is not registered, which begins with "; ", or "".

    Args:
        op_type: the name of the operator.
        known: the registered names; similar ones are suggested if Caffe2 has no such operator either.

    >>> instead_of("Convv", ["Conv"])
    "; did you mean 'Conv'?"
    """
    instead = ABSENT.get(op_type) or ABSENT.get(op_type.removesuffix("Gradient"))
    if instead:
        return f"; Caffe2's operator {op_type} is not in this version: {instead}; {__name__}.ABSENT lists them all"
    return did_you_mean(op_type, known)
