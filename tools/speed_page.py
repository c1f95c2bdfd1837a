"""Stores what ``netbuilder-benchmark --json`` measured, and writes the tables of docs/speed.md that follow from it.

``python -m netbuilder.tools.speed_page docs --add models.json --column AVX2`` stores results of ``models`` and
``train-models`` in ``docs/figures`` and writes the tables anew; without ``--add`` it only writes them.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from netbuilder.proto import NetError
from netbuilder.proto.late_dataclass import dataclass
from netbuilder.proto.opened_files import open_file
from netbuilder.proto.whole_file import write_text
from netbuilder.tools.bench.predict import BOUND
from netbuilder.tools.bench.report import SAME
from netbuilder.tools.options import OptionsParser, argument, option
from netbuilder.tools.reporting import reporting
from netbuilder.tools.results import write_json

__all__ = ["main", "rows_of", "table", "with_tables"]

TABLES = ("train-models", "models")
"""The tables that are written: those of these works of ``netbuilder-benchmark``."""


def rows_of(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the tables show of the records that ``netbuilder-benchmark`` writes.

    Nets that failed, or whose sides did not do the same work up to rounding, have no row; they are printed.
    """
    rows = []
    for record in results:
        if record["kind"] == "models" and "model" in record:
            net, threads, peer, bound = record["model"], record["threads"], "", BOUND
        elif record["kind"] == "pairs" and "memory_ratio" in record:
            work, bound = record["work"], SAME
            *_, mode = record["peer"].split()  # the work's own mode is that of several peers
            net, threads, peer = work["net"], work["threads"], {"compile": "compiled"}.get(mode, mode)
        else:
            continue
        if "ratio" not in record or not record["apart"] <= bound:
            print(f"left out: {net}: {record.get('error', 'its sides differ by more than rounding')}")
            continue
        table = "train-models" if peer else "models"
        row = {"table": table, "net": net, "threads": threads, "peer": peer, "ratio": round(record["ratio"], 3)}
        row["spread"] = [round(value, 3) for value in record["spread"]]
        rows.append({**row, "memory": round(record["memory_ratio"], 3)} if peer else row)
    return rows


def table(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return a table: a line for each net, a column for each machine, number of threads and kind of peer.

    Args:
        name: of ``TABLES``.
        runs: what files of figures contain, the latest last; of two figures for one cell the later one is shown.
    """
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, str] = {}
    for run in runs:
        for row in run["rows"]:
            if row["table"] == name:
                threads = f"{row['threads']} thread{'s' if row['threads'] != 1 else ''}"
                column = ", ".join(filter(None, (run["column"], threads, row["peer"])))
                columns[column] = run["date"]
                cells.setdefault(row["net"], {})[column] = _cell(row)
    heads = [f"{column} ({date})" for column, date in columns.items()]
    lines = [["net", *heads], ["---"] * (len(heads) + 1)]
    lines += [[net, *(of_net.get(column, "-") for column in columns)] for net, of_net in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['ratio']:.2f}"
    if row.get("spread"):
        text += f" ({row['spread'][0]:.2f} to {row['spread'][1]:.2f})"
    return text if row.get("memory") is None else f"{text}, {row['memory']:.2f}"


def with_tables(page: str, runs: Sequence[dict[str, Any]]) -> str:
    """Return a page with its tables, each between two comments with its name, replaced by those of ``runs``.

    Raises:
        NetError: a table's place is missing.
    """
    for name in TABLES:
        first, last = f"<!-- table {name} -->", f"<!-- end of {name} -->"
        before, start, rest = page.partition(first)
        _, end, after = rest.partition(last)
        if not start or not end:
            raise NetError(f"speed.md: there is no place for the table {name}: add {first} and {last}")
        page = f"{before}{first}\n\n{table(name, runs)}\n\n{last}{after}"
    return page


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return the contents of the files of figures, the latest last."""
    return sorted((json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))), key=lambda run: run["date"])


def _add(file: Path, column: str, date: str, folder: Path) -> None:
    try:
        with open_file(file) as stream:
            found = json.load(stream)
        machine, rows = found["machine"], rows_of(found["results"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NetError(f"{file} is not a file that netbuilder-benchmark --json writes: {error}") from None
    if not rows:
        raise NetError(f"{file}: no result of models or train-models; run netbuilder-benchmark models --json {file}")
    run = {"column": column, "date": date, "machine": machine, "rows": rows}
    folder.mkdir(exist_ok=True)
    write_json(str(folder / f"{date}_{column.replace(' ', '_').lower()}_{file.stem}.json"), run, announced=True)


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Store results of netbuilder-benchmark, and write the tables of the page of speed."""

    docs: str = argument("the folder with speed.md and figures/")
    add: str | None = option("first store the results in this file, as --json wrote it", metavar="FILE")
    column: str = option("the machine's name at the head of a column", default="this machine", metavar="NAME",
                         must=("have letters, digits, spaces and hyphens only", lambda text: text.replace(" ", "a")
                               .replace("-", "a").isalnum()))  # fmt: skip
    date: str = option("when it was measured (default: today)", default=datetime.date.today().isoformat(),
                       metavar="YYYY-MM-DD", must=("be a date such as 2026-11-29", _is_date))  # fmt: skip


@reporting("speed_page")
def main(arguments: Sequence[str] | None = None) -> int:
    """Store results if some are given, and write the tables; return the exit status."""
    options = OptionsParser(_Options, prog="speed_page").parse(arguments)
    folder = Path(options.docs)
    page = (folder / "speed.md").read_text(encoding="utf-8")
    if options.add is not None:
        _add(Path(options.add), options.column, options.date, folder / "figures")
    write_text(folder / "speed.md", with_tables(page, stored(folder / "figures")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
