"""The graphs of cuDNN that the nets of the zoo need: each distinct one, by net."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from netbuilder import zoo
from netbuilder.engines.cuda import cublas
from netbuilder.engines.cuda.gpu_layout import image_spec
from netbuilder.engines.cuda.steps import Step
from netbuilder.engines.cudnn import kernels_conv, kernels_dense, kernels_norm
from netbuilder.engines.cudnn.graphs import Convolution, DataGradient, DataGradientSums, FilterGradient, Recipe
from netbuilder.engines.cudnn.table import KERNELS
from netbuilder.graph import infer_shapes
from netbuilder.model import ModelHelper
from netbuilder.ops.core.operator import TensorSpec, decode
from netbuilder.ops.core.registry import find
from prepared import FakePlan

__all__ = ["NETS", "recipes_of_the_zoo", "recipes_of"]

BATCH = 32

# Name -> builder, its arguments after the images, channels and extent of the images.
NETS = {
    "AlexNet": (zoo.create_alexnet, (3, 1000), 3, 224),
    "Inception v1": (zoo.create_inception_v1, (3, 1000), 3, 224),
    "Inception v3": (zoo.create_inception_v3, (3, 1000), 3, 299),
    "LeNet": (zoo.create_lenet, (), 1, 28),
    "MobileNetV2": (zoo.create_mobilenet_v2, (3, 1000), 3, 224),
    "OverFeat": (zoo.create_overfeat, (3, 1000), 3, 231),
    "ResNet-18": (zoo.create_resnet, (3, 1000, 18), 3, 224),
    "ResNet-50": (zoo.create_resnet50, (3, 1000), 3, 224),
    "ResNet-50 without biases": (zoo.create_resnet, (3, 1000, 50), 3, 224),
    "ResNeXt-50": (zoo.create_resnext, (3, 1000, 50, 32, 4), 3, 224),
    "ShuffleNet": (zoo.create_shufflenet, (3, 1000), 3, 224),
    "ShuffleNet v2": (zoo.create_shufflenet_v2, (3, 1000), 3, 224),
    "SqueezeNet": (zoo.create_squeezenet, (3, 1000), 3, 224),
    "VGG-16": (zoo.create_vgg, (3, 1000, 16), 3, 224),
}


def _specs(net: str) -> tuple[list, dict[str, TensorSpec]]:
    """Return the operators of a net's training step, and the specs of all blobs."""
    create, args, channels, extent = NETS[net]
    model = ModelHelper("zoo")
    _, loss = create(model, "data", *args, label="label")
    model.AddGradientOperators([loss])
    given = {
        "data": TensorSpec((BATCH, channels, extent, extent), np.dtype(np.float32)),
        "label": TensorSpec((BATCH,), np.dtype(np.int32)),
    }
    found = infer_shapes([model.param_init_net, model.net], given)
    specs = {name: TensorSpec(tuple(shape), np.dtype(found.dtypes[name])) for name, shape in found.shapes.items()}
    return list(model.net.Proto().op), specs


def recipes_of(net: str, precision: str) -> Iterator[tuple[str, Recipe]]:
    """Yield each graph that a net needs, with the operators that it is for.

    Args:
        net: a key of ``NETS``.
        precision: float32, tf32, bfloat16 or float16.
    """
    operators, specs = _specs(net)
    activations = [decode(find(op.type), op) for op in operators if op.type in ("Relu", "ReluN")]
    limits = sorted({kernels_norm.limit_of(activation) for activation in activations})
    recipes: list[Recipe] = []
    stored = "float32" if precision == "tf32" else precision

    def record(recipe: Recipe, ctx: object) -> SimpleNamespace:
        recipes.append(recipe)
        return SimpleNamespace(step=lambda memory: Step("", lambda memory, workspace: int, memory))

    modules = (kernels_conv, kernels_dense, kernels_norm)
    with patch.object(modules[0], "graph_of", record), patch.object(modules[1], "graph_of", record):
        with patch.object(modules[2], "graph_of", record), patch.object(cublas, "serves", return_value=True):
            for op_def in operators:
                if op_def.type not in KERNELS or precision == "tf32" and op_def.type.startswith("SpatialBN"):
                    continue
                op = decode(find(op_def.type), op_def)
                ctx = FakePlan(precision=stored, allow_tf32=precision == "tf32", op_def=op_def)
                inputs = [specs[name] for name in op_def.input]
                if op_def.type.startswith("SpatialBN") and stored != "float32":
                    inputs = [image_spec(spec, op.order, stored) if spec.ndim == 4 else spec for spec in inputs]
                for what, make, given in _kernels(op, op_def.type, inputs, specs[op_def.output[0]], limits):
                    recipes.clear()
                    assert make(op, ctx, *given) is not None, f"{net}: no kernel for {op_def}"
                    yield from ((what, recipe) for recipe in recipes)
                    if precision != "float32":  # exact products have no such kernels
                        yield from _with_sums(what, recipes, limits)


