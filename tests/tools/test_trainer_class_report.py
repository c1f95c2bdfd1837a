"""Precision, recall and the confusion matrix of netbuilder-train, in NumPy and on one and two devices."""

import csv

import numpy as np
import pytest

from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.class_report import class_table, classes_of, hardest
from small_training import run_of

CONFUSION = np.array([[3, 1, 0], [0, 4, 0], [2, 2, 0]])


def test_results_of_classes():
    labels, found = (np.repeat(np.indices((3, 3))[axis].ravel(), CONFUSION.ravel()) for axis in (0, 1))
    results = classes_of(CONFUSION)
    for each in range(3):
        right = ((labels == each) & (found == each)).sum()
        recall, precision = right / (labels == each).sum(), right / max((found == each).sum(), 1)
        assert results["samples"][each] == (labels == each).sum() and results["recall"][each] == recall
        assert np.isnan(results["precision"][each]) if each == 2 else results["precision"][each] == precision
    np.testing.assert_allclose(results["f1"][:2], [2 * 0.75 * 0.6 / 1.35, 2 * 4 / 7 / (1 + 4 / 7)])
    assert hardest(CONFUSION, "abc") == ["c: 0% of 4, most often a", "a: 75% of 4, most often b"]


def test_a_class_without_samples():
    rows = list(csv.DictReader(class_table(np.diag([2, 0]), ["a", "b,c"]).splitlines()))
    assert rows[1]["class"] == "b,c" and rows[1]["recall"] == "nan" and rows[0]["found a"] == "2"
    assert hardest(np.diag([2, 0]), "ab") == []


@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_the_confusion_is_of_the_accuracy(devices, tmp_path):
    run = run_of(f"--devices={devices}", f"--class-report={tmp_path / 'classes.csv'}")
    found = run.train()
    assert found.confusion.sum() == found.samples == 13
    assert np.trace(found.confusion) == round(found.top1 * found.samples)
    labels = np.bincount(run._test_images.labels, minlength=run.classes)
    np.testing.assert_array_equal(found.confusion.sum(1), labels)


def test_the_file(tmp_path, capsys):
    path = tmp_path / "classes.csv"
    assert main(["--cpu", "--model=mlp", "--epochs=1", f"--class-report={path}"]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["class"] for row in rows] == list("0123456789")
    right = sum(int(row[f"found {row['class']}"]) for row in rows)
    whole = sum(int(row["samples"]) for row in rows)
    assert f"{whole} held-out images: {right / whole:.2%}" in capsys.readouterr().out
