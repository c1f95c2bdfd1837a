"""Exchange: predictors in files."""

from netbuilder.exchange import mobile_exporter
from netbuilder.exchange.predictor import Predictor
from netbuilder.exchange.predictor_files import load_predictor, save_predictor

__all__ = ["Predictor", "load_predictor", "mobile_exporter", "save_predictor"]
