"""Calls that build recurrent nets, made on Caffe2 once; they take its modules, so they run on either.

Each function is given a namespace with Caffe2's modules and returns a model.
"""

__all__ = ["CALLS", "lines_of"]

CALLS = {}


def _refs(caffe2, *names):
    return [caffe2.core.BlobReference(name) for name in names]


def _with_loss(model, blob):
    model.AddGradientOperators([model.net.AveragedLoss(blob, "loss")])
    return model


def _layer(name, module, function, states, width=4, **options):
    def build(caffe2):
        model = caffe2.model_helper.ModelHelper(name="m")
        first = _refs(caffe2, *(f"s{i}" for i in range(states)))
        x, lengths = _refs(caffe2, "seq", "lens")
        layer = getattr(getattr(caffe2, module), function)
        results = layer(model, x, lengths, first, 3, width, **{"scope": "l", **options})
        return model if options.get("forward_only") else _with_loss(model, results[0])

    CALLS[name] = build


for _name, _function, _states, _options in [
    ("lstm", "LSTM", 2, {}),
    ("lstm_without_scope", "LSTM", 2, {"scope": None}),
    ("lstm_computed_again", "LSTM", 2, {"memory_optimization": True, "forget_bias": 1.0}),
    ("lstm_dropped", "LSTM", 2, {"drop_states": True}),
    ("lstm_forward", "LSTM", 2, {"forward_only": True}),
    ("lstm_two_layers", "LSTM", 4, {"width": [5, 4]}),
    ("lstm_written_out", "LSTM", 2, {"static_rnn_unroll_size": 3}),
    ("milstm", "MILSTM", 2, {}),
    ("milstm_computed_again", "MILSTM", 2, {"memory_optimization": True}),
    ("layer_norm_lstm", "LayerNormLSTM", 2, {}),
    ("layer_norm_milstm", "LayerNormMILSTM", 2, {}),
    ("rnn_forward", "BasicRNN", 1, {"activation": "tanh", "forward_only": True, "drop_states": True}),
]:
    _layer(_name, "rnn_cell", _function, _states, **_options)
for _name, _options in [
    ("gru", {}),
    ("gru_linear", {"linear_before_reset": True}),
    ("gru_dropped", {"drop_states": True}),
    ("gru_written_out", {"static_rnn_unroll_size": 2}),
]:
    _layer(_name, "gru_cell", "GRU", 1, **_options)


def _first_states(name, **options):
    def build(caffe2):
        model = caffe2.model_helper.ModelHelper(name="m")
        caffe2.rnn_cell.LSTM(model, "seq", options.get("lengths"), None, 3, options.get("width", 4), "l")
        return model

    CALLS[name] = build


_first_states("first_states", lengths="lens")
_first_states("first_states_without_lengths")
_first_states("first_states_of_layers", lengths="lens", width=[4, 5])


def _attention(name, kind, lengths=None, **options):
    def build(caffe2):
        model = caffe2.model_helper.ModelHelper(name="m")
        blobs = _refs(caffe2, "dec_in", "dec_lens", "h", "c", "ctx")
        results = caffe2.rnn_cell.LSTMWithAttention(
            model, *blobs, 5, "enc", lengths, 3, 4, "att",
            attention_type=getattr(caffe2.attention.AttentionType, kind), outputs_with_grads=(0,), **options,
        )  # fmt: skip
        return model if options.get("forward_only") else _with_loss(model, results[0])

    CALLS[name] = build


for _kind in ("Regular", "Dot", "SoftCoverage"):
    _attention(f"attention_{_kind}", _kind)
    _attention(f"attention_{_kind}_lengths", _kind, lengths="enc_lens")
_attention("attention_Recurrent", "Recurrent")
_attention("attention_forward", "Regular", forward_only=True)
_attention("attention_computed_again", "Regular", attention_memory_optimization=True)
_attention("attention_weighted", "Regular", weighted_encoder_outputs="weighted")


def _cells(name, states, make, **options):
    def build(caffe2):
        model = caffe2.model_helper.ModelHelper(name="m")
        first = [f"s{i}" for i in range(states)]
        output, _ = make(caffe2).apply_over_sequence(model, "seq", "lens", first, **options)
        return _with_loss(model, output)

    CALLS[name] = build


def _some(caffe2, count, cls="LSTMCell"):
    module = caffe2.gru_cell if cls == "GRUCell" else caffe2.rnn_cell
    common = {"input_size": 4, "hidden_size": 4, "forget_bias": 0.0, "memory_optimization": False}
    return [getattr(module, cls)(name=f"c{i}", **common) for i in range(count)]


