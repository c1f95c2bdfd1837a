"""Helpers of memonger's tests: build an image classifier, and run it with and without shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from netbuilder.caffe2.missing import names_of
from netbuilder.caffe2.python import cnn, memonger, workspace
from netbuilder.graph import NameScope
from netbuilder.proto import NetDef

__all__ = [
    "count_blobs",
    "count_shared_blobs",
    "has_blob",
    "test_forward_only",
    "test_forward_only_fast_simplenet",
    "test_shared_grads",
]

__getattr__ = names_of(__name__)

_IMAGES = (4, 3, 227, 227)

Builder = Callable[..., Any]


def _blobs(proto: NetDef) -> set[str]:
    return {blob for op in proto.op for blob in (*op.input, *op.output)}


def has_blob(proto: NetDef, needle: str) -> bool:
    """Whether an operator of a net reads or writes a blob."""
    return needle in _blobs(proto)


def count_blobs(proto: NetDef) -> int:
    """Return the number of blobs that the operators of a net read or write."""
    return len(_blobs(proto))


def count_shared_blobs(proto: NetDef) -> int:
    """Return the number of shared blobs that memonger has made."""
    return sum("_shared" in blob for blob in _blobs(proto))


def _build(create_model: Builder, num_labels: int, **options: Any) -> tuple[Any, Any]:
    """Return a model and the result of ``create_model``; ``options`` are its further arguments."""
    model = cnn.CNNModelHelper(order="NCHW", name="test", cudnn_exhaustive_search=True)
    with NameScope("gpu_0"):
        blobs = {name: model.net.AddExternalInput(blob) for name, blob in options.pop("inputs").items()}
        made = create_model(model, blobs.pop("data"), num_input_channels=3, num_labels=num_labels, **blobs, **options)
    return model, made


def _run(net: NetDef, blobs: list[str]) -> list[Any]:
    """Overwrite some blobs, run a net, and return the values of these blobs."""
    for blob in blobs:
        workspace.FeedBlob(blob, np.zeros(1, np.float32))
    workspace.RunNetOnce(net)
    return [workspace.FetchBlob(blob) for blob in blobs]


def _up_to(net: NetDef, index: int) -> NetDef:
    """Return a copy of a net that ends with operator ``index``."""
    cut = NetDef()
    cut.CopyFrom(net)
    del cut.op[index + 1 :]
    return cut


def test_shared_grads(
    with_shapes: bool,
    create_model: Builder,
    conv_blob: str,
    last_out_blob: str,
    data_blob: str = "gpu_0/data",
    label_blob: str = "gpu_0/label",
    num_labels: int = 1000,
) -> list[Any]:
    """Run a training step without and with shared gradients, on four random images.

    Args:
        with_shapes: pass the blobs' shapes to ``memonger.share_grad_blobs``.
        create_model: ``create_model(model, data, num_input_channels=, num_labels=, label=, is_test=)``; returns the
            softmax and the loss.
        conv_blob: a parameter whose gradient is compared.
        last_out_blob: an output that is compared.
        data_blob, label_blob: the inputs.
        num_labels: classes.

    Returns:
        Pairs: the numbers of blobs after and before sharing; the output without and with it; and the gradient likewise.
    """
    model, (_, loss) = _build(create_model, num_labels, inputs={"data": data_blob, "label": label_blob}, is_test=False)
    gradient = str(model.AddGradientOperators([loss])[conv_blob])
    shapes, _ = workspace.InferShapesAndTypes(
        [model.param_init_net, model.net], {data_blob: list(_IMAGES), label_blob: [_IMAGES[0]]}
    )
    before = count_blobs(model.net.Proto())
    optimized = memonger.share_grad_blobs(
        model.net,
        ["gpu_0/loss"],
        set(model.param_to_grad.values()),
        "gpu_0/",
        share_activations=True,
        dont_share_blobs={gradient, last_out_blob},
        blob_shapes=shapes if with_shapes else None,
    )
    workspace.RunNetOnce(model.param_init_net)
    workspace.FeedBlob(data_blob, np.random.rand(*_IMAGES).astype(np.float32))
    workspace.FeedBlob(label_blob, np.random.randint(num_labels, size=_IMAGES[0]).astype(np.int32))
    compared = [last_out_blob, gradient]
    return [(count_blobs(optimized), before), *zip(_run(model.net.Proto(), compared), _run(optimized, compared))]


def _forward_only(
    create_model: Builder, last_out_blob: str, data_blob: str, num_labels: int, optimize: Callable[[Any], NetDef]
) -> list[Any]:
    model, _ = _build(create_model, num_labels, inputs={"data": data_blob}, is_test=True)
    before = count_blobs(model.net.Proto())
    optimized = optimize(model.net)
    workspace.RunNetOnce(model.param_init_net)
    workspace.FeedBlob(data_blob, np.random.rand(*_IMAGES).astype(np.float32))
    # The copy has the same operators, but there the blob may be renamed, and overwritten by later operators.
    index = max(i for i, op in enumerate(model.net.Proto().op) if last_out_blob in op.output)
    output = list(model.net.Proto().op[index].output).index(last_out_blob)
    nets = [_up_to(net, index) for net in (model.net.Proto(), optimized)]
    results = [_run(net, [net.op[index].output[output]])[0] for net in nets]
    return [(count_blobs(optimized), before), count_shared_blobs(optimized), tuple(results)]


def test_forward_only(
    create_model: Builder, last_out_blob: str, data_blob: str = "gpu_0/data", num_labels: int = 1000
) -> list[Any]:
    """Run a forward-only net before and after ``memonger.optimize_inference_for_dag``, on four random images.

    Args:
        create_model, last_out_blob, data_blob, num_labels: see ``test_shared_grads``; there is no label.

    Returns:
        The numbers of blobs after and before; the number of shared blobs; the outputs before and after.
    """
    return _forward_only(
        create_model,
        last_out_blob,
        data_blob,
        num_labels,
        lambda net: memonger.optimize_inference_for_dag(net, [data_blob], "gpu_0/"),
    )


def test_forward_only_fast_simplenet(
    create_model: Builder, last_out_blob: str, data_blob: str = "gpu_0/data", num_labels: int = 1000
) -> list[Any]:
    """Run the same with ``memonger.optimize_inference_fast``, which is for nets that run in order."""

    def optimize(net: Any) -> NetDef:
        kept = {data_blob, last_out_blob, *net.Proto().external_input}
        optimized: NetDef = memonger.optimize_inference_fast(net.Proto(), kept)
        return optimized

    return _forward_only(create_model, last_out_blob, data_blob, num_labels, optimize)
