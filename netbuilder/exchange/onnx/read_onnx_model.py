"""read_onnx: ONNX models, from files or messages, read as predict nets with parameters."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import netbuilder.exchange.onnx.reading_choices
import netbuilder.exchange.onnx.reading_composed
import netbuilder.exchange.onnx.reading_control
import netbuilder.exchange.onnx.reading_einsum
import netbuilder.exchange.onnx.reading_quantized
import netbuilder.exchange.onnx.reading_resize
import netbuilder.exchange.onnx.reading_rules
import netbuilder.exchange.onnx.reading_sequences
import netbuilder.exchange.onnx.reading_windows  # noqa: F401  (they register themselves)
from netbuilder.data.gc_paused import collection_paused
from netbuilder.exchange.onnx.constants import MOST_ELEMENTS
from netbuilder.exchange.onnx.inference import check_external_data
from netbuilder.exchange.onnx.kept_models import kept_model
from netbuilder.exchange.onnx.library import onnx_library
from netbuilder.exchange.onnx.loading import load_model, read_file, without_constants
from netbuilder.exchange.onnx.model_inputs import with_shapes
from netbuilder.exchange.onnx.read_model import ReadModel
from netbuilder.exchange.onnx.reading import Reader
from netbuilder.exchange.onnx.reference import ReferenceNodeWarning
from netbuilder.proto import ParseError, opened_files

__all__ = ["read_onnx"]


def read_onnx(
    model: str | os.PathLike[str] | Any,
    *,
    reference: bool = True,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    training: bool = False,
    most_folded: int = MOST_ELEMENTS,
) -> ReadModel:
    """Read a model.

    Args:
        model: a file, or an ``onnx.ModelProto``. External data are read from the model's folder.
        reference: run unsupported nodes in ONNX's reference implementation, with a ``ReferenceNodeWarning``;
            otherwise such a node is an error.
        shapes: extents of inputs that the model leaves dynamic, by the input's name; None for one that stays so. Some
            nodes, such as the interpolation of images, are operators only if they know their extents.
        training: read a net to be trained, see ``ReadModel.training_model``: normalization by the batch and dropout
            as in training, and nothing is folded that depends on a parameter.
        most_folded: largest number of elements that constants computed while reading have at any time.

    Raises:
        NetError: ``shapes`` names no input of the model, or contradicts it.
        OperatorError: a node is not supported, or not with these attributes; the message names it.
        ParseError: the file is not an ONNX model.
        OSError: it cannot be read.
        DeviceError: the package onnx is not installed.

    Nodes with only constant inputs are folded. Dropout, which does nothing in a predictor, is removed.
    """
    options: dict[str, Any] = {"reference": reference, "training": training, "most_folded": most_folded}
    if isinstance(model, (str, os.PathLike)):
        read = _read_file(model, shapes or {}, options)
    else:
        onnx = onnx_library()
        check_external_data(model, None)
        light, constants = without_constants(onnx, model)
        read = Reader(onnx, with_shapes(light, shapes or {}, constants), constants, **options).read()
    if read.reference_nodes:
        kinds = ", ".join(f"{kind} ({len(places)})" for kind, places in read.reference_nodes.items())
        remedy = ""
        if read.dynamic_nodes:
            remedy = f"; {', '.join(read.dynamic_nodes)} need not, if shapes= gives the extents of the model's inputs"
        warnings.warn(
            f"ONNX model {read.net.name!r}: nodes of the types {kinds} run in ONNX's "
            f"reference implementation: slowly, on the CPU, without gradients (reference=False makes them errors)"
            f"{remedy}",
            ReferenceNodeWarning,
            stacklevel=2,
        )
    return read


def _read_file(
    path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int | None]], options: Mapping[str, Any]
) -> ReadModel:
    with opened_files.naming(path), collection_paused():
        try:
            file = read_file(path)
            place = kept_model(file, ({name: list(shape) for name, shape in sorted(shapes.items())}, options))
            kept = None if place is None else place.find()
            if kept is not None:
                return kept
            onnx = onnx_library()
            loaded = load_model(onnx, file)
            constants = dict(loaded.constants)
            read = Reader(onnx, with_shapes(loaded.model, shapes, constants), constants, **options).read()
            if place is not None:
                place.keep(read, loaded)
            return read
        except UnicodeDecodeError as error:
            raise ParseError(f"the model holds text that is not UTF-8: {error}") from None
