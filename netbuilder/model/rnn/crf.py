"""Linear-chain conditional random fields: the loss of a sequence of classes, and the best sequence."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.graph.net import Net
from netbuilder.graph.scope import NameScope
from netbuilder.model import brew
from netbuilder.model.model_helper import ModelHelper
from netbuilder.model.rnn.recurrent import recurrent_net
from netbuilder.proto import ArgumentError, TensorProto

__all__ = ["CRFWithLoss", "apply_crf", "crf_update_predictions"]

Blob = str | BlobReference

_IMPOSSIBLE = -1000.0
"""The score of impossible classes: start and end inside a sequence, and all other classes at its ends."""


class CRFWithLoss:
    """Transition scores between neighboring classes, and the loss of one sequence.

    Two additional classes, ``num_classes`` and ``num_classes + 1``, mark the start and the end of a sequence.

    Args:
        model: model that gets the parameter and the operators.
        num_classes: number of classes of the labels.
        transitions_blob: the scores, (num_classes + 2, num_classes + 2), from row to column; None: a parameter
            ``crf_transitions``, initialized uniformly in [-1, 1).

    Source: Lample et al., "Neural architectures for named entity recognition", 2016, arXiv:1603.01360, section 2.2.
    """

    def __init__(self, model: ModelHelper, num_classes: int, transitions_blob: Blob | None = None) -> None:
        if num_classes < 1:
            raise ArgumentError(f"CRFWithLoss: num_classes must be at least 1, got {num_classes}")
        self.model = model
        self.num_classes = num_classes
        self.num_classes_padded = num_classes + 2
        if transitions_blob is None:
            shape = [self.num_classes_padded] * 2
            transitions_blob = model.param_init_net.UniformFill([], "crf_transitions", shape=shape, min=-1.0, max=1.0)
        self.transitions = transitions_blob
        model.AddParameter(BlobReference(str(transitions_blob)))

    def crf_loss(self, predictions: Blob, labels: Blob, seq_lengths: Blob | None = None) -> BlobReference:
        """Add the loss of one sequence: the negative log-likelihood of its labels.

        Args:
            predictions: the scores of the classes, (steps, num_classes).
            labels: the correct classes, (steps,), non-negative integers.
            seq_lengths: must be None, because each run processes one sequence.

        Returns:
            The loss, a scalar, ``crf_loss``.

        Raises:
            ArgumentError: ``seq_lengths`` is given (Caffe2 ignores it).
        """
        if seq_lengths is not None:
            raise ArgumentError(
                "crf_loss: seq_lengths must be None, because each run processes one sequence; feed them one by one"
            )
        net, init = self.model.net, self.model.param_init_net
        snapshot = net.Copy(self.transitions, "transitions_snapshot")
        count = init.ConstantFill([], shape=[1], value=self.num_classes)
        of_labels = net.FlattenToVec(net.OneHot([net.Cast(labels, to="int64"), count]))
        scores = net.ReduceFrontSum(net.DotProduct([of_labels, net.FlattenToVec(predictions)]))
        padded = _padded(init, net, predictions, self.num_classes)
        begin = init.ConstantFill([], shape=[1], value=self.num_classes)
        end = init.ConstantFill([], shape=[1], value=self.num_classes + 1)
        path, _ = net.Concat([begin, net.Cast(labels, to="int64"), end], 2, axis=0)
        total = net.Add([self._transitions_of(path, snapshot), scores], "path_total")
        first_row = init.ConstantFill([], shape=[1], value=0)
        initial = net.Gather([padded, first_row], "rnn_initial", dense_gradient=1)
        rows, _ = net.RemovePadding(padded, 2, padding_width=1, end_padding_width=0)
        steps = net.ExpandDims(rows, "rnn_input_data", dims=[1])
        all_paths = self._all_paths(steps, initial, net.Copy(snapshot, "transitions_copy"))
        return net.Sub([all_paths, total], "crf_loss")

    def _transitions_of(self, path: BlobReference, transitions: BlobReference) -> BlobReference:
        """Add the sum of the transition scores along a path."""
        net = self.model.net
        to, _ = net.RemovePadding(path, 2, padding_width=1, end_padding_width=0)
        source, _ = net.RemovePadding(path, 2, padding_width=0, end_padding_width=1)
        width = net.ConstantFill(source, value=self.num_classes_padded)
        indices = net.Add([net.Mul([source, width]), to])
        found = net.Gather([net.FlattenToVec(transitions), indices], dense_gradient=1)
        return net.ReduceFrontSum(found)

    def _all_paths(self, steps: BlobReference, initial: BlobReference, transitions: BlobReference) -> BlobReference:
        """Add the log-sum-exp of the scores of all paths."""
        net = self.model.net
        last = self.build_crf_net(steps, initial, transitions)
        flat, _ = net.Reshape(last, 2, shape=[self.num_classes_padded])
        one_segment = self._zeros()
        total, _ = net.Reshape(net.SortedSegmentRangeLogSumExp([flat, one_segment]), 2, shape=[])
        return total

    def _zeros(self, *name: str) -> BlobReference:
        shape = [self.num_classes_padded]
        return self.model.param_init_net.ConstantFill([], *name, value=0, shape=shape, dtype=TensorProto.INT32)

    def build_crf_net(self, input_blob: Blob, initial_state: Blob, transitions: Blob) -> BlobReference:
        """Add the recurrent net of the forward algorithm: state[c] = log(sum(exp(state + transitions[:, c]))) + score.

        Args:
            input_blob: scores of the classes in each step, (steps, 1, classes).
            initial_state: scores before the first step, (1, classes).
            transitions: (classes, classes).

        Returns:
            The last state, (1, 1, classes).
        """
        scope = "crf_net"
        with NameScope(scope):
            zeros = self._zeros("zero_segment_id")
        step = ModelHelper(name="crf_step", param_model=self.model)
        row, before, _, _ = step.net.AddScopedExternalInputs("input_t", "cell_t_prev", transitions, zeros)
        size = self.num_classes_padded
        with NameScope(scope):
            column = brew.transpose(step, before, "prev_transpose", axes=[0, 2, 1])
            previous = step.net.Tile(column, "prev_tiled", tiles=size, axis=2)
            current = step.net.Tile(row, "input_t_tiled", tiles=size, axis=1)
            both = step.net.Add([previous, current], "input_with_prev")
            scores = step.net.Add([both, transitions], "prev_with_transitions", broadcast=1, use_grad_hack=1)
            table, _ = step.net.Reshape(
                scores, ["all_with_transitions_reshaped", "all_with_transitions_orig"], shape=[size, size]
            )
            after = step.net.SortedSegmentRangeLogSumExp([table, zeros], "cell_t")
            step.net.AddExternalOutputs(after)
        _, last = recurrent_net(
            net=self.model.net,
            cell_net=step.net,
            inputs=[(row, input_blob)],
            initial_cell_inputs=[(before, initial_state)],
            links={before: after},
            scope=scope,
            outputs_with_grads=(1,),
        )
        return last

    def update_predictions(self, classes: Blob) -> BlobReference:
        """Add the operators of ``crf_update_predictions``; the result is ``post_crf_classes``."""
        net = self.model.net
        padded = _padded(self.model.param_init_net, net, classes, self.num_classes)
        return _best(net, padded, self.transitions, "post_crf_classes")


def crf_update_predictions(model: ModelHelper, crf_with_loss: CRFWithLoss, classes: Blob) -> BlobReference:
    """Add operators that give the class of the best path the greatest score in each step.

    Args:
        model: model that gets the operators.
        crf_with_loss: has the transition scores.
        classes: the scores of the classes, (steps, num_classes).

    Returns:
        The scores; in each step the greatest score is swapped with that of the path's class.
    """
    count, transitions = crf_with_loss.num_classes, crf_with_loss.transitions
    return apply_crf(model.param_init_net, model.net, transitions, classes, count)


def apply_crf(init_net: Net, net: Net, transitions: Blob, predictions: Blob, num_classes: int) -> BlobReference:
    """Add the operators of ``crf_update_predictions`` to a net.

    Args:
        init_net, net: nets that get the operators.
        transitions: the transition scores, (num_classes + 2, num_classes + 2).
        predictions: the scores of the classes, (steps, num_classes).
    """
    return _best(net, _padded(init_net, net, predictions, num_classes), transitions)


def _padded(init_net: Net, net: Net, predictions: Blob, num_classes: int) -> BlobReference:
    """Add the classes start and end to the scores, and a step before and one after in which only they are possible."""
    size = num_classes + 2
    ends = []
    for name, certain in (("b_scores", num_classes), ("e_scores", num_classes + 1)):
        values = [0.0 if c == certain else _IMPOSSIBLE for c in range(size)]
        ends.append(init_net.GivenTensorFill([], name, shape=[1, size], values=values))
    first = net.ConstantFill([], shape=[1], value=0)
    steps = net.Cast(net.Gather([net.Shape(predictions), first]), to="int32")
    column = net.ConstantFill(net.LengthsRangeFill(steps), value=_IMPOSSIBLE)
    column = net.ExpandDims(column, dims=[1])
    wide, _ = net.Concat([predictions, column, column], 2, axis=1)
    padded, _ = net.Concat([ends[0], wide, ends[1]], 2, axis=0)
    return padded


def _best(net: Net, padded: BlobReference, transitions: Blob, *name: str) -> BlobReference:
    """Swap the scores along the best path, and remove the padding of ``_padded``."""
    path = net.ViterbiPath([padded, transitions])
    inner = net.RemovePadding(net.SwapBestPath([padded, path]), padding_width=1, end_padding_width=1)
    starts = net.GivenTensorIntFill([], shape=[2], values=[0, 0])
    ends = net.GivenTensorIntFill([], shape=[2], values=[-1, -3])
    return net.Slice([inner, starts, ends], *name)
