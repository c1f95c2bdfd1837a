"""DCGAN: a generator of images from noise, and a discriminator of real and generated ones."""

from __future__ import annotations

from netbuilder.graph.blob import BlobReference
from netbuilder.model import ModelHelper, brew
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.zoo.layers import SMALL, Blob, chosen

__all__ = ["DCGAN", "DCGANSize", "create_dcgan_discriminator", "create_dcgan_generator"]


@dataclass(frozen=True)
class DCGANSize:
    """A size of DCGAN, for images of 4 * 2 ** ``layers`` pixels a side.

    Args:
        layers: number of convolutions between the first and the last one.
        width: channels of the layer at the image; each layer farther from it has twice as many.
        noise: length of the vectors of noise.
    """

    layers: int
    width: int = 64
    noise: int = 100


DCGAN: dict[str, DCGANSize] = {"32": DCGANSize(3), "64": DCGANSize(4), "128": DCGANSize(5)}
"""The sizes by height and width of the images, in pixels; the paper's is 64."""


def create_dcgan_generator(
    model: ModelHelper, data: Blob, num_output_channels: int, size: str | DCGANSize = "64", is_test: bool = False
) -> BlobReference:
    """Add the generator; give it a name scope of its own.

    Args:
        data: noise, (N, ``noise``, 1, 1).
        num_output_channels: channels of the images.
        size: one of ``DCGAN``, or such a row.
        is_test: normalize by running averages.

    Returns:
        ``image``, with values in [-1, 1], (N, num_output_channels, H, W).

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: Radford, Metz and Chintala, "Unsupervised Representation Learning with Deep Convolutional Generative
    Adversarial Networks", 2015, arXiv:1511.06434.
    """
    table = chosen("create_dcgan_generator", size, DCGAN)
    widths = [table.width << i for i in reversed(range(table.layers))]
    x, dim = data, table.noise
    for number, width in enumerate([*widths, num_output_channels], 1):
        stride = 1 if number == 1 else 2
        x = brew.conv_transpose(
            model, x, f"conv{number}", dim, width, 4, weight_init=SMALL, no_bias=True, stride=stride, pad=stride - 1
        )
        if number <= len(widths):
            x = brew.spatial_bn(model, x, f"conv{number}_spatbn", width, is_test=int(is_test))
            x = brew.relu(model, x, x)
        dim = width
    return brew.tanh(model, x, "image")


def create_dcgan_discriminator(
    model: ModelHelper, data: Blob, num_input_channels: int, size: str | DCGANSize = "64", is_test: bool = False
) -> BlobReference:
    """Add the discriminator; give it a name scope of its own, and ``ParameterSharing`` to a second one.

    Args:
        data: images, (N, num_input_channels, H, W).
        The others are those of ``create_dcgan_generator``.

    Returns:
        ``logits`` of images being real, (N, 1).

    Raises:
        ArgumentError: ``size`` is unknown.

    Source: as for ``create_dcgan_generator``.
    """
    table = chosen("create_dcgan_discriminator", size, DCGAN)
    x, dim = data, num_input_channels
    for number in range(1, table.layers + 1):
        width = table.width << number - 1
        x = brew.conv(model, x, f"conv{number}", dim, width, 4, weight_init=SMALL, no_bias=True, stride=2, pad=1)
        if number > 1:
            x = brew.spatial_bn(model, x, f"conv{number}_spatbn", width, is_test=int(is_test))
        x = brew.leaky_relu(model, x, x, alpha=0.2)
        dim = width
    x = brew.conv(model, x, f"conv{table.layers + 1}", dim, 1, 4, weight_init=SMALL, no_bias=True)
    return brew.reshape(model, x, "logits", shape=[-1, 1])
