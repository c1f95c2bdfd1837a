"""Beam search as part of a net: one recurrent operator whose states are the best sequences so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from netbuilder.graph.blob import BlobReference
from netbuilder.model.rnn.cell import Blob, as_reference
from netbuilder.model.seq2seq.model_helper import Seq2SeqModelHelper
from netbuilder.proto import ArgumentError, NetError, TensorProto

__all__ = ["BeamSearchForwardOnly", "LinkConfig", "StateConfig"]


class LinkConfig(NamedTuple):
    """In step t, ``blob`` of the step net is the ``window`` rows of a state that start at row t + ``offset``."""

    blob: BlobReference
    offset: int
    window: int


class StateConfig(NamedTuple):
    """A state of the decoder: its initial value, the blob that the step reads, and the one that it writes."""

    initial_value: Blob
    state_prev_link: LinkConfig
    state_link: LinkConfig


_State: TypeAlias = StateConfig  # BeamSearchForwardOnly has an attribute StateConfig


class _Row(NamedTuple):
    """A state of the search: its initial value, and where a step reads and writes it."""

    initial_value: BlobReference
    before: LinkConfig
    after: LinkConfig


class BeamSearchForwardOnly:
    """A beam search over the sequences that a step net generates.

    Create one, add a step of the decoder to ``get_step_model()``, which reads ``get_previous_tokens()`` and
    ``get_timestep()``, and call ``apply``. There is no backward pass.

    Args:
        beam_size: number of sequences kept in each step, at most the number of words.
        model: model that gets the search.
        eos_token_id: the token that ends a sequence.
        go_token_id: the input token of the first step.
        post_eos_penalty: added to the log probabilities of tokens after the end token; a negative value lowers the
            rank of ended sequences; None: nothing is added.

    Raises:
        ArgumentError: ``beam_size`` is not positive.
    """

    LinkConfig = LinkConfig
    StateConfig = StateConfig

    def __init__(
        self,
        beam_size: int,
        model: Seq2SeqModelHelper,
        eos_token_id: int,
        go_token_id: int = 1,
        post_eos_penalty: float | None = None,
    ) -> None:
        if beam_size < 1:
            raise ArgumentError(f"BeamSearchForwardOnly: beam_size must be positive, got {beam_size!r}")
        self.beam_size = beam_size
        self.model = model
        self.eos_token_id = eos_token_id
        self.go_token_id = go_token_id
        self.post_eos_penalty = post_eos_penalty
        self.step_model = Seq2SeqModelHelper(model.init_params, name="step_model", param_model=model)
        self.step_model.param_init_net = model.param_init_net
        net = self.step_model.net
        names = ("timestep", "scores_t_prev", "tokens_t_prev", "hypo_t_prev", "attention_t_prev")
        given = [net.AddExternalInput(name) for name in names]
        self.timestep, self.scores_t_prev, self.tokens_t_prev, self.hypo_t_prev, self.attention_t_prev = given
        words = net.Cast(self.tokens_t_prev, "tokens_t_prev_int32", to=TensorProto.INT32)
        self.tokens_t_prev_int32_flattened, _ = net.Reshape(words, [words, "input_t_int32_old_shape"], shape=[1, -1])

    def get_step_model(self) -> Seq2SeqModelHelper:
        """Return the model of one step; its parameters are those of ``model``."""
        return self.step_model

    def get_previous_tokens(self) -> BlobReference:
        """Return the input tokens of a step, (1, beam_size) int32."""
        return self.tokens_t_prev_int32_flattened

    def get_timestep(self) -> BlobReference:
        """Return the number of the step, an int32."""
        return self.timestep

    def apply(
        self,
        inputs: Blob,
        length: Blob,
        log_probs: BlobReference,
        attentions: BlobReference | None,
        state_configs: Sequence[_State],
        data_dependencies: Sequence[Blob],
        word_rewards: Blob | None = None,
        possible_translation_tokens: Blob | None = None,
        go_token_id: Blob | None = None,
    ) -> tuple[BlobReference, BlobReference, BlobReference, BlobReference | None]:
        """Add the search to the model.

        Args:
            inputs: the token ids of one sentence, (steps, 1).
            length: number of steps of the search, an integer.
            log_probs: log probabilities computed by the step, (beam_size, words).
            attentions: attention weights computed by the step, (beam_size, steps of ``inputs``, 1); None: not returned.
            state_configs: the decoder's states; a step writes (1, beam_size, ...).
            data_dependencies: additional blobs that the step reads; external inputs of the step net need not be listed.
            word_rewards: (all words,), added to the score of a sequence for each of its words.
            possible_translation_tokens: (words,) int32: the token ids of the columns of ``log_probs``.
            go_token_id: the input token of the first step, (1,) float32; None: that of the constructor.

        Returns:
            For all steps, after an initial row: the tokens and the indices of the sequences of the previous row that
            they continue, both int32, and the scores, in descending order, each (steps + 1, beam_size, 1); and the
            attention weights, (steps + 1, beam_size, steps of ``inputs``).

        Raises:
            NetError: a blob of ``state_configs`` is not in the step net.
        """
        model = self.model
        chosen = self._add_choice(log_probs, word_rewards, possible_translation_tokens)
        if attentions is not None:
            chosen["attention_t"] = self._add_attention(attentions, chosen["hypo_t_int32"])
        tokens = self._add_tokens(chosen)
        rows = [self._follow(config, chosen["hypo_t_int32"]) for config in state_configs]
        first = self._first_rows(go_token_id)
        flat, _ = model.net.Reshape(inputs, ["encoder_inputs_flattened", "encoder_inputs_old_shape"], shape=[-1])
        rows += self._own_rows({**chosen, "tokens_t": tokens}, first, flat)
        steps = model.net.ConstantFill(
            length,
            "beam_search_fake_input",
            input_as_shape=True,
            extra_shape=[self.beam_size, 1],
            value=0.0,
            dtype=TensorProto.FLOAT,
        )
        results = self._add_operator(steps, rows, 4 if attentions is not None else 3, data_dependencies)
        words = model.net.Cast(results[1], "output_token_beam_list", to=TensorProto.INT32)
        before = model.net.Cast(results[2], "output_prev_index_beam_list", to=TensorProto.INT32)
        scores = model.net.Alias(results[0], "output_score_beam_list")
        attention = None
        if attentions is not None:
            attention = model.net.Alias(results[3], "output_attention_weights_beam_list")
        return words, before, scores, attention

    def _constant(self, name: str, value: float, dtype: int, size: int = 1) -> BlobReference:
        made: BlobReference = self.model.param_init_net.ConstantFill([], name, shape=[size], value=value, dtype=dtype)
        return made

    def _add_choice(
        self, log_probs: BlobReference, word_rewards: Blob | None, tokens: Blob | None
    ) -> dict[str, BlobReference]:
        """Add the selection of the best sequences; return blobs of the step by name."""
        net, size = self.step_model.net, self.beam_size
        zero = self._constant("ZERO", 0, TensorProto.INT32)
        first = net.EQ([zero, self.timestep], "on_initial_step")
        if self.post_eos_penalty is not None:
            log_probs = self._penalized(log_probs, first, self.post_eos_penalty)
        scores, words = net.TopK(log_probs, ["best_scores_per_hypo", "best_tokens_per_hypo_indices"], k=size)
        if tokens is not None:
            words = net.Gather([tokens, words], "best_tokens_per_hypo")
        before, _ = net.Reshape(self.scores_t_prev, ["scores_t_prev_squeezed", "scores_t_prev_old_shape"], shape=[size])
        total = net.Add([scores, before], "output_scores", broadcast=1, axis=0)
        if word_rewards is not None:
            rewards = net.Gather([word_rewards, words], "word_rewards_for_best_tokens_per_hypo")
            total = net.Add([total, rewards], total)
        total, _ = net.Reshape(total, [total, "output_scores_old_shape"], shape=[-1])
        found, places, of_each = self._best(total, zero, first)
        follows = net.Div([places, of_each], "hypo_t_int32", broadcast=1)
        hypo = net.Cast(follows, "hypo_t", to=TensorProto.FLOAT)
        return {"scores_t": found, "hypo_t": hypo, "hypo_t_int32": follows, "words": words, "places": places}

    def _best(
        self, scores: BlobReference, zero: BlobReference, first: BlobReference
    ) -> tuple[BlobReference, BlobReference, BlobReference]:
        """Add the selection among all scores; in the first step only of one sequence, because all are equal."""
        net, size = self.step_model.net, self.beam_size
        all_rows = self._constant("MINUS_ONE_INT32", -1, TensorProto.INT32)
        one_row = self._constant("beam_size", size, TensorProto.INT32)
        of_each = self.model.param_init_net.Cast(one_row, "BEAM_SIZE_64", to=TensorProto.INT64)
        end = net.Conditional([first, one_row, all_rows], "slice_end")
        cut = net.Slice([scores, zero, end], "output_scores_flattened_slice")
        cut, _ = net.Reshape(cut, [cut, "output_scores_flattened_slice_old_shape"], shape=[1, -1])
        found, places = net.TopK(cut, ["scores_t", "best_indices"], k=size)
        return found, places, of_each

    def _penalized(self, log_probs: BlobReference, first: BlobReference, penalty: float) -> BlobReference:
        net = self.step_model.net
        end = self._constant("eos_token", self.eos_token_id, TensorProto.INT32, self.beam_size)
        finished = self._constant("finished_penalty", penalty, TensorProto.FLOAT)
        no_penalty = self._constant("ZERO_FLOAT", 0.0, TensorProto.FLOAT)
        possible = net.Conditional([first, no_penalty, finished], "possible_finished_penalty")
        flat = net.FlattenToVec(self.tokens_t_prev, "tokens_t_flat")
        whole = net.Cast(flat, "tokens_t_flat_int", to=TensorProto.INT32)
        ended = net.EQ([whole, end], "predecessor_is_eos")
        mask = net.Cast(ended, "predecessor_is_eos_float", to=TensorProto.FLOAT)
        added = net.Mul([mask, possible], "predecessor_is_eos_penalty", broadcast=1)
        penalized: BlobReference = net.Add([log_probs, added], "log_probs_penalized", broadcast=1, axis=0)
        return penalized

    def _add_attention(self, attentions: BlobReference, follows: BlobReference) -> BlobReference:
        net = self.step_model.net
        weights = net.Gather([attentions, follows], "attention_t")
        weights, _ = net.Reshape(weights, [weights, "attention_t_old_shape"], shape=[1, self.beam_size, -1])
        return weights

    def _add_tokens(self, chosen: dict[str, BlobReference]) -> BlobReference:
        net = self.step_model.net
        names = ["best_tokens_per_hypo_flatten", "best_tokens_per_hypo_old_shape"]
        flat, _ = net.Reshape(chosen["words"], names, shape=[-1])
        words = net.Gather([flat, chosen["places"]], "tokens_t_int32")
        tokens: BlobReference = net.Cast(words, "tokens_t", to=TensorProto.FLOAT)
        return tokens

    def _follow(self, config: _State, follows: BlobReference) -> _Row:
        """Add the selection of the states of the sequences that were selected."""
        net = self.step_model.net
        before, after = config.state_prev_link, config.state_link
        for link in (before, after):
            if not net.BlobIsDefined(link.blob):
                raise NetError(f"BeamSearchForwardOnly: step net {net} does not define state {str(link.blob)!r}")
        flat, _ = net.Reshape(
            after.blob, [after.blob, BlobReference(f"{after.blob}_old_shape")], shape=[self.beam_size, -1]
        )
        chosen = net.Gather([flat, follows], BlobReference(f"{after.blob}_chosen_per_hypo", net))
        return _Row(as_reference(config.initial_value), before, after._replace(blob=chosen))

    def _first_rows(self, go_token_id: Blob | None) -> list[BlobReference]:
        """Add the initial scores, tokens and sequence indices."""
        scores = self._constant("initial_scores", 0.0, TensorProto.FLOAT)
        if go_token_id is None:
            tokens = self._constant("initial_tokens", float(self.go_token_id), TensorProto.FLOAT)
        else:
            tokens = self.model.net.Copy(go_token_id, "initial_tokens")
        return [scores, tokens, self._constant("initial_hypo", 0.0, TensorProto.FLOAT)]

    def _own_rows(
        self, chosen: dict[str, BlobReference], first: Sequence[BlobReference], flat: BlobReference
    ) -> list[_Row]:
        before = (self.scores_t_prev, self.tokens_t_prev, self.hypo_t_prev)
        after = (chosen["scores_t"], chosen["tokens_t"], chosen["hypo_t"])
        rows = [_row(*each) for each in zip(first, before, after)]
        if "attention_t" in chosen:
            zeros = self.model.net.ConstantFill(flat, "init_attention", value=0.0, dtype=TensorProto.FLOAT)
            rows.append(_row(zeros, self.attention_t_prev, chosen["attention_t"]))
        return rows

    def _add_operator(
        self, steps: BlobReference, rows: Sequence[_Row], shown: int, dependencies: Sequence[Blob]
    ) -> list[BlobReference]:
        """Add the operator over the steps; return all values of the last ``shown`` states."""
        net = self.model.net
        params = list(self.step_model.params)
        first = [row.initial_value for row in rows]
        given = [str(blob) for blob in (steps, *params, *first, *map(as_reference, dependencies))]
        own = {str(link.blob) for row in rows for link in (row.before, row.after)} | {str(self.timestep)}
        read = {name for op in self.step_model.net.Proto().op for name in op.input} - own - set(given)
        given += [name for name in map(str, self.step_model.net.external_inputs) if name in read]
        states = [f"{row.before.blob}_states" for row in rows]
        links = [(link, state) for row, state in zip(rows, states) for link in (row.before, row.after)]
        results = [f"{row.after.blob}_all" for row in rows[-shown:]]
        outputs: list[BlobReference] = net.RecurrentNetwork(
            [BlobReference(name) for name in given],
            [*map(BlobReference, results), "step_workspaces"],
            param=[given.index(str(param)) for param in params],
            alias_src=states[-shown:],
            alias_dst=results,
            alias_offset=[0] * shown,
            recurrent_states=states,
            initial_recurrent_state_ids=[given.index(str(blob)) for blob in first],
            link_internal=[str(link.blob) for link, _ in links],
            link_external=[state for _, state in links],
            link_offset=[link.offset for link, _ in links],
            link_window=[link.window for link, _ in links],
            step_net=self.step_model.net.Proto(),
            timestep=str(self.timestep),
            outputs_with_grads=[],
            enable_rnn_executor=1,
        )
        return outputs[:shown]


def _row(first: BlobReference, before: BlobReference, after: BlobReference) -> _Row:
    return _Row(first, LinkConfig(before, 0, 1), LinkConfig(after, 1, 1))
