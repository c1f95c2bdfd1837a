"""Numbers that translators give, on Caffe2 and here: losses and parameters of training, searches."""

import numpy as np

from recorded.calls_translators import SOURCE_WORDS, TARGET_WORDS, decoder_of, model_params, search_of

BATCHES = [
    [([4, 5, 6], [7, 8]), ([9, 4], [10, 4, 5]), ([7], [6]), ([5, 5, 8, 9], [9])],
    [([6], [4, 4]), ([4, 9], [10]), ([8, 7, 5], [6, 7]), ([5], [5, 6, 8])],
]


def fill(caffe2, names, scale):
    """Give blobs values that depend on their names alone."""
    for name in sorted(map(str, names)):
        shape = caffe2.workspace.FetchBlob(name).shape
        seed = sum(ord(c) * (i + 1) for i, c in enumerate(name))
        values = np.random.RandomState(seed).uniform(-scale, scale, shape)
        caffe2.workspace.FeedBlob(name, values.astype(np.float32))


def trained(caffe2, **params):
    """Losses, and parameters after two batches."""
    caffe2.workspace.ResetWorkspace()
    model = caffe2.train.Seq2SeqModelCaffe2(model_params(**params), SOURCE_WORDS, TARGET_WORDS, num_gpus=0)
    model.initialize_from_scratch()
    names = sorted(map(str, model.model.GetParams("")))
    fill(caffe2, names, 0.7)
    losses = [model.step(batch, only) for batch, only in zip([*BATCHES, BATCHES[0]], (False, False, True))]
    found = {name: caffe2.workspace.FetchBlob(name) for name in names}
    return {"losses": np.array(losses, np.float64), **found, "step": np.array(model.get_current_step())}


def decoded(caffe2, *members, beam_size=3, **rewards):
    """Translations, where they look, and scores."""
    caffe2.workspace.ResetWorkspace()
    decoder = decoder_of(caffe2, members, beam_size, **rewards)
    fill(caffe2, decoder.model.GetParams(""), 1.5)
    found = {}
    for i, sentence in enumerate(([4, 5, 6], [9, 4, 4, 7], [8])):
        tokens, looked, score = decoder.decode(sentence, 2 * len(sentence) + 5)
        found.update({f"tokens{i}": np.array(tokens), f"looked{i}": np.array(looked), f"score{i}": np.array(score)})
    return found


def searched(caffe2, **options):
    """All that a search gives."""
    caffe2.workspace.ResetWorkspace()
    model, outputs = search_of(caffe2, **options)
    feeds = {
        "sentence": np.zeros((4, 1), np.int32),
        "length": np.array([5], np.int64),
        "rewards": np.array([0.5, 0.1, 0.0, -0.4, 0.3], np.float32),
        "possible": np.array([4, 2, 1, 3], np.int32),
        "go": np.array([3], np.float32),
        "extra": np.zeros(1, np.float32),
    }
    for name, value in feeds.items():
        caffe2.workspace.FeedBlob(name, value)
    caffe2.workspace.RunNetOnce(model.param_init_net)
    fill(caffe2, ["table"], 0.5)
    caffe2.workspace.RunNetOnce(model.net)
    return {str(blob): caffe2.workspace.FetchBlob(blob) for blob in outputs}


RUNS = {
    "trained": lambda caffe2: trained(caffe2),
    "trained_without_attention": lambda caffe2: trained(
        caffe2, attention="none", encoder=(4, 4), decoder=(4, 4), softmax=5
    ),
    "decoded": lambda caffe2: decoded(caffe2, model_params()),
    "decoded_with_rewards": lambda caffe2: decoded(
        caffe2, model_params(encoder=(2,), decoder=(4,), both=True), word_reward=0.7, unk_reward=-2.0
    ),
    "decoded_without_attention": lambda caffe2: decoded(caffe2, model_params(attention="none")),
    "decoded_by_two": lambda caffe2: decoded(caffe2, model_params(), model_params(encoder=(4,), softmax=5)),
    "searched": lambda caffe2: searched(caffe2),
    "searched_with_penalty": lambda caffe2: searched(caffe2, post_eos_penalty=-3.0, go_token_id=3),
    "searched_with_rewards": lambda caffe2: searched(caffe2, rewarded=True),
    "searched_from_a_blob": lambda caffe2: searched(caffe2, go=True),
}
