"""Each optimizer's builder, under Caffe2's name: makes the optimizer and adds its updates to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from netbuilder.graph.blob import BlobReference
from netbuilder.model.model_helper import ModelHelper
from netbuilder.optimizers.adadelta import AdadeltaOptimizer
from netbuilder.optimizers.adagrad import AdagradOptimizer
from netbuilder.optimizers.adam import AdamOptimizer
from netbuilder.optimizers.build import build_optimizer
from netbuilder.optimizers.decay_adagrad import DecayAdagradOptimizer
from netbuilder.optimizers.ftrl import FtrlOptimizer, GFtrlOptimizer
from netbuilder.optimizers.half import FP16SgdOptimizer, MultiPrecisionSgdOptimizer
from netbuilder.optimizers.optimizer import Optimizer
from netbuilder.optimizers.rms_prop import RmsPropOptimizer
from netbuilder.optimizers.sgd import SgdOptimizer
from netbuilder.optimizers.storm import StormOptimizer
from netbuilder.optimizers.wngrad import WngradOptimizer
from netbuilder.optimizers.yellowfin import YellowFinOptimizer

__all__ = [
    "build_adadelta",
    "build_adagrad",
    "build_adam",
    "build_decay_adagrad",
    "build_fp16_sgd",
    "build_ftrl",
    "build_gftrl",
    "build_multi_precision_sgd",
    "build_rms_prop",
    "build_sgd",
    "build_storm",
    "build_wngrad",
    "build_yellowfin",
]


def build_sgd(
    model: ModelHelper,
    base_learning_rate: float,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by SGD; returns the optimizer.

    Args:
        model: the model, after its backward pass.
        base_learning_rate: the rate before its policy.
        max_gradient_norm, allow_lr_injection: see ``build_optimizer``.
        kwargs: of ``SgdOptimizer``.

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
    return build_optimizer(model, optimizer, max_gradient_norm=max_gradient_norm, allow_lr_injection=allow_lr_injection)


def build_adagrad(
    model: ModelHelper,
    base_learning_rate: float,
    parameters: Iterable[BlobReference] | None = None,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by Adagrad; arguments as for ``build_sgd``, and ``kwargs`` of ``AdagradOptimizer``.

    Args:
        parameters: update only these; None: all.
    """
    optimizer = AdagradOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(
        model,
        optimizer,
        parameters=parameters,
        max_gradient_norm=max_gradient_norm,
        allow_lr_injection=allow_lr_injection,
    )


def build_adam(
    model: ModelHelper,
    base_learning_rate: float,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by Adam; arguments as for ``build_sgd``, and ``kwargs`` of ``AdamOptimizer``."""
    optimizer = AdamOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(model, optimizer, max_gradient_norm=max_gradient_norm, allow_lr_injection=allow_lr_injection)


def build_rms_prop(
    model: ModelHelper,
    base_learning_rate: float,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by RMSProp; arguments as for ``build_sgd``, and ``kwargs`` of ``RmsPropOptimizer``."""
    optimizer = RmsPropOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(model, optimizer, max_gradient_norm=max_gradient_norm, allow_lr_injection=allow_lr_injection)


def build_multi_precision_sgd(
    model: ModelHelper,
    base_learning_rate: float,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by SGD on float32 masters of float16 parameters.

    Arguments as for ``build_sgd``, and ``kwargs`` of ``MultiPrecisionSgdOptimizer``.
    """
    optimizer = MultiPrecisionSgdOptimizer(base_learning_rate=base_learning_rate, **kwargs)
    return build_optimizer(model, optimizer, max_gradient_norm=max_gradient_norm, allow_lr_injection=allow_lr_injection)


def build_fp16_sgd(model: ModelHelper, base_learning_rate: float, **kwargs: Any) -> Optimizer:
    """Update a model by SGD in float16, with weight decay; ``kwargs`` of ``FP16SgdOptimizer``."""
    return build_optimizer(model, FP16SgdOptimizer(base_learning_rate=base_learning_rate, **kwargs))


def build_adadelta(
    model: ModelHelper,
    base_learning_rate: float,
    parameters: Iterable[BlobReference] | None = None,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by Adadelta; arguments as for ``build_adagrad``, and ``kwargs`` of ``AdadeltaOptimizer``."""
    optimizer = AdadeltaOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(
        model,
        optimizer,
        parameters=parameters,
        max_gradient_norm=max_gradient_norm,
        allow_lr_injection=allow_lr_injection,
    )


def build_ftrl(model: ModelHelper, engine: str = "SIMD", **kwargs: Any) -> Optimizer:
    """Update a model by FTRL; ``kwargs`` of ``FtrlOptimizer``."""
    return build_optimizer(model, FtrlOptimizer(engine=engine, **kwargs))


def build_gftrl(model: ModelHelper, engine: str = "", **kwargs: Any) -> Optimizer:
    """Update a model by FTRL by groups; ``kwargs`` of ``GFtrlOptimizer``."""
    return build_optimizer(model, GFtrlOptimizer(engine=engine, **kwargs))


def build_yellowfin(model: ModelHelper, base_learning_rate: float = 0.1, **kwargs: Any) -> Optimizer:
    """Update a model by YellowFin; ``kwargs`` of ``YellowFinOptimizer``."""
    return build_optimizer(model, YellowFinOptimizer(alpha=base_learning_rate, **kwargs))


def build_decay_adagrad(
    model: ModelHelper,
    base_learning_rate: float,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by Adagrad with a running mean of the gradient.

    Arguments as for ``build_sgd``, and ``kwargs`` of ``DecayAdagradOptimizer``.
    """
    optimizer = DecayAdagradOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(model, optimizer, max_gradient_norm=max_gradient_norm, allow_lr_injection=allow_lr_injection)


def build_storm(
    model: ModelHelper,
    base_learning_rate: float,
    parameters: Iterable[BlobReference] | None = None,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by Storm; arguments as for ``build_adagrad``, and ``kwargs`` of ``StormOptimizer``."""
    optimizer = StormOptimizer(lr=base_learning_rate, **kwargs)
    return build_optimizer(
        model,
        optimizer,
        parameters=parameters,
        max_gradient_norm=max_gradient_norm,
        allow_lr_injection=allow_lr_injection,
    )


def build_wngrad(
    model: ModelHelper,
    base_learning_rate: float,
    parameters: Iterable[BlobReference] | None = None,
    max_gradient_norm: float | None = None,
    allow_lr_injection: bool = False,
    **kwargs: Any,
) -> Optimizer:
    """Update a model by WNGrad; arguments as for ``build_adagrad``, and ``kwargs`` of ``WngradOptimizer``."""
    optimizer = WngradOptimizer(alpha=base_learning_rate, **kwargs)
    return build_optimizer(
        model,
        optimizer,
        parameters=parameters,
        max_gradient_norm=max_gradient_norm,
        allow_lr_injection=allow_lr_injection,
    )
