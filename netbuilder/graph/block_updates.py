"""Block-wise model updates: the rule, the names of its state, and its nets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netbuilder.graph.net import Net
from netbuilder.proto.late_dataclass import dataclass

__all__ = ["BlockNets", "BlockRule"]

_KEY = "block_"


@dataclass(frozen=True)
class BlockRule:
    """The rule by which replicas that train on their own are brought together after each block of iterations.

    With the mean w of the replicas' parameters at the end of a block, the global parameters g from which the replicas
    started it, and the momentum v of the blocks: ::

        v' = momentum * v + learning_rate * (w - g)
        g' = g + v' + lookahead * (v' - v)

    All replicas start the next block from g'. ``lookahead`` is 0 for the classical block momentum, and ``momentum`` for
    Nesterov's: g is then the model with the look-ahead, from which the replicas start. That is the outer step of
    DiLoCo, SGD with Nesterov's momentum on g - w.

    With 8 ``bits``, each of several processes takes w - g of its own replicas, which is then averaged by AllreduceInt8.

    With an ``overlap`` of s iterations, replicas do not wait for w at the end of a block, but go on from their own
    parameters, of which each keeps a copy p. After s iterations of the next block g' and v' follow as above, and a
    replica's parameters x become g' + (x - p). So the w - g of the next block is what its own steps have changed.

    Args:
        momentum: share of v that is kept, in [0, 1).
        learning_rate: factor of the block's change.
        lookahead: weight of the change of v.
        iterations: length of a block in iterations of the main net; 0: each call of RunNet is one block.
        warmup_iterations: number of iterations before the first block; None: there is no warm-up.
        master: the replica that has g and v.
        bits: of an element of the changes that processes exchange, 32 or 8.
        overlap: iterations of the next block that run before a block's update is applied, fewer than ``iterations``.

    Source: Chen and Huo, "Scalable training of deep learning machines by incremental block training with intra-block
    parallel optimization and blockwise model-update filtering", ICASSP 2016, section 2. Douillard and others, "DiLoCo:
    distributed low-communication training of language models", 2023, arXiv:2311.08105, algorithm 1. ``overlap``:
    Douillard and others, "Streaming DiLoCo with overlapping communication", 2025, arXiv:2501.18512.
    """

    momentum: float
    learning_rate: float = 1.0
    lookahead: float = 0.0
    iterations: int = 0
    warmup_iterations: int | None = None
    master: int = 0
    bits: int = 32
    overlap: int = 0

    @staticmethod
    def global_name(parameter: str) -> str:
        """Return the blob of a parameter's global value, in the scope of the master."""
        return parameter + "_g"

    @staticmethod
    def momentum_name(parameter: str) -> str:
        """Return the blob of a parameter's block momentum, in the scope of the master."""
        return parameter + "_v"

    @staticmethod
    def previous_name(parameter: str) -> str:
        """Return the blob of a parameter's previous block momentum, which only a look-ahead needs, within an update."""
        return parameter + "_v_prev"

    @staticmethod
    def residual_name(parameter: str) -> str:
        """Return the blob of what a process has not given of a parameter's change, in the first replica's scope."""
        return parameter + "_residual"

    @staticmethod
    def change_name(name: str) -> str:
        """Return the blob of what the processes exchange of a parameter or a computed parameter, with an overlap.

        In the scope of the master it has the change of a parameter, or the mean of a computed one.
        """
        return name + "_change"

    @staticmethod
    def sent_name(parameter: str) -> str:
        """Return the blob of a replica's parameter at the end of the last block, with an overlap."""
        return parameter + "_sent"

    in_flight = "block_in_flight"
    """Blob in the scope of the master, with an overlap: 1 from the end of a block until its update, otherwise 0."""

    counter = "block_iterations"
    """Blob in the scope of the master, if ``iterations`` is set: how many iterations of the block have run.

    It is negative during the warm-up.
    """

    def arguments(self) -> dict[str, Any]:
        """Return the rule as arguments of a net; numbers are text, because arguments have only single precision."""
        numbers = (self.momentum, self.learning_rate, self.lookahead)
        warmup = -1 if self.warmup_iterations is None else self.warmup_iterations
        return {
            _KEY + "rule": [repr(float(number)) for number in numbers],
            _KEY + "lengths": [self.iterations, warmup, self.master],
            **({} if self.bits == 32 else {_KEY + "bits": self.bits}),
            **({} if self.overlap == 0 else {_KEY + "overlap": self.overlap}),
        }

    @classmethod
    def of_arguments(cls, found: Mapping[str, Any]) -> BlockRule | None:
        """Return the rule that ``arguments`` returned; None: there is none."""
        if _KEY + "rule" not in found:
            return None
        momentum, learning_rate, lookahead = (float(text) for text in found[_KEY + "rule"])
        iterations, warmup, master = map(int, found[_KEY + "lengths"])
        bits, overlap = int(found.get(_KEY + "bits", 32)), int(found.get(_KEY + "overlap", 0))
        warm = None if warmup < 0 else warmup
        return cls(momentum, learning_rate, lookahead, iterations, warm, master, bits, overlap)


@dataclass(frozen=True)
class BlockNets:
    """The nets of block-wise updates that a model has besides its main net and its init net.

    Args:
        init: makes the state of the rule from the initial parameters.
        update: ends a block: averages, applies the rule, and copies the result to all replicas.
        warm_up: ends the warm-up: copies the master's parameters to all replicas, and to the rule's state.
        send: with an overlap, ends a block: makes what is exchanged; ``update`` then applies what has arrived.
        exchange: with an overlap, the operators by which several processes exchange it. They are begun after ``send``,
            in the lane of collectives and over copies on the host; no workspace creates the net.
    """

    init: Net
    update: Net
    warm_up: Net | None = None
    send: Net | None = None
    exchange: Net | None = None

    def all(self) -> list[Net]:
        """Return the nets that there are."""
        return [net for net in (self.init, *self.created(), self.exchange) if net is not None]

    def created(self) -> list[Net]:
        """Return those that a workspace creates."""
        return [net for net in (self.update, self.warm_up, self.send) if net is not None]
