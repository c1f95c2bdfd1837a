"""Exchange: predictors and checkpoints in files.

Its names are imported on first use: a predictor needs no checkpoints, and those no predictor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from netbuilder._lazy import names_on_first_use as _names_on_first_use

_EXPORTS = {
    "netbuilder.exchange.checkpointed_blobs": ["CheckpointBlobs", "checkpoint_blobs"],
    "netbuilder.exchange.checkpoint_file": ["Checkpoint", "read_checkpoint", "write_checkpoint"],
    "netbuilder.exchange.checkpoint_folder": ["CheckpointFolder"],
    "netbuilder.exchange.checkpoints": ["load_checkpoint", "save_checkpoint", "take_checkpoint"],
    "netbuilder.exchange.classification": ["Prediction"],
    "netbuilder.exchange.image_preparation": ["ImagePreparation", "describe_images"],
    "netbuilder.exchange.matching": ["LoadReport"],
    "netbuilder.exchange.predictor": ["Predictor"],
    "netbuilder.exchange.predictor_files": ["load_predictor", "save_predictor"],
    "netbuilder.exchange.weights": ["load_weights", "save_weights"],
}

__all__ = [
    "Checkpoint",
    "CheckpointBlobs",
    "CheckpointFolder",
    "ImagePreparation",
    "LoadReport",
    "Prediction",
    "Predictor",
    "checkpoint_blobs",
    "describe_images",
    "load_checkpoint",
    "load_predictor",
    "load_weights",
    "read_checkpoint",
    "save_checkpoint",
    "save_predictor",
    "save_weights",
    "take_checkpoint",
    "write_checkpoint",
]

if TYPE_CHECKING:
    from netbuilder.exchange.checkpoint_file import Checkpoint as Checkpoint
    from netbuilder.exchange.checkpoint_file import read_checkpoint as read_checkpoint
    from netbuilder.exchange.checkpoint_file import write_checkpoint as write_checkpoint
    from netbuilder.exchange.checkpoint_folder import CheckpointFolder as CheckpointFolder
    from netbuilder.exchange.checkpointed_blobs import CheckpointBlobs as CheckpointBlobs
    from netbuilder.exchange.checkpointed_blobs import checkpoint_blobs as checkpoint_blobs
    from netbuilder.exchange.checkpoints import load_checkpoint as load_checkpoint
    from netbuilder.exchange.checkpoints import save_checkpoint as save_checkpoint
    from netbuilder.exchange.checkpoints import take_checkpoint as take_checkpoint
    from netbuilder.exchange.classification import Prediction as Prediction
    from netbuilder.exchange.image_preparation import ImagePreparation as ImagePreparation
    from netbuilder.exchange.image_preparation import describe_images as describe_images
    from netbuilder.exchange.matching import LoadReport as LoadReport
    from netbuilder.exchange.predictor import Predictor as Predictor
    from netbuilder.exchange.predictor_files import load_predictor as load_predictor
    from netbuilder.exchange.predictor_files import save_predictor as save_predictor
    from netbuilder.exchange.weights import load_weights as load_weights
    from netbuilder.exchange.weights import save_weights as save_weights

__getattr__, __dir__ = _names_on_first_use(__name__, _EXPORTS)