_cells("cell", 2, lambda caffe2: _some(caffe2, 1)[0])
_cells("cells", 6, lambda caffe2: caffe2.rnn_cell.MultiRNNCell(_some(caffe2, 3), name="n"), outputs_with_grads=[8])
_cells(
    "cells_residual",
    6,
    lambda caffe2: caffe2.rnn_cell.MultiRNNCell(_some(caffe2, 3), name="n", residual_output_layers=[1, 2]),
    outputs_with_grads=[0, 4, 8],
)
_cells("gru_cell", 1, lambda caffe2: _some(caffe2, 1, "GRUCell")[0])
_cells(
    "cells_gru",
    2,
    lambda caffe2: caffe2.rnn_cell.MultiRNNCell(_some(caffe2, 2, "GRUCell"), name="n"),
    outputs_with_grads=[2],
)
_cells(
    "dropout",
    2,
    lambda caffe2: caffe2.rnn_cell.DropoutCell(_some(caffe2, 1)[0], dropout_ratio=0.3, name="d", is_test=False),
)


def _by_hand(caffe2):
    model = caffe2.model_helper.ModelHelper(name="m")
    step = caffe2.model_helper.ModelHelper(name="step", param_model=model)
    now, timestep, before = step.net.AddScopedExternalInputs("input_t", "timestep", "before")
    total = step.net.Add([now, step.net.FC([before, "w", "b"], "product")], "total")
    after = step.net.Tanh(total, "after")
    step.net.AddExternalOutput(after)
    results = caffe2.recurrent.recurrent_net(
        net=model.net, cell_net=step.net, inputs=[(now, "seq")], initial_cell_inputs=[(before, "first")],
        links={before: after}, timestep=timestep, scope="r",
    )  # fmt: skip
    return _with_loss(model, results[0])


CALLS["by_hand"] = _by_hand


def _translator(name, encoder, decoder, attention, **options):
    def build(caffe2):
        util = caffe2.seq2seq_util
        model = caffe2.seq2seq_model_helper.Seq2SeqModelHelper()
        source, target = _refs(caffe2, "src", "tgt")
        tables = [util.build_embeddings(model, 20, 5, table, False) for table in ("enc_table", "dec_table")]
        params = {"encoder_layer_configs": [{"num_units": n} for n in encoder], **options}
        outputs, weighted, hidden, cells, units = util.build_embedding_encoder(
            model, params, len(decoder), source, "src_lens", 20, tables[0], 5, attention != "none", scope="e"
        )
        flat, width = util.build_embedding_decoder(
            model, [{"num_units": n} for n in decoder], target, "tgt_lens", "src_lens", outputs, weighted, hidden,
            cells, units, 20, tables[1], 5, attention, False, scope="d",
        )  # fmt: skip
        return _with_loss(model, util.output_projection(model, flat, width, 20, None))

    CALLS[name] = build


_translator("translator", [6], [6], "regular")
_translator("translator_without_attention", [6, 5], [6, 5], "none")
_translator("translator_recurrent", [6], [6], "recurrent")
_translator("translator_of_layers", [6, 6], [6, 6], "regular")
_translator("translator_of_other_widths", [6], [4], "regular")
_translator("translator_of_more_layers", [6], [6, 6], "regular")


def _random_field(name, scope="", transitions=None):
    def build(caffe2):
        model = caffe2.model_helper.ModelHelper(name="m")
        with caffe2.core.NameScope(scope):
            layer = caffe2.crf.CRFWithLoss(model, 3, transitions and _refs(caffe2, transitions)[0])
            loss = layer.crf_loss(*_refs(caffe2, "scores", "labels"))
            caffe2.crf_predict.crf_update_predictions(model, layer, "others")
        model.AddGradientOperators([loss])
        caffe2.crf_predict.apply_crf(model.param_init_net, model.net, "transitions", "third", 3)
        return model

    CALLS[name] = build


_random_field("crf")
_random_field("crf_in_a_scope", scope="s")
_random_field("crf_given", transitions="given")

# Arguments that Caffe2 passes on and no operator reads, a default, and three arguments of netbuilder.
_UNREAD = frozenset(
    "order use_cudnn cudnn_exhaustive_search use_grad_hack freeze_bias sequence_lengths".split()
    + ["sample_axis", "random_stream", "random_replica"]
)


def lines_of(net, indent="", devices=False):
    """The operators of a net, with those of the nets they hold, a line each; ``devices``: with the GPUs they are on."""
    lines = []
    for op in net.op:
        shown, held = [], []
        for argument in sorted(op.arg, key=lambda a: a.name):
            if argument.HasField("n"):
                held.append((argument.name, argument.n))
                continue
            one = [getattr(argument, kind) for kind in ("i", "f", "s") if argument.HasField(kind)]
            value = one[0] if one else [*argument.ints, *argument.floats, *argument.strings]
            unread = argument.name in _UNREAD or argument.name == "forget_bias" and op.type.startswith("GRU")
            if not unread and value not in ([], b""):
                shown.append(f"{argument.name}={value!r}")
        if devices and op.device_option.device_type:
            shown.append(f"on GPU {op.device_option.device_id}")
        lines.append(f"{indent}{op.type} {','.join(op.input)} > {','.join(op.output)} {' '.join(shown)}")
        if op.type == "RecurrentNetwork":
            for name, inner in held:
                lines.append(f"{indent} {name}")
                lines += lines_of(inner, indent + "  ", devices)
    return lines
