"""Exchange: predictors and checkpoints in files."""

from netbuilder.exchange import mobile_exporter
from netbuilder.exchange.checkpoint_blobs import CheckpointBlobs, checkpoint_blobs
from netbuilder.exchange.checkpoint_file import Checkpoint, read_checkpoint, write_checkpoint
from netbuilder.exchange.checkpoint_folder import CheckpointFolder
from netbuilder.exchange.checkpoints import load_checkpoint, save_checkpoint, take_checkpoint
from netbuilder.exchange.classification import Prediction
from netbuilder.exchange.image_preparation import ImagePreparation, describe_images
from netbuilder.exchange.matching import LoadReport
from netbuilder.exchange.predictor import Predictor
from netbuilder.exchange.predictor_files import load_predictor, save_predictor
from netbuilder.exchange.weights import load_weights, save_weights

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
    "mobile_exporter",
    "read_checkpoint",
    "save_checkpoint",
    "save_predictor",
    "save_weights",
    "take_checkpoint",
    "write_checkpoint",
]
