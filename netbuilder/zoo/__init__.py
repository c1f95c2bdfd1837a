"""The model zoo: well-known nets, each built by one call."""

import typing as _typing

from netbuilder._lazy import names_on_first_use as _names_on_first_use
from netbuilder.zoo.alexnet import create_alexnet
from netbuilder.zoo.bert import create_bert
from netbuilder.zoo.convnext import create_convnext
from netbuilder.zoo.dcgan import create_dcgan_discriminator, create_dcgan_generator
from netbuilder.zoo.densenet import create_densenet
from netbuilder.zoo.dlrm import create_dlrm
from netbuilder.zoo.efficientnet import create_efficientnet
from netbuilder.zoo.gpt2 import create_gpt2
from netbuilder.zoo.inception import create_inception_v1
from netbuilder.zoo.inception_v3 import create_inception_v3
from netbuilder.zoo.lenet import create_lenet
from netbuilder.zoo.mlp import create_mlp
from netbuilder.zoo.mobilenet import create_mobilenet_v2, create_mobilenet_v3
from netbuilder.zoo.overfeat import create_overfeat
from netbuilder.zoo.regnet import create_regnet
from netbuilder.zoo.residual import ResNetBuilder
from netbuilder.zoo.resnet import create_resnet, create_resnet50, create_resnet_32x32
from netbuilder.zoo.resnet_cifar import create_resnet_cifar
from netbuilder.zoo.resnext import create_resnext
from netbuilder.zoo.shufflenet import create_shufflenet
from netbuilder.zoo.shufflenet_v2 import ShuffleNetV2Builder, create_shufflenet_v2
from netbuilder.zoo.squeezenet import create_squeezenet
from netbuilder.zoo.swin import create_swin
from netbuilder.zoo.unet import create_unet
from netbuilder.zoo.vgg import create_vgg
from netbuilder.zoo.vit import create_vit

__all__ = [
    "ResNetBuilder",
    "ShuffleNetV2Builder",
    "create_alexnet",
    "create_inception_v1",
    "create_inception_v3",
    "create_lenet",
    "create_mlp",
    "create_overfeat",
    "create_resnet",
    "create_resnet50",
    "create_resnet_32x32",
    "create_resnet_cifar",
    "create_resnext",
    "create_shufflenet",
    "create_shufflenet_v2",
    "create_squeezenet",
    "create_vgg",
    "create_bert",
    "create_convnext",
    "create_dcgan_discriminator",
    "create_dcgan_generator",
    "create_densenet",
    "create_dlrm",
    "create_efficientnet",
    "create_gpt2",
    "create_mobilenet_v2",
    "create_mobilenet_v3",
    "create_regnet",
    "create_swin",
    "create_unet",
    "create_vit",
]

if not _typing.TYPE_CHECKING:  # for which all names are known
    __getattr__, __dir__ = _names_on_first_use(__name__, {})
