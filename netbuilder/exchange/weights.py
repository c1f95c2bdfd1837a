"""Weights of nets of the zoo in files of PyTorch's libraries: torchvision's names, and timm's for ViT and DeiT."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from netbuilder.exchange.checkpoint_file import Checkpoint
from netbuilder.exchange.checkpointed_blobs import checkpoint_blobs
from netbuilder.exchange.checkpoints import load_checkpoint
from netbuilder.exchange.hub import is_hub_name, weights_of_hub
from netbuilder.exchange.matching import LoadReport
from netbuilder.exchange.safetensors import read_safetensors, write_safetensors
from netbuilder.exchange.weight_names import RUNNING, has_blob, in_zoo_order
from netbuilder.model import ModelHelper
from netbuilder.proto import NetError, opened_files
from netbuilder.proto.extras import how_to_install
from netbuilder.proto.file_kinds import kind_of
from netbuilder.runtime import Workspace, default

__all__ = ["OF_OUR_OWN", "load_weights", "read_weights", "save_weights"]

PathLike = str | os.PathLike[str]

_HEAD = re.compile(r"(classifier(\.\d+)?|fc|head|head_dist)\.(weight|bias)")


OF_OUR_OWN = "a net that was trained here is read from its ONNX file: netbuilder-train --onnx FILE, with --new-head"
"""What to give in place of weights, in errors about files of this project."""


def _check_kind(path: PathLike) -> None:
    """Raise NetError if a file is of a known kind that holds no weights; torch writes ZIP archives."""
    kind = kind_of(opened_files.read_bytes(path))
    if kind and "ZIP" not in kind:
        raise NetError(f"{os.fspath(path)!r} does not hold weights: this is {kind}; {OF_OUR_OWN}") from None


def read_weights(path: PathLike) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name.

    Args:
        path: ``.safetensors``; what torch has written, where it is installed; or, with huggingface_hub, the name of a
            model of the Hugging Face Hub, such as ``timm/resnet18.a1_in1k``.

    Raises:
        NetError: torch is missing, or the file holds something other than tensors by name; or see ``weights_of_hub``.
        ParseError: the file is damaged.
        OSError: it cannot be read.
    """
    if is_hub_name(path):
        path = weights_of_hub(os.fspath(path))
    if Path(path).suffix == ".safetensors":
        return read_safetensors(path)
    if Path(path).is_dir():
        raise NetError(f"{os.fspath(path)!r} is a folder; give a file with weights; {OF_OUR_OWN}")
    if not Path(path).is_file():
        opened_files.read_bytes(path)  # its errors are plainer than those of torch
    try:
        import torch
    except ImportError:
        _check_kind(path)
        raise NetError(
            f"{os.fspath(path)!r} is read by PyTorch, which is not installed: {how_to_install('torch')}; or "
            "give FILE.safetensors, which needs no package"
        ) from None
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch's errors for such files have no class in common
        first = str(error).partition("\n")[0]
        _check_kind(path)
        raise NetError(f"{os.fspath(path)!r}: torch cannot load it with weights_only=True: {first}") from error
    for key in ("state_dict", "model"):  # as training scripts store it
        if isinstance(stored, Mapping) and isinstance(stored.get(key), Mapping):
            stored = stored[key]
    if not isinstance(stored, Mapping) or not all(isinstance(value, torch.Tensor) for value in stored.values()):
        raise NetError(f"{os.fspath(path)!r} must hold tensors by name, as module.state_dict() returns them")
    wide = {torch.bfloat16, torch.float16}
    return {name: (value.float() if value.dtype in wide else value).numpy() for name, value in stored.items()}