def _kernels(op, op_type, inputs, y, limits):
    """Yield the name, the function and the inputs of the kernels for an operator: its own, and the fused ones.

    Those of normalizations are for each limit of a Relu.
    """
    yield op_type, KERNELS[op_type], inputs
    if op_type == "Conv":

        def fused(op, ctx, *specs):
            return kernels_conv.fused_conv(op, ctx, specs[:-1], relu=True, add=specs[-1])

        yield "Conv + Relu", kernels_conv.conv_relu, inputs
        yield "Conv + Sum + Relu", fused, [*inputs, y]
    for limit in limits:
        if op_type == "SpatialBN":
            yield "SpatialBN + Relu", partial(kernels_norm.fused_bn_relu, limit=limit), inputs
            yield "SpatialBN + Sum + Relu", partial(kernels_norm.fused_bn_sum_relu, limit=limit), [*inputs, y]
        if op_type == "SpatialBNGradient":
            gradient, shared = kernels_norm.fused_bn_relu_gradient, kernels_norm.fused_shared_gradient
            yield "SpatialBNGradient of Relu", partial(gradient, limit=limit), [*inputs, inputs[0]]
            yield "SpatialBNGradient of Sum + Relu", partial(shared, limit=limit), [*inputs, inputs[0], inputs[0]]
    if op_type == "FC":
        yield "FC + Relu", kernels_dense.BY_CUDNN.fused_fc_relu, inputs


def _with_sums(what: str, recipes: list[Recipe], limits: list[float]) -> Iterator[tuple[str, Recipe]]:
    """Yield the graphs that do a part of a normalization besides the product of an operator without groups."""
    for recipe in recipes:
        if what == "Conv" and isinstance(recipe, Convolution) and recipe.x.shape[1] == recipe.w.shape[1]:
            yield "Conv with sums", replace(recipe, shifted_sums=True)
        for limit in limits:
            yield from _of_computed(what, recipe, limit)


def _of_computed(what: str, recipe: Recipe, limit: float) -> Iterator[tuple[str, Recipe]]:
    """Yield graphs that compute the Relu of normalized images, at most ``limit``, or its mask, besides a product."""
    if what == "Conv" and isinstance(recipe, Convolution) and 3 < recipe.x.shape[1] == recipe.w.shape[1]:
        computed = replace(recipe, normalizes=True, limit=limit)
        yield "Conv of computed images", computed
        yield "Conv of computed images with sums", replace(computed, shifted_sums=True)
    if what != "ConvGradient":
        return
    if isinstance(recipe, DataGradient) and 3 < recipe.dx.shape[1] == recipe.w.shape[1]:
        sums = DataGradientSums(recipe.dy, recipe.w, recipe.dx, recipe.window, True, limit=limit, tf32=recipe.tf32)
        yield "ConvGradient with sums", sums
        for activation in ("computed", "written") if recipe.io == "float16" else ("written",):
            yield "ConvGradient that computes images", replace(sums, add=False, activation=activation)
    if isinstance(recipe, FilterGradient) and recipe.io == "float16":
        if 3 < recipe.x.shape[1] == recipe.dw.shape[1]:
            yield "ConvGradient that scales images", replace(recipe, scales=True, limit=limit)


def recipes_of_the_zoo() -> dict[tuple[str, str], list[Recipe]]:
    """Return all distinct graphs, by what they are for and the precision."""
    found: dict[tuple[str, str], dict[Recipe, None]] = {}
    for precision in ("float32", "tf32", "bfloat16", "float16"):
        for net in NETS:
            for what, recipe in recipes_of(net, precision):
                found.setdefault((what, precision), {})[recipe] = None
    return {key: list(recipes) for key, recipes in found.items()}


if __name__ == "__main__":
    for key, recipes in recipes_of_the_zoo().items():
        print(*key, len(recipes))
