"""Regularizers of parameters: terms added to the loss, and corrections after the update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from netbuilder.caffe2.missing import names_of
from netbuilder.graph import BlobReference, GradientSlice, Net
from netbuilder.graph.blob import blob_name
from netbuilder.optimizers.optimizer import iteration_counter
from netbuilder.proto import ArgumentError

__all__ = [
    "BoundedGradientProjection",
    "ConstantNorm",
    "ElasticNet",
    "ElasticNetL1NormTrimmed",
    "GroupL1Norm",
    "L0ApproxNorm",
    "L1Norm",
    "L1NormTrimmed",
    "L2Norm",
    "LogBarrier",
    "LpNorm",
    "MaxNorm",
    "RegularizationBy",
    "Regularizer",
    "SparseL1Norm",
    "SparseL2Norm",
    "SparseLpNorm",
]

__getattr__ = names_of(__name__)


class RegularizationBy:
    """When a regularizer is applied."""

    AFTER_OPTIMIZER = "after_optimizer"
    ON_LOSS = "on_loss"


class Regularizer:
    """Adds the regularization of one parameter to a net.

    Attributes:
        kEpsilon: a small number, for open intervals.
    """

    def __init__(self) -> None:
        self.kEpsilon = 1e-9

    def __call__(
        self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None, by: str | None = None
    ) -> BlobReference | None:
        """Add the operators.

        Args:
            net: the operators are added to it.
            param_init_net: initializes their state.
            param: the parameter.
            grad: its gradient, for corrections of only the rows in it.
            by: one of ``RegularizationBy``.

        Returns:
            For ON_LOSS the term, a scalar, or None if this regularizer has no term; otherwise None.

        Raises:
            ArgumentError: ``by`` is not a value of ``RegularizationBy``, or ``param`` is not a blob.
        """
        if not isinstance(param, BlobReference):
            raise ArgumentError(f"{type(self).__name__}: param must be a blob, got {param!r}")
        if by == RegularizationBy.AFTER_OPTIMIZER:
            self._run_after_optimizer(net, param_init_net, param, grad)
            return None
        if by != RegularizationBy.ON_LOSS:
            raise ArgumentError(f"{type(self).__name__}: by must be a value of RegularizationBy, got {by!r}")
        return self._run_on_loss(net, param_init_net, param, grad)

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        return None

    def _run_after_optimizer(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any) -> None:
        return None

    def _require_slice(self, grad: Any, what: str) -> GradientSlice:
        if not isinstance(grad, GradientSlice):
            raise NotImplementedError(f"{what} is not supported for dense gradients; the gradient must be sparse")
        return grad

    def _ensure_clipped(
        self, net: Net, param: BlobReference, grad: Any = None, min: float | None = None, max: float | None = None,
        open_range: bool = False, left_open: bool = False, right_open: bool = False,
    ) -> None:  # fmt: skip
        """Clip the parameter, or the rows in a sparse gradient, to a range, in place."""
        if min is not None and (open_range or left_open):
            min += self.kEpsilon
        if max is not None and (open_range or right_open):
            max -= self.kEpsilon
        inputs = [param, grad.indices, grad.values] if isinstance(grad, GradientSlice) else [param]
        net.EnsureClipped(inputs, [param], min=min, max=max)

    def _feature_grouping(self, param: BlobReference, net: Net) -> BlobReference:
        """Add the L2 norm of each column of the parameter."""
        squares = net.Mul([param, param], "param_mul")
        return net.Pow([net.ReduceFrontSum(squares, "param_reduced")], "grouped_feature_weight_vec", exponent=0.5)


def _term(param: BlobReference, kind: str) -> str:
    return f"{blob_name(param)}_{kind}"


def _factor(value: float, what: str) -> float:
    if not value >= 0:
        raise ArgumentError(f"{what} must not be negative, got {value!r}")
    return value


def _count(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{what} must be a whole number, 0 or greater, got {value!r}")
    return value


def _trimmed(net: Net, param: BlobReference, k: int, name: str) -> BlobReference:
    """Add the sum of all absolute values except the ``k`` largest."""
    absolute = net.Abs([param], ["abs"])
    total = net.SumElements([absolute], ["sum_abs"], average=False)
    largest, _, _ = net.TopK([absolute], ["topk", "id", "flat_id"], k=k)
    return net.Sub([total, net.SumElements([largest], ["topk_sum"], average=False)], [name])


class L1Norm(Regularizer):
    """Add ``reg_lambda * sum |w|`` to the loss."""

    def __init__(self, reg_lambda: float) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "L1Norm: reg_lambda")

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        norm = net.LpNorm([param], [_term(param, "l1_regularization")], p=1)
        return net.Scale([norm], [norm], scale=self.reg_lambda)


class L2Norm(Regularizer):
    """Add ``reg_lambda * sum w^2`` to the loss."""

    def __init__(self, reg_lambda: float) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "L2Norm: reg_lambda")

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        norm = net.LpNorm([param], [_term(param, "l2_regularization")], p=2)
        return net.Scale([norm], [norm], scale=self.reg_lambda)


class ElasticNet(Regularizer):
    """Add ``l1 * sum |w| + l2 * sum w^2`` to the loss."""

    def __init__(self, l1: float, l2: float) -> None:
        super().__init__()
        self.l1, self.l2 = l1, l2

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        second = net.LpNorm([param], [_term(param, "l2_blob")], p=2)
        first = net.LpNorm([param], [_term(param, "l1_blob")], p=1)
        net.Scale([second], [second], scale=self.l2)
        net.Scale([first], [first], scale=self.l1)
        return net.Add([first, second], [_term(param, "elastic_net_regularization")])


class L1NormTrimmed(Regularizer):
    """Add ``reg_lambda * sum |w|`` without the ``k`` largest to the loss.

    Source: Yun et al., "Trimming the l1 regularizer", 2019, arXiv:1908.01669.
    """

    def __init__(self, reg_lambda: float, k: int) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "L1NormTrimmed: reg_lambda")
        self.k = _count(k, "L1NormTrimmed: k")

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        norm = _trimmed(net, param, self.k, _term(param, "l1_trimmed_regularization"))
        return net.Scale([norm], [norm], scale=self.reg_lambda)


class ElasticNetL1NormTrimmed(Regularizer):
    """``ElasticNet`` with ``L1NormTrimmed`` as its L1 part."""

    def __init__(self, l1: float, l2: float, k: int) -> None:
        super().__init__()
        self.l1, self.l2 = l1, l2
        self.k = _count(k, "ElasticNetL1NormTrimmed: k")

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        second = net.LpNorm([param], [_term(param, "l2_blob")], p=2)
        net.Scale([second], [second], scale=self.l2)
        first = _trimmed(net, param, self.k, _term(param, "l1_blob"))
        net.Scale([first], [first], scale=self.l1)
        return net.Add([first, second], [_term(param, "elastic_net_l1_trimmed_regularization")])


class LpNorm(Regularizer):
    """Add ``reg_lambda`` times the p-norm of the L2 norms of the columns to the loss."""

    def __init__(self, reg_lambda: float, p_value: float = 0.5) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "LpNorm: reg_lambda")
        if not p_value > 0:
            raise ArgumentError(f"LpNorm: p_value must be positive, got {p_value!r}")
        self.p_value = p_value

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        raised = net.Pow([self._feature_grouping(param, net)], ["lp_vec_raised"], exponent=self.p_value)
        summed = net.ReduceFrontSum([raised], ["lp_vec_summed"])
        norm = net.Pow([summed], ["lp_vec"], exponent=1 / self.p_value)
        return net.Scale([norm], [_term(param, "dense_feature_regularization")], scale=self.reg_lambda)


class L0ApproxNorm(Regularizer):
    """Add ``reg_lambda`` times the approximate number of nonzero columns beyond a budget to the loss.

    A column counts min(norm, alpha) / alpha.
    """

    def __init__(self, reg_lambda: float, alpha: float = 0.01, budget: float = 0) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "L0ApproxNorm: reg_lambda")
        if not alpha > 0:
            raise ArgumentError(f"L0ApproxNorm: alpha must be positive, got {alpha!r}")
        self.alpha, self.budget = alpha, float(_factor(budget, "L0ApproxNorm: budget"))

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        lengths = net.Abs([self._feature_grouping(param, net)], ["l0_abs"])
        summed = net.ReduceFrontSum([net.Clip([lengths], ["l0_min"], max=self.alpha)], ["l0_summed"])
        norm = net.Scale([summed], ["l0_norm"], scale=1 / self.alpha)
        if self.budget:
            budget = net.ConstantFill([], "budget", shape=[1], value=self.budget)
            norm = net.Relu(net.Sub([norm, budget], ["l0_budget"]), ["relu_l0_sub_budget"])
        return net.Scale([norm], [_term(param, "dense_feature_regularization")], scale=self.reg_lambda)


class GroupL1Norm(Regularizer):
    """Add the L2 norms of groups of columns, each times sqrt(number of columns), to the loss.

    Args:
        reg_lambda: factor of the term.
        groups: number of columns of each group, in order.
        stabilizing_val: added to the sums of squares before the square root.

    Source: Scardapane et al., "Group sparse regularization for deep neural networks", 2016, arXiv:1607.00485.
    """

    def __init__(self, reg_lambda: float, groups: Sequence[int], stabilizing_val: float = 0) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "GroupL1Norm: reg_lambda")
        if not isinstance(groups, list):
            raise ArgumentError(f"GroupL1Norm: groups must be a list of column counts, got {groups!r}")
        self.groups, self.stabilizing_val = groups, stabilizing_val

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        columns = net.ReduceSum(net.Sqr(param), axes=[0], keepdims=0)
        lengths = net.GivenTensorIntFill([], 1, shape=[len(self.groups)], values=self.groups)
        squares = net.LengthsSum([columns, lengths])
        if self.stabilizing_val:
            small = net.ConstantFill([], 1, value=self.stabilizing_val)
            net.Add([squares, small], [squares], broadcast=1)
        factors = net.GivenTensorFill(
            [], shape=[len(self.groups)], values=[math.sqrt(count) * self.reg_lambda for count in self.groups]
        )
        scaled = net.Mul([net.Sqrt(squares), factors], ["normalized_l2_norm_scaled"])
        return net.LpNorm([scaled], ["group_l1_nrom"], p=1)


class MaxNorm(Regularizer):
    """After the update, scale the rows in a sparse gradient to an L2 norm of at most ``norm``."""

    def __init__(self, norm: float = 1.0, dtype: Any = None) -> None:
        super().__init__()
        self.norm, self.dtype = norm, dtype

    def _run_after_optimizer(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any) -> None:
        if not self.norm > 0:
            raise ArgumentError(f"MaxNorm: norm must be positive, got {self.norm!r}")
        rows = self._require_slice(grad, "MaxNorm").indices
        kind = "Float16SparseNormalize" if self.dtype == "fp16" else "SparseNormalize"
        getattr(net, kind)([param, rows], [param], use_max_norm=True, norm=self.norm)


class ConstantNorm(Regularizer):
    """After the update, scale the rows in a sparse gradient to the L2 norm ``norm``."""

    def __init__(self, norm: float = 1.0) -> None:
        super().__init__()
        self.norm = norm

    def _run_after_optimizer(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any) -> None:
        if not self.norm > 0:
            raise ArgumentError(f"ConstantNorm: norm must be positive, got {self.norm!r}")
        rows = self._require_slice(grad, "ConstantNorm").indices
        net.SparseNormalize([param, rows], [param], use_max_norm=False, norm=self.norm)


class SparseLpNorm(Regularizer):
    """After the update, regularize the rows in a sparse gradient by the p-norm, with p 1 or 2."""

    def __init__(self, p: float, reg_lambda: float) -> None:
        super().__init__()
        if p not in (1.0, 2.0):
            raise ArgumentError(f"SparseLpNorm: p must be 1 or 2, got {p!r}")
        if not reg_lambda > 0:
            raise ArgumentError(f"SparseLpNorm: reg_lambda must be positive, got {reg_lambda!r}")
        self.p, self.reg_lambda = p, reg_lambda

    def _run_after_optimizer(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any) -> None:
        rows = self._require_slice(grad, "SparseLpNorm").indices
        net.SparseLpRegularizer([param, rows], [param], p=self.p, reg_lambda=self.reg_lambda)


class SparseL1Norm(SparseLpNorm):
    """``SparseLpNorm`` with p = 1."""

    def __init__(self, reg_lambda: float) -> None:
        super().__init__(p=1.0, reg_lambda=reg_lambda)


class SparseL2Norm(SparseLpNorm):
    """``SparseLpNorm`` with p = 2."""

    def __init__(self, reg_lambda: float) -> None:
        super().__init__(p=2.0, reg_lambda=reg_lambda)


class LogBarrier(Regularizer):
    """Add ``-reg_lambda * discount * sum log w`` to the loss, and clip parameters, to keep them positive.

    Args:
        reg_lambda: factor of the term.
        discount_policy: learning rate policy by which the factor decreases with the iterations.
        discount_options: arguments of the policy; None: gamma 1 and power 1.

    Source: Wright, "The interior-point revolution in optimization", Bulletin of the AMS 42, 2005.
    """

    def __init__(
        self, reg_lambda: float, discount_policy: str = "inv", discount_options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.reg_lambda = _factor(reg_lambda, "LogBarrier: reg_lambda")
        self.discount_policy = discount_policy
        self.discount_options = dict(discount_options or {"gamma": 1.0, "power": 1.0})

    def _run_on_loss(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any = None) -> Any:
        iteration = iteration_counter(net, param_init_net, 0)
        discount = net.LearningRate(
            [iteration], [_term(param, "log_barrier_discount")], base_lr=-self.reg_lambda, policy=self.discount_policy,
            **self.discount_options,
        )  # fmt: skip
        above = net.Clip([param], [_term(param, "non_neg")], min=self.kEpsilon)
        total = net.SumElements([net.Log([above], [_term(param, "log")])], [_term(param, "log_sum")])
        return net.Mul([total, discount], [_term(param, "log_barrier")], broadcast=1)

    def _run_after_optimizer(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any) -> None:
        self._ensure_clipped(net, param, grad, min=0, open_range=True)


class BoundedGradientProjection(Regularizer):
    """After the update, clip the parameters to a range.

    Args:
        lb, ub: lower and upper bound; None: unbounded.
        left_open, right_open: exclude the bound, by ``epsilon``.
        epsilon: distance from an excluded bound; None: 1e-9.

    Raises:
        ArgumentError: the range is empty.
    """

    def __init__(
        self, lb: float | None = None, ub: float | None = None, left_open: bool = False, right_open: bool = False,
        epsilon: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.lb = None if lb is None else float(lb)
        self.ub = None if ub is None else float(ub)
        self.left_open, self.right_open = left_open, right_open
        self.kEpsilon = 1e-9 if epsilon is None else epsilon
        if not self.kEpsilon > 0:
            raise ArgumentError(f"BoundedGradientProjection: epsilon must be positive, got {epsilon!r}")
        if self.lb is not None and self.ub is not None:
            least = self.lb + (self.kEpsilon if left_open else 0.0)
            if least > self.ub - (self.kEpsilon if right_open else 0.0):
                raise ArgumentError(
                    f"BoundedGradientProjection: lb must be at most ub, with epsilon={self.kEpsilon} for open bounds; "
                    f"got lb={self.lb} and ub={self.ub}"
                )

    def _run_after_optimizer(self, net: Net, param_init_net: Net, param: BlobReference, grad: Any) -> None:
        self._ensure_clipped(
            net, param, grad, min=self.lb, max=self.ub, left_open=self.left_open, right_open=self.right_open
        )
