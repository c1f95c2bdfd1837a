"""The tables of docs/speed.md: they are what the stored figures say, and new results get columns of their own."""

import json

import pytest

from house import ROOT
from netbuilder.tools import speed_page

PAGE = "# Speed\n\n" + "".join(f"<!-- table {name} -->\n<!-- end of {name} -->\n\n" for name in speed_page.TABLES)
TRAINED = {
    "kind": "pairs", "work": {"net": "gpt2", "threads": 2, "mode": "eager"}, "ratio": 2.284, "spread": [1.9, 2.3],
    "memory_ratio": 0.631, "apart": 1e-7, "peer": "torch 2.14.1+cpu compile",
}  # fmt: skip
READ = {"kind": "models", "model": "bert", "threads": 1, "ratio": 1.046, "spread": [1, 1.1], "apart": 1e-7}


def test_the_page_is_what_the_figures_say():
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert speed_page.with_tables(page, speed_page.stored(ROOT / "docs" / "figures")) == page, (
        "run python -m netbuilder.tools.speed_page docs"
    )


def test_results_are_stored_and_shown(tmp_path, capsys):
    (tmp_path / "speed.md").write_text(PAGE)
    file = tmp_path / "run.json"
    for ratio, column, date in ((1.046, "Zen 5", "2026-11-29"), (0.5, "Zen 5", "2026-11-28"), (3, "AMX", "2026-11-30")):
        failed = {"kind": "models", "model": "other", "threads": 1, "error": "no"}
        wrong = {**READ, "model": "wrong", "apart": float("nan")}
        results = [TRAINED, {**READ, "ratio": ratio}, failed, wrong, {"kind": "models", "ratios": {"bert": ratio}}]
        file.write_text(json.dumps({"machine": "M", "busy": 0.1, "results": results}))
        assert speed_page.main([str(tmp_path), f"--add={file}", f"--column={column}", f"--date={date}"]) == 0
    page = (tmp_path / "speed.md").read_text()
    assert "| net | Zen 5, 1 thread (2026-11-29) | AMX, 1 thread (2026-11-30) |" in page
    assert "| bert | 1.05 (1.00 to 1.10) | 3.00 (1.00 to 1.10) |" in page and "other" not in page
    assert "left out: other: no\nleft out: wrong: its sides differ by more than rounding\n" in capsys.readouterr().out
    assert "wrong" not in page
    assert "| net | Zen 5, 2 threads, compiled (2026-11-29) | AMX, 2 threads, compiled (2026-11-30) |" in page
    assert "| gpt2 | 2.28 (1.90 to 2.30), 0.63 | 2.28 (1.90 to 2.30), 0.63 |" in page
    assert len(list((tmp_path / "figures").glob("*.json"))) == 3
    assert speed_page.main([str(tmp_path)]) == 0 and (tmp_path / "speed.md").read_text() == page


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("[1]", [], "run.json is not a file that netbuilder-benchmark --json writes"),
        ('{"machine": "M", "results": []}', [], "run.json: no result of models or train-models; run"),
        ("{}", ["--date=2026-2-1"], "must be a date such as 2026-11-29"),
        ("{}", ["--column=../a"], "must have letters, digits, spaces and hyphens only"),
    ],
)
def test_refusals(text, given, said, tmp_path, capsys):
    (tmp_path / "speed.md").write_text(PAGE)
    (tmp_path / "run.json").write_text(text)
    try:
        status = speed_page.main([str(tmp_path), f"--add={tmp_path / 'run.json'}", *given])
    except SystemExit as end:
        status = end.code
    assert status and said in capsys.readouterr().err
    assert (tmp_path / "speed.md").read_text() == PAGE


def test_a_page_without_a_place_is_refused():
    with pytest.raises(speed_page.NetError, match="no place for the table models: add <!-- table models -->"):
        speed_page.with_tables(PAGE.replace("<!-- end of models -->", ""), [])
