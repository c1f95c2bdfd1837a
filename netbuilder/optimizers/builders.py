"""The builder of each optimizer, under Caffe2's name: creates the optimizer and adds its updates to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from netbuilder.graph.blob import BlobReference
from netbuilder.model.model_helper import ModelHelper
from netbuilder.optimizers.adadelta import AdadeltaOptimizer
from netbuilder.optimizers.adagrad import AdagradOptimizer
from netbuilder.optimizers.adam import AdamOptimizer, AdamWOptimizer
from netbuilder.optimizers.build import Params, build_optimizer
from netbuilder.optimizers.decay_adagrad import DecayAdagradOptimizer
from netbuilder.optimizers.ftrl import FtrlOptimizer, GFtrlOptimizer
from netbuilder.optimizers.half import FP16SgdOptimizer, MultiPrecisionSgdOptimizer
from netbuilder.optimizers.lamb import LambOptimizer
from netbuilder.optimizers.lion import LionOptimizer
from netbuilder.optimizers.optimizer import Optimizer
from netbuilder.optimizers.rms_prop import RmsPropOptimizer
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.optimizers.storm import StormOptimizer
from netbuilder.optimizers.wngrad import WngradOptimizer
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


def _builder(name: str, optimizer: type[Optimizer], rate: str, doing: str) -> Builder:
    """Return the builder of an optimizer whose argument ``rate`` is the learning rate."""

    def build(
        model: ModelHelper,
        base_learning_rate: float,
        max_gradient_norm: float | None = None,
        allow_lr_injection: bool = False,
        *,
        params: Params | None = None,
        **kwargs: Any,
    ) -> Optimizer:
        made = optimizer(**{rate: base_learning_rate}, **kwargs)
        limits: dict[str, Any] = {"max_gradient_norm": max_gradient_norm, "allow_lr_injection": allow_lr_injection}
        return build_optimizer(model, made, params=params, **limits)

    build.__doc__ = f"""Update a model by {doing}.

    Arguments as for ``build_sgd``, and ``kwargs`` for ``{optimizer.__name__}``.
    """
    build.__name__ = build.__qualname__ = name
    return suggests_arguments(build)


def _selective_builder(name: str, optimizer: type[Optimizer], rate: str, doing: str) -> SelectiveBuilder:
    """Return the builder of an optimizer with an argument for the parameters to update."""

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
        made = optimizer(**{rate: base_learning_rate}, **kwargs)
        limits: dict[str, Any] = {"max_gradient_norm": max_gradient_norm, "allow_lr_injection": allow_lr_injection}
        chosen = parameters if params is None else params
        return build_optimizer(model, made, params=chosen, **limits)

    build.__doc__ = f"""Update a model by {doing}.

    Arguments as for ``build_sgd``, and ``kwargs`` for ``{optimizer.__name__}``.

    Args:
        parameters: the same as ``params``, which replaces it.
    """
    build.__name__ = build.__qualname__ = name
    return suggests_arguments(build)


build_adadelta = _selective_builder("build_adadelta", AdadeltaOptimizer, "alpha", "Adadelta")
build_adagrad = _selective_builder("build_adagrad", AdagradOptimizer, "alpha", "Adagrad")
build_storm = _selective_builder("build_storm", StormOptimizer, "lr", "Storm")
build_wngrad = _selective_builder("build_wngrad", WngradOptimizer, "alpha", "WNGrad")

build_adam = _builder("build_adam", AdamOptimizer, "alpha", "Adam")
build_adamw = _builder("build_adamw", AdamWOptimizer, "alpha", "Adam with decoupled weight decay")
build_lamb = _builder("build_lamb", LambOptimizer, "alpha", "LAMB")
build_lion = _builder("build_lion", LionOptimizer, "alpha", "Lion")
build_decay_adagrad = _builder(
    "build_decay_adagrad", DecayAdagradOptimizer, "alpha", "Adagrad with a running mean of the gradient"
)
build_multi_precision_sgd = _builder(
    "build_multi_precision_sgd",
    MultiPrecisionSgdOptimizer,
    "base_learning_rate",
    "SGD on float32 master copies of float16 parameters",
)
build_rms_prop = _builder("build_rms_prop", RmsPropOptimizer, "alpha", "RMSProp")


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
