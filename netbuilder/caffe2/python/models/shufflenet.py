"""ShuffleNet v2."""

from netbuilder.caffe2.absent import names_of
from netbuilder.zoo.shufflenet_v2 import ShuffleNetV2Builder
from netbuilder.zoo.shufflenet_v2 import create_shufflenet_v2 as create_shufflenet

__all__ = ["ShuffleNetV2Builder", "create_shufflenet"]

__getattr__ = names_of(__name__)
