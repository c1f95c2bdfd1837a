"""The builder of each optimizer, under Caffe2's name: creates the optimizer and adds its updates to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from netbuilder.graph.blob import BlobReference
from netbuilder.model.model_helper import ModelHelper
from netbuilder.optimizers.build import Params, build_optimizer
from netbuilder.optimizers.ftrl import FtrlOptimizer, GFtrlOptimizer
from netbuilder.optimizers.half import FP16SgdOptimizer
from netbuilder.optimizers.named import OPTIMIZERS
from netbuilder.optimizers.optimizer import Optimizer
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.optimizers.yellowfin import YellowFinOptimizer
from netbuilder.proto.suggestions import suggests_arguments

__all__ = [
    "build_adadelta",
    "build_adagrad",
    "build_adam",
    "build_adamw",
    "build_decay_adagrad",
    "build_fp16_sgd",
    "build_ftrl",
    "build_gftrl",
    "build_lamb",
    "build_lion",
    "build_multi_precision_sgd",
    "build_rms_prop",
    "build_sgd",
    "build_storm",
    "build_wngrad",
    "build_yellowfin",
]


@suggests_arguments
def build_sgd(
    model: ModelHelper,
    base_learning_rate: float,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    *,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by SGD; returns the optimizer.

    Args:
        model: the model, after its backward pass.
        base_learning_rate: base learning rate, before its policy.
        max_gradient_norm, allow_lr_injection, params: see ``build_optimizer``.
        kwargs: arguments of ``SgdOptimizer``.

    Raises:
        ArgumentError: an argument is unknown or out of range.
        GradientError: there is no backward pass yet.

    >>> from netbuilder.model import brew
    >>> model = ModelHelper("example_sgd")
    >>> scores = brew.fc(model, "data", "scores", 4, 2)
    >>> softmax, loss = model.net.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
    >>> gradients = model.AddGradientOperators([loss])
    >>> optimizer = build_sgd(model, 0.1, policy="step", stepsize=100, gamma=0.5, momentum=0.9)
    >>> model.net.Proto().op[-1].type
    'MomentumSGDUpdate'
    """
    optimizer = SgdOptimizer(base_learning_rate, **kwargs)
    limits: dict[str, Any] = {"max_gradient_norm": max_gradient_norm, "allow_lr_injection": allow_lr_injection}
    return build_optimizer(model, optimizer, params=params, **limits)


class Builder(Protocol):
    """The signature of most builders; the arguments are those of ``build_sgd``."""

    def __call__(
        self,
        model: ModelHelper,
        base_learning_rate: float,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer: ...


class SelectiveBuilder(Protocol):
    """The signature of the other builders, which have Caffe2's argument ``parameters`` in place of ``params``, too."""

    def __call__(
        self,
        model: ModelHelper,
        base_learning_rate: float,
        parameters: Iterable[BlobReference] | None = None,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer: ...


def _builder(name: str, doing: str) -> Builder:
    """Return the builder of the optimizer of a name."""
    about = OPTIMIZERS[name]

    def build(
        model: ModelHelper,
        base_learning_rate: float,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer:
        made = about.make(**{about.rate: base_learning_rate}, **kwargs)
        limits: dict[str, Any] = {"max_gradient_norm": max_gradient_norm, "allow_lr_injection": allow_lr_injection}
        return build_optimizer(model, made, params=params, **limits)

    build.__doc__ = f"""Update a model by {doing}.

    Arguments as for ``build_sgd``, and ``kwargs`` for ``{about.make.__name__}``.
    """
    build.__name__ = build.__qualname__ = f"build_{name.replace('-', '_')}"
    return suggests_arguments(build)


def _selective_builder(name: str, doing: str) -> SelectiveBuilder:
    """Return the builder of the optimizer of a name, with an argument for the parameters to update."""
    about = OPTIMIZERS[name]

    def build(
        model: ModelHelper,
        base_learning_rate: float,
        parameters: Iterable[BlobReference] | None = None,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer:
        made = about.make(**{about.rate: base_learning_rate}, **kwargs)
        limits: dict[str, Any] = {"max_gradient_norm": max_gradient_norm, "allow_lr_injection": allow_lr_injection}
        chosen = parameters if params is None else params
        return build_optimizer(model, made, params=chosen, **limits)

    build.__doc__ = f"""Update a model by {doing}.

    Arguments as for ``build_sgd``, and ``kwargs`` for ``{about.make.__name__}``.

    Args:
        parameters: the same as ``params``, which replaces it.
    """
    build.__name__ = build.__qualname__ = f"build_{name.replace('-', '_')}"
    return suggests_arguments(build)


build_adadelta = _selective_builder("adadelta", "Adadelta")
build_adagrad = _selective_builder("adagrad", "Adagrad")
build_storm = _selective_builder("storm", "Storm")
build_wngrad = _selective_builder("wngrad", "WNGrad")

build_adam = _builder("adam", "Adam")
build_adamw = _builder("adamw", "Adam with decoupled weight decay")
build_lamb = _builder("lamb", "LAMB")
build_lion = _builder("lion", "Lion")
build_decay_adagrad = _builder("decay-adagrad", "Adagrad with a running mean of the gradient")
build_multi_precision_sgd = _builder("multi-precision-sgd", "SGD on float32 master copies of float16 parameters")
build_rms_prop = _builder("rms-prop", "RMSProp")


@suggests_arguments
def build_fp16_sgd(
    model: ModelHelper,
    base_learning_rate: float,
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by SGD in float16, with weight decay; ``kwargs`` for ``FP16SgdOptimizer``."""
    made = FP16SgdOptimizer(base_learning_rate=base_learning_rate, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)


@suggests_arguments
def build_ftrl(
    model: ModelHelper,
    engine: str = "SIMD",
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by FTRL; ``kwargs`` for ``FtrlOptimizer``."""
    made = FtrlOptimizer(engine=engine, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)


@suggests_arguments
def build_gftrl(
    model: ModelHelper,
    engine: str = "",
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by FTRL with group sparsity; ``kwargs`` for ``GFtrlOptimizer``."""
    made = GFtrlOptimizer(engine=engine, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)


@suggests_arguments
def build_yellowfin(
    model: ModelHelper,
    base_learning_rate: float = 0.1,
    *,
    max_gradient_norm: float | None = None,
    params: Params | None = None,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by YellowFin; ``kwargs`` for ``YellowFinOptimizer``."""
    made = YellowFinOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(model, made, params=params, max_gradient_norm=max_gradient_norm)
