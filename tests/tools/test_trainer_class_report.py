"""Precision, recall and the confusion matrix of netbuilder-train, in NumPy and on one and two devices."""

import csv
import json
import re

import numpy as np
import pytest

from netbuilder.metrics import Classification
from netbuilder.tools.imagenet_trainer import main
from netbuilder.tools.training.class_report import class_csv, hardest
from small_training import run_of


def metrics_of(confusion):
    """The metrics of samples that are taken for one another so often."""
    confusion = np.array(confusion)
    labels, found = (np.repeat(np.indices(confusion.shape)[axis].ravel(), confusion.ravel()) for axis in (0, 1))
    metrics = Classification(len(confusion), confusion=True, rankings=True)
    metrics.add(np.eye(len(confusion))[found], labels)
    return metrics


def test_the_hardest_classes():
    table = hardest(metrics_of([[3, 1, 0], [0, 4, 0], [2, 2, 0]]), "abc")
    assert table.head == ("class", "samples", "precision", "recall", "F1", "average precision", "AUC",
                          "most often taken for")  # fmt: skip
    c, a = table.rows
    assert c[:5] == ("c", "4", "", "0.00%", "0.00%") and c[-1] == "a"
    assert a[:5] == ("a", "4", "60.00%", "75.00%", "66.67%") and a[-1] == "b"


def test_a_class_without_samples():
    metrics = metrics_of(np.diag([2, 0]))
    rows = list(csv.DictReader(class_csv(metrics, ["a", "b,c"]).splitlines()))
    assert rows[1]["class"] == "b,c" and rows[1]["recall"] == "nan" and rows[0]["found a"] == "2"
    assert not hardest(metrics, "ab").rows


@pytest.mark.parametrize("devices", ["0", "0,1"])
def test_the_confusion_is_of_the_accuracy(devices, tmp_path):
    run = run_of(f"--devices={devices}", f"--class-report={tmp_path / 'classes.csv'}")
    found = run.train()
    confusion = found.metrics.confusion
    assert confusion.sum() == found.samples == 13
    assert np.trace(confusion) == round(found.top1 * found.samples)
    labels = np.bincount(run._test_images.labels, minlength=run.classes)
    np.testing.assert_array_equal(confusion.sum(1), labels)


def test_metrics_are_in_the_files_and_the_table(tmp_path, capsys):
    arguments = ["--cpu", "--model=mlp", "--epochs=1", f"--out={tmp_path}", f"--class-report={tmp_path / 'c.csv'}",
                 f"--tensorboard={tmp_path / 'events'}"]  # fmt: skip
    assert main(arguments) == 0
    (epoch,) = [line for text in (tmp_path / "metrics.jsonl").read_text().splitlines()
                if (line := json.loads(text))["kind"] == "epoch"]  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    (events,) = (tmp_path / "events").iterdir()
    printed = capsys.readouterr().out
    for name, shown in (("precision", "precision"), ("recall", "recall"), ("f1", "F1"),
                        ("average_precision", "average precision"), ("auc", "AUC")):  # fmt: skip
        assert epoch[name] == pytest.approx(np.mean([float(row[name]) for row in rows]), abs=1e-4)
        assert f"epoch/{name}".encode() in events.read_bytes()
        assert re.search(rf"^{shown} \(mean of classes\) +{epoch[name]:.2%}$", printed, re.MULTILINE)


def test_the_file(tmp_path, capsys):
    path = tmp_path / "classes.csv"
    assert main(["--cpu", "--model=mlp", "--epochs=1", f"--class-report={path}"]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["class"] for row in rows] == list("0123456789")
    right = sum(int(row[f"found {row['class']}"]) for row in rows)
    whole = sum(int(row["samples"]) for row in rows)
    assert f"{whole} held-out images: {right / whole:.2%}" in capsys.readouterr().out
