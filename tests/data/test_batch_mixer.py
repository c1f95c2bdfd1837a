"""Mixup and CutMix: what they compute, that draws follow from seed, epoch and number alone, and refusals."""

import numpy as np
import pytest

from netbuilder.data import BatchMixer
from netbuilder.data.batch_mixer import class_probabilities
from netbuilder.proto import ArgumentError, NetError

LABELS = np.array([0, 2, 1, 1, 0, 2, 2, 0], np.int32)


def images(height=8, width=6):
    """Each image is its own number."""
    return np.broadcast_to(np.arange(8, dtype=np.float32)[:, None, None, None], (8, 3, height, width)).copy()


def test_probabilities_of_classes():
    np.testing.assert_allclose(
        class_probabilities(LABELS[:2], 4, 0.2), [[0.85, 0.05, 0.05, 0.05], [0.05, 0.05, 0.85, 0.05]]
    )
    with pytest.raises(NetError, match=r"labels must be in \[0, 2\), got 0 to 2"):
        class_probabilities(LABELS, 2)


def test_nothing_is_mixed_without_an_alpha():
    x = images()
    got, labels, targets = BatchMixer(3)(x, LABELS, epoch=1, number=0)
    assert got is x and labels is LABELS
    np.testing.assert_array_equal(targets, np.eye(3)[LABELS])


@pytest.mark.parametrize("number", range(6))
def test_mixup_is_a_weighted_mean_of_images_and_labels(number):
    x = images()
    got, labels, targets = BatchMixer(3, mixup=1.0, smoothing=0.3, seed=4)(x, LABELS, epoch=2, number=number)
    np.testing.assert_array_equal(x, images())
    assert got.dtype == np.float32 and targets.dtype == np.float32
    rng = np.random.default_rng([4, 2, number, 0x6D6978])
    share, others = rng.beta(1.0, 1.0), rng.permutation(8)
    np.testing.assert_allclose(got[:, 0, 0, 0], share * np.arange(8) + (1 - share) * others, rtol=1e-5, atol=1e-6)
    assert np.ptp(got, axis=(1, 2, 3)).max() == 0
    smooth = 0.7 * np.eye(3) + 0.1
    np.testing.assert_allclose(targets, share * smooth[LABELS] + (1 - share) * smooth[LABELS[others]], atol=1e-6)
    np.testing.assert_array_equal(labels, LABELS if share >= 0.5 else LABELS[others])


@pytest.mark.parametrize("number", range(12))
def test_cutmix_puts_a_box_of_another_image_in(number):
    got, labels, targets = BatchMixer(3, cutmix=1.0, seed=1)(images(), LABELS, epoch=1, number=number)
    taken = got != np.arange(8)[:, None, None, None]
    share = 1 - taken[:, 0].mean(axis=(1, 2)).max()
    for k in range(8):
        if not taken[k].any():
            continue  # its other image is itself
        other = int(got[k][taken[k]][0])
        rows, columns = (np.flatnonzero(taken[k, 0].any(axis=axis)) for axis in (1, 0))
        assert (got[k, :, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] == other).all()
        assert taken[k].sum() == 3 * len(rows) * len(columns)
        want = share * np.eye(3)[LABELS[k]] + (1 - share) * np.eye(3)[LABELS[other]]
        np.testing.assert_allclose(targets[k], want, atol=1e-6)
        assert labels[k] == (LABELS[k] if share >= 0.5 else LABELS[other])


def test_draws_follow_from_seed_epoch_and_number():
    def mixed(seed, epoch, number, **alphas):
        return BatchMixer(3, seed=seed, **(alphas or {"mixup": 0.4}))(images(), LABELS, epoch=epoch, number=number)

    for one, two in zip(mixed(1, 2, 3), mixed(1, 2, 3)):
        np.testing.assert_array_equal(one, two)
    for other in (mixed(2, 2, 3), mixed(1, 3, 3), mixed(1, 2, 4)):
        assert (other[0] != mixed(1, 2, 3)[0]).any()
    both = [np.ptp(mixed(1, 1, n, mixup=1, cutmix=1)[0], axis=(1, 2, 3)).max() > 0 for n in range(40)]
    assert 8 < sum(both) < 32  # some batches are cut, others are not


def test_a_batch_of_one():
    got, labels, targets = BatchMixer(3, mixup=1, cutmix=1)(images()[1:2], LABELS[1:2], epoch=1, number=0)
    np.testing.assert_allclose(got, images()[1:2], rtol=1e-6)
    np.testing.assert_allclose(targets, [[0, 0, 1]], atol=1e-6)
    assert list(labels) == [2]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mixup": -1}, r"mixup: alpha must be 0 \(never\) or greater, usually 0.2 to 1, got -1"),
        ({"cutmix": float("nan")}, "cutmix: alpha"),
        ({"smoothing": 1}, r"smoothing must be in \[0, 1\), got 1"),
        ({"classes": 0}, "1 class or more, got 0"),
    ],
)
def test_refusals(options, match):
    with pytest.raises(ArgumentError, match=match):
        BatchMixer(**{"classes": 3, **options})


def test_boxes_of_pixels_are_pasted_as_those_of_floats():
    mixer, floats = BatchMixer(3, cutmix=1.0), np.random.default_rng(1).integers(0, 256, (8, 3, 8, 6), np.uint8)
    pixels = np.ascontiguousarray(floats.transpose(0, 2, 3, 1))
    for number in range(4):
        want = mixer(floats.astype(np.float32), LABELS, epoch=1, number=number)
        got = mixer(pixels, LABELS, epoch=1, number=number)
        assert got[0].dtype == np.uint8
        np.testing.assert_array_equal(got[0].transpose(0, 3, 1, 2), want[0])
        for one, other in zip(got[1:], want[1:]):
            np.testing.assert_array_equal(one, other)


def test_pixels_are_not_added_up():
    with pytest.raises(NetError, match="mixup adds images, which must be floats, got uint8; normalize them before"):
        BatchMixer(3, mixup=0.2, cutmix=1.0)(np.zeros((8, 4, 4, 3), np.uint8), LABELS, epoch=1, number=0)
