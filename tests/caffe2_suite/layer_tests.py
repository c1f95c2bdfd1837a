"""Replaces ``layer_test_util`` and ``layer_model_instantiator``, from which a test of Caffe2 uses two nets."""

from netbuilder.caffe2.python import core, test_util


class LayersTestCase(test_util.TestCase):
    """Gives tests a pair of nets; there are no layer models to make them of."""

    def get_training_nets(self):
        """Return an empty init net and an empty training net."""
        return core.Net("init_net"), core.Net("train_net")
