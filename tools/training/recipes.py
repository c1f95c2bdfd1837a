"""Recipes of the trainer: options that suit a net and a set of photos, for those who do not choose them."""

from __future__ import annotations

from fnmatch import fnmatchcase

from netbuilder.tools.training.nets import NETS

__all__ = ["RECIPES", "recipe_for"]

_COURSE = ["--batch=16", "--policy=cosine", "--label-smoothing=0.1"]
_WARMUP, _WARMUP_SHARE = 2.0, 0.2  # epochs, but at most this share of a short run
_PHOTOS = ["--crop=224", "--area-crop=0.35", "--mirror"]  # smaller parts often miss what a photo shows

RECIPES: dict[str, list[str]] = {
    "convolutional": [*_COURSE, "--optimizer=adamw", "--learning-rate=1e-3", "--weight-decay=0.05"],
    "plain": [*_COURSE, "--optimizer=sgd", "--learning-rate=0.005", "--weight-decay=5e-4", "--clip-norm=5"],
    "transformer": [*_COURSE, "--optimizer=adamw", "--learning-rate=5e-4", "--weight-decay=0.05", "--clip-norm=1"],
}
"""Kind of net -> its options; those of the command line override them."""

_KINDS = {
    "transformer": ("vit-*", "deit-*", "swin-*", "convnext-*"),
    "plain": ("mlp", "lenet", "alexnet*", "overfeat", "squeezenet*", "inception-v1", "vgg[0-9][0-9]"),
}
"""Nets without normalization are plain; all others are convolutional ones."""

_EPOCHS, _FINETUNED_EPOCHS = 40, 10
_SLOWER = 0.2  # share of the rate where the run begins with weights of a file


def recipe_for(net: str, *, photos: bool, weights: bool, epochs: int | None = None) -> list[str]:
    """Return the options for a net.

    Args:
        net: its name.
        photos: whether the data are image files, which are cropped and mirrored, and not arrays.
        weights: whether the run begins with the weights of a file: then it is shorter, with smaller steps.
        epochs: length of the run, which the warm-up follows; None: the recipe's.
    """
    if net not in NETS:
        return []  # the option of the net is refused
    fits = (kind for kind, patterns in _KINDS.items() if any(fnmatchcase(net, each) for each in patterns))
    usual = _FINETUNED_EPOCHS if weights else _EPOCHS
    warmup = min(_WARMUP, _WARMUP_SHARE * (usual if epochs is None else epochs))
    found = RECIPES[next(fits, "convolutional")] + (_PHOTOS if photos else [])
    if weights:
        name = "--learning-rate="
        rate = next(float(text.removeprefix(name)) for text in found if text.startswith(name))
        found = [text for text in found if not text.startswith(name)] + [f"{name}{_SLOWER * rate:g}"]
    return [f"--epochs={usual}", f"--warmup-epochs={warmup:g}", *found]
