"""Images for the tests of image input: made up, encoded, in folders and databases."""

import numpy as np

from netbuilder.data import encode_jpeg, image_record, resize_image

__all__ = ["make_folder", "photo", "records"]


def photo(number, height=40, width=52):
    """A smooth image (H, W, 3), another one for each number."""
    rng = np.random.default_rng(number)
    return resize_image(rng.integers(0, 256, (4, 5, 3), np.uint8), height, width)


def make_folder(root, classes=("cat", "dog"), each=5):
    """A folder of class folders with JPEG files; images number 0, 1, ... through all classes."""
    for c, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for k in range(each):
            (root / name / f"{k:02}.jpg").write_bytes(encode_jpeg(photo(c * each + k)))
    return root


def records(count=12, classes=3, jpeg=True):
    """Keys and records of images."""
    for k in range(count):
        image = encode_jpeg(photo(k)) if jpeg else photo(k)
        yield f"{k:08}", image_record(image, k % classes)
