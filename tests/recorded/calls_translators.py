"""Calls of Caffe2's names that build translators in training and searches, run on Caffe2 and here."""

CALLS = {}


def model_params(encoder=(3,), decoder=(4,), attention="regular", softmax=None, both=False):
    return {
        "attention": attention,
        "encoder_type": {
            "encoder_layer_configs": [{"num_units": n} for n in encoder],
            "use_bidirectional_encoder": both,
        },
        "decoder_layer_configs": [{"num_units": n} for n in decoder],
        "encoder_embedding_size": 5,
        "decoder_embedding_size": 6,
        "decoder_softmax_size": softmax,
        "batch_size": 4,
        "max_gradient_norm": 1.0,
        "optimizer_params": {"learning_rate": 0.5},
    }


SOURCE_WORDS, TARGET_WORDS = 10, 11


def _trainer(name, num_gpus=0, **params):
    def build(caffe2):
        trained = caffe2.train.Seq2SeqModelCaffe2(model_params(**params), SOURCE_WORDS, TARGET_WORDS, num_gpus=num_gpus)
        trained._build_model(init_params=True)
        return {
            "init": trained.model.param_init_net.Proto(),
            "main": trained.model.net.Proto(),
            "forward": trained.forward_net.Proto(),
        }

    CALLS[name] = build


_trainer("trainer")
_trainer("trainer_without_attention", attention="none", encoder=(4, 4), decoder=(4, 4), softmax=5)
_trainer("trainer_both_ways", encoder=(2,), decoder=(4,), both=True)
_trainer("trainer_of_more_layers", encoder=(4,), decoder=(4, 4))
_trainer("trainer_on_gpus", num_gpus=2, encoder=(3, 3), decoder=(4, 4))


def decoder_of(caffe2, members, beam_size=3, **rewards):
    vocab = [{f"w{i}": i for i in range(n)} for n in (SOURCE_WORDS, TARGET_WORDS)]
    models = [
        {"source_vocab": vocab[0], "target_vocab": vocab[1], "model_params": params, "model_file": f"file{i}"}
        for i, params in enumerate(members)
    ]
    decoding = {"beam_size": beam_size, "word_reward": 0.0, "unk_reward": 0.0, **rewards}
    return caffe2.translate.Seq2SeqModelCaffe2EnsembleDecoder({"ensemble_models": models, "decoding_params": decoding})


def _decoder(name, *members):
    def build(caffe2):
        caffe2.workspace.ResetWorkspace()
        model = decoder_of(caffe2, members).model
        return {"init": model.param_init_net.Proto(), "main": model.net.Proto()}

    CALLS[name] = build


_decoder("decoder", model_params())
_decoder("decoder_without_attention", model_params(attention="none", encoder=(4, 5), decoder=(5,), softmax=5))
_decoder("decoder_of_more_layers", model_params(encoder=(4,), decoder=(4, 4)))
_decoder("decoder_both_ways", model_params(encoder=(2,), decoder=(4,), both=True))
_decoder("decoders", model_params(), model_params(encoder=(4, 4), decoder=(4, 4), softmax=5))
_decoder("decoders_of_both_kinds", model_params(), model_params(attention="none"))


def search_of(caffe2, words=5, rewarded=False, chosen=False, go=False, **options):
    """A search whose step looks the chances of a word up by the word before; they get more equal with time."""
    model = caffe2.seq2seq_model_helper.Seq2SeqModelHelper()
    search = caffe2.beam_search.BeamSearchForwardOnly(3, model, 2, **options)
    step = search.get_step_model()
    reference = caffe2.core.BlobReference
    table = step.param_init_net.GaussianFill([], "table", shape=[words, words])
    step.AddParameter(table)
    flat, _ = step.net.Reshape(search.get_previous_tokens(), ["flat", "flat_shape"], shape=[-1])
    before = step.net.AddExternalInput("first_prev", "second_prev")
    rows = step.net.Gather([table, flat], "rows")
    logits = step.net.Mul([rows, step.net.SumElements(before[1], "factor")], "logits", broadcast=1)
    log_probs = step.net.Log(step.net.Softmax(logits, "probs"), "log_probs")
    after = [
        step.net.Add([before[0], before[0]], "first"),
        step.net.Scale(before[1], "second", scale=0.5),
    ]
    looked = step.net.ConstantFill([], "looked", shape=[3, 4, 1], value=0.25)
    first = model.param_init_net.ConstantFill([], "start", shape=[2], value=1.0)
    state, link = search.StateConfig, search.LinkConfig
    given = model.net.AddExternalInput("sentence", "length")
    outputs = search.apply(
        inputs=given[0],
        length=given[1],
        log_probs=log_probs,
        attentions=looked,
        state_configs=[state(first, link(b, 0, 1), link(a, 1, 1)) for b, a in zip(before, after)],
        data_dependencies=[reference("extra")] if chosen else [],
        word_rewards=reference("rewards") if rewarded else None,
        possible_translation_tokens=reference("possible") if chosen else None,
        go_token_id=reference("go") if go else None,
    )
    return model, outputs


def _search(name, **options):
    def build(caffe2):
        model, _ = search_of(caffe2, **options)
        return {"init": model.param_init_net.Proto(), "main": model.net.Proto()}

    CALLS[name] = build


_search("search")
_search("search_with_penalty", post_eos_penalty=-3.0, go_token_id=3)
_search("search_with_rewards", rewarded=True)
_search("search_among_words", rewarded=True, chosen=True, words=4)
_search("search_from_a_blob", go=True)
