"""The bundled digits."""

import numpy as np
import pytest

from netbuilder.data import digits
from netbuilder.data.digit_images import _decode
from netbuilder.proto import ParseError


def test_the_data_set():
    images, labels = digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.dtype == np.float32
    assert labels.shape == (1797,)
    assert labels.dtype == np.int32
    assert images.min() == 0
    assert images.max() == 1
    np.testing.assert_array_equal(images * 16, np.rint(images * 16))
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_a_zero_has_a_hole_and_a_one_has_none():
    images, labels = digits()
    middle = images[:, 0, 3:5, 3:5].mean(axis=(1, 2))
    assert middle[labels == 0].mean() < 0.2 < 0.8 < middle[labels == 1].mean()


def test_a_damaged_file_is_refused():
    with pytest.raises(ParseError, match=r"digits.csv.gz: the file \(3 bytes\) is damaged"):
        _decode(b"abc")