def load_weights(
    model: ModelHelper, path: PathLike, *, workspace: Workspace | None = None, new_head: bool = False
) -> LoadReport:
    """Load the weights of a net of torchvision or timm into the same net of the zoo, on all of its devices.

    Values are matched by order, see ``in_zoo_order``, and each shape is checked. An error leaves everything unchanged.

    Args:
        model: the net, training or in test mode; its init net has run.
        path: see ``read_weights``.
        workspace: None: the current default one.
        new_head: the last layer may have other classes than the file; then it keeps its initial values.

    Returns:
        What was loaded, what of the file was not, and which blobs keep their values, with reasons.

    Raises:
        NetError: the file is of another net; the message lists what does not match.
        BlobError: blobs of the model are not in the workspace.
    """
    workspace = workspace or default.workspace()
    stored = read_weights(path)
    blobs = _blobs_in_order(model)
    shapes = {name: workspace.fetch(blob).shape for name, blob in blobs.items()}
    pairs = _pairs(os.fspath(path), stored, shapes)
    values, kept, left = {}, {}, {}
    for blob, name in pairs.items():
        if _extents(stored[name].shape) == _extents(shapes[blob]):
            values[blob] = stored[name].reshape(shapes[blob]).astype(np.float32)
            continue
        why = f"its shape is {stored[name].shape}, that of {blob} is {shapes[blob]}"
        if not (new_head and _HEAD.fullmatch(name) and stored[name].shape[1:] == shapes[blob][1:]):
            hint = "; new_head=True (--finetune) replaces the last layer" if _HEAD.fullmatch(name) else ""
            raise NetError(f"{os.fspath(path)!r}: {name!r} does not fit the net: {why}{hint}")
        kept[blob], left[name] = f"a new head: the file has {stored[name].shape}", why
    load_checkpoint(
        Checkpoint(values), model, workspace=workspace, parameters_only=True, partial=True, show=lambda text: None
    )
    unused = {name: "the net has no blob for it" for name in stored if not has_blob(name)}
    return LoadReport(repr(os.fspath(path)), tuple(values), {**left, **unused}, kept)


def save_weights(
    model: ModelHelper, path: PathLike, *, like: PathLike | Sequence[str], workspace: Workspace | None = None
) -> None:
    """Write the weights of a net of the zoo under the names of torchvision or timm, as ``.safetensors``.

    Args:
        model: the net.
        path: FILE.safetensors.
        like: a file of weights of the same net, or the names, such as ``list(module.state_dict())``.
        workspace: None: the current default one.

    Raises:
        NetError: the names are not those of this net, or ``path`` has another ending.
        OSError: the file cannot be written; then there is none.
    """
    workspace = workspace or default.workspace()
    if Path(path).suffix != ".safetensors":
        raise NetError(f"save_weights must write FILE.safetensors, got {os.fspath(path)!r}")
    source, of_file = "like", dict[str, np.ndarray]()
    if isinstance(like, (str, os.PathLike)):
        source, of_file = os.fspath(like), read_weights(like)
        names = [*of_file]
    else:
        names = [*like]
    blobs = _blobs_in_order(model)
    values = {name: workspace.fetch(blob) for name, blob in blobs.items()}
    arrays = {name: values[blob] for blob, name in _pairs(source, names, values).items()}
    for name, value in arrays.items():
        if name in of_file and value.size == of_file[name].size:  # such as a token (1, 1, dim) for a vector
            arrays[name] = value.reshape(of_file[name].shape)
    write_safetensors(path, {name: arrays[name] for name in names if name in arrays})


def _blobs_in_order(model: ModelHelper) -> dict[str, str]:
    """Return name -> blob of the first replica: the parameters as the net adds them, then the running statistics."""
    blobs = checkpoint_blobs(model)
    name_of = {blob: name for name, blob in blobs.names.items() if name in blobs.parameters}
    ordered = [str(blob) for blob in (*model.params, *model.GetComputedParams(""))]
    found = {name_of[blob]: blob for blob in ordered if blob in name_of}
    trained = set(map(str, model.params))
    return {name: blob for name, blob in found.items() if blob in trained or name.endswith(("_rm", "_riv"))}


def _pairs(source: str, stored: Iterable[str], blobs: Iterable[str]) -> dict[str, str]:
    """Return name of a blob -> name in the file.

    Raises:
        NetError: the numbers of parameters or of running statistics differ.
    """
    names, pairs = in_zoo_order(stored), dict[str, str]()
    for what, theirs, ours in (
        ("parameters", [n for n in names if not n.endswith(RUNNING)], [b for b in blobs if not _is_running(b)]),
        ("running statistics", [n for n in names if n.endswith(RUNNING)], [b for b in blobs if _is_running(b)]),
    ):
        if len(theirs) != len(ours):
            raise NetError(
                f"{source!r} is of another net: it has {len(theirs)} {what}, the net {len(ours)}; the file's are "
                f"{_some(theirs)}, the net's {_some(ours)}"
            )
        pairs.update(zip(ours, theirs))
    return pairs


def _extents(shape: Sequence[int]) -> list[int]:
    """Return the extents other than 1: a token may be a vector, and a last layer a convolution 1x1."""
    return [extent for extent in shape if extent != 1]


def _is_running(blob: str) -> bool:
    return blob.endswith(("_rm", "_riv"))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ..., {names[-1]}" if len(names) > 4 else "".join(f", {n}" for n in names[3:]))
