"""The page of operators can be made, README links every page, links lead somewhere, and commands in pages work."""

import ast
import json
import posixpath
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from command_parsers import parser_of
from house import ROOT, files, library_modules
from netbuilder import zoo
from netbuilder.exchange.onnx.graph import rules
from netbuilder.model import brew
from netbuilder.ops.core.registry import find, operator_types
from netbuilder.ops.core.signatures import is_gradient
from netbuilder.ops.core.unsupported import ABSENT
from netbuilder.parallel.simulation.links import Link
from netbuilder.runtime.plan.optimizations import ALL, GROUPS
from netbuilder.tools import (
    benchmark,
    char_lm,
    check,
    compare,
    documentation,
    draw,
    extract_predictor_net,
    imagenet_trainer,
    launch,
    make_db,
    operators_page,
    predict,
    profile,
    seq2seq,
    simulate,
)
from netbuilder.tools.training import options
from netbuilder.tools.training.nets import NETS


def listed(section: str) -> list[str]:
    """Return the names in the first column of a section's tables in the page of operators."""
    text = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", operators_page.page(), re.S | re.M)[1]
    return sorted(name for row in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", row))


def test_the_page_of_operators_can_be_made(tmp_path):
    path = tmp_path / "new" / "operators.md"
    assert operators_page.main([str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert text == operators_page.page() and "{" not in re.sub("`[^`]*`|\\|.*", "", text)


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("Operators", operator_types()),
        ("Helpers of `brew`", sorted(name for name in dir(brew) if name.islower() and brew.has_helper(name))),
        ("Operators of Caffe2 that are not in this version", sorted(ABSENT)),
        (
            "Operators that are not written to ONNX",
            sorted(name for name in operator_types() if name not in rules() and not is_gradient(find(name))),
        ),
    ],
)
def test_the_page_of_operators(section, names):
    assert listed(section) == names


def test_the_page_of_onnx_says_how_many_operators_can_be_written():
    page = (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8")
    assert f"{len(rules())} operators can be written" in page and "netbuilder.exchange.onnx.graph.rules()" in page


def test_readme_links_every_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in readme, page.name
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", readme):
        assert (ROOT / link).exists(), link


def test_the_page_of_nets_names_every_helper_builder_and_family():
    page = (ROOT / "docs" / "nets.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+)`", page))
    assert [name for name in dir(brew) if brew.has_helper(name) and name not in named] == []
    builders = {name for name in zoo.__all__ if name.startswith("create_")}
    assert builders - named == {"create_resnet50", "create_resnet_32x32"}  # as Caffe2 names them
    rows = re.findall(r"^\| .* \| `create_.*? \| (.*) \|$", page, re.M)
    names = {name for row in rows for name in re.findall(r"`([\w.-]+)`", row)}
    assert names <= set(NETS) and len(names) > 40


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    """In pages: files and headings that there are. In messages and comments: pages that there are."""
    missing, pages = [], [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            target = (page.parent / link).resolve() if link else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                missing.append(f"{page.name}: {link}#{anchor}")
    for module in library_modules():
        for name in re.findall(r"\bdocs/[\w/]+\.md\b", module.path.read_text(encoding="utf-8")):
            if not name.startswith("docs/operators") and not (ROOT / name).exists():
                missing.append(f"{module.name}: {name}")
    assert missing == []


def site_pages() -> dict[str, str]:
    """Return the text of each page of the documentation site, with its links as the site has them."""
    made = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    paths = {uri: ROOT / source for source, uri in made.items()}
    paths |= {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    entries = re.findall(r"- (.+): (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    config = {"nav": [{title: uri} for title, uri in entries]}
    pages = {}
    for uri, path in paths.items():
        page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
        pages[uri] = documentation.on_page_markdown(path.read_text(encoding="utf-8"), page, config)
    return pages


def test_links_of_the_site_lead_to_its_pages():
    """A file of the checkout that the site does not have is named by its path."""
    pages = site_pages()
    missing, count = [], 0
    for uri, text in pages.items():
        for link in re.findall(
            r"\]\((?!https?:|#)([^)#\s]+)", re.sub(r"^```.*?^```|`[^`\n]+`", "x", text, flags=re.S | re.M)
        ):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(uri), link))
            count += 1
            if target not in {*pages, "operators.md"} and not (ROOT / "docs" / target).is_file():
                missing.append(f"{uri}: {link}")
    assert missing == [] and count > 150
    assert "[form](" not in pages["contributing.md"] and "form (`tests/golden/README.md`)" in pages["contributing.md"]
    assert (
        "[Memory](memory.md)" in pages["concepts.md"] and "[`make operators-page`](operators.md)" in pages["index.md"]
    )


def test_the_reference_describes_each_name_once():
    pages = [documentation._reference(name) for name in documentation._PACKAGES]
    described = re.findall(r"^(?:::: |## .* \{: #)(\S+)", "\n".join(pages), re.M)
    linked = re.findall(r"^- \[`\w+`\]\[(\S+)\]: \S", "\n".join(pages), re.M)
    assert len(described) == len(set(described)) > 300
    assert len(linked) > 30 and set(linked) <= set(described)
    (adam,) = re.findall(r"^## build_adam \{.*?(?=^:::|^## |\Z)", "\n".join(pages), re.M | re.S)
    assert "build_adam(\n    model: ModelHelper,\n" in adam and "- **`base_learning_rate`** – " in adam


def test_examples_in_docstrings_are_code_on_the_site():
    text = "Add.\n\n>>> added(x)[0, 1]\n[2, 3]\n\nMore.\n\n```python\n>>> x\n```"
    fenced = "Add.\n\n\n```pycon\n>>> added(x)[0, 1]\n[2, 3]\n```\n\n\nMore.\n\n```python\n>>> x\n```"
    assert documentation._fenced(text) == fenced


def test_names_with_hyphens_stay_in_one_line_on_the_site():
    html = "<p>a-b <code>x --find-nan</code></p><pre><span></span><code>y --top 3</code></pre>"
    whole = html.replace("--find-nan", '<span class="whole">--find-nan</span>')
    assert documentation.on_page_content(html) == whole


def test_warnings_fail_the_build_of_the_site():
    """MkDocs counts what it logs, and with -q it logs no warnings."""
    (rule,) = re.findall(r"^site:.*?\n\n", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M | re.S)
    assert "build --strict" in rule and not re.search(r"\s(-\w*q\w*|--quiet)\s", rule)


def test_the_page_of_design_links_all_internals():
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs" / "internals").glob("*.md"):
        assert f"](internals/{page.name})" in design, page.name


def test_pages_name_files_that_there_are():
    """Those of the design and for contributors: by path, under netbuilder/ or not, or by the file's name alone."""
    known = {path.relative_to(ROOT).as_posix() for path in files() if path.suffix == ".py"}
    ends = {"/".join(path.split("/")[-n:]) for path in known for n in range(1, 9)}
    missing = []
    for page in [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "design.md", *(ROOT / "docs" / "internals").glob("*.md")]:
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8")):
            if name not in ends:
                missing.append(f"{page.name}: {name}")
    assert missing == []


RESOLVE = """
import os, sys
import netbuilder
for name in sys.stdin.read().split():
    if not os.fork():  # which has imported nothing else
        found = netbuilder
        try:
            for part in name.split(".")[1:]:
                found = getattr(found, part)
        except AttributeError as error:
            os.write(1, f"{name}: {error}\\n".encode())
        os._exit(0)
    os.wait()
"""


def test_names_in_pages_are_there_after_import_netbuilder():
    names = set()
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for code in re.findall(r"`([^`\n]+)`", text):
            if not re.search(r"python -m|-m netbuilder", code):
                names.update(re.findall(r"(?<![\w/.-])netbuilder(?:\.\w+)+", code))
    names.discard("netbuilder.input")  # a logger
    assert len(names) > 50
    called = [sys.executable, "-W", "ignore", "-c", RESOLVE]
    done = subprocess.run(called, input="\n".join(sorted(names)), capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("", "")


def test_optimizations_that_pages_switch_off_are_groups():
    given = re.compile(r"(?:--without[ =]|NETBUILDER_WITHOUT=|without=)([\w,]+|\[[^\]]*\]|\"[^\"]*\")")
    found = {
        (page.name, name)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for text in given.findall(page.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", text)
    }
    assert len(found) > 5
    assert {each for each in found if each[1] not in (*GROUPS, ALL)} == set()


def extras() -> set[str]:
    """Return the names of the extras in setup.py."""
    nodes = ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")))
    [found] = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "extras_require"]
    return {ast.literal_eval(key) for key in found.keys}


def test_readme_names_every_extra():
    start = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert extras() - set(re.findall(r"`([\w-]+)`", start)) == set()


def test_extras_that_pages_and_messages_name():
    """They exist, and commands that install them have the quotes that zsh needs."""
    known = extras()
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(module.path for module in library_modules())]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"netbuilder-nn\[([\w-]+)\]", text)) <= known, page
        assert not re.search(r"pip install [^'\s]*\[", text), page


def test_lines_of_pages_are_at_most_120_characters_long():
    """But for tables, code and output."""
    long, fenced = [], False
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            fenced ^= line.startswith("```")
            if len(line) > 120 and not fenced and not line.startswith(("|", "    ")):
                long.append(f"{page.name}:{number}")
    assert long == []


def test_sentences_do_not_begin_with_a_block_of_code():
    """A paragraph after one begins with a sentence of its own, or with a name."""
    found = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "    code", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        found += [f"{page.name}: {begun}" for begun in re.findall(r"^    .*\n\n([a-z]+ .*)", text, re.MULTILINE)]
    names = ("netbuilder", "torchvision's")
    assert [each for each in found if not each.split(": ")[1].startswith(names)] == []


def command_lines(name: str = "commands") -> list[list[str]]:
    """Return the commands in a page, in their order; those over several lines, too."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (netbuilder-[\w-]+(?!\S)(?:.*\\\n)*.*)$", page, re.M)
    return [shlex.split(line.replace("\\\n", " ")) for line in lines]


def test_commands_of_the_page(tmp_path, monkeypatch):
    """All are understood; those that train on the bundled digits, and extract from what that exports, run."""
    monkeypatch.chdir(tmp_path)
    mains = {
        "netbuilder-train": imagenet_trainer.main,
        "netbuilder-extract": extract_predictor_net.main,
        "netbuilder-draw": draw.main,
    }
    ran = 0
    for name, *arguments in command_lines():
        if name == "netbuilder-train":
            options.parse(arguments)
        if name == "netbuilder-launch":
            parser_of(launch).parse(arguments)
        if name == "netbuilder-benchmark":
            parser_of(benchmark).parse(arguments)
        if name == "netbuilder-draw":
            parser_of(draw).parse(arguments)
        if name == "netbuilder-char-lm":
            parser_of(char_lm).parse(arguments)
        if name == "netbuilder-seq2seq":
            parser_of(seq2seq).parse(arguments)
        if name in mains and "out/digits" in " ".join(arguments):
            assert mains[name](arguments) == 0
            ran += 1
    assert ran == 4
    assert (tmp_path / "out" / "again" / "predict_net.pb").is_file()


def test_commands_of_the_pages_of_training_and_of_predictors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("ilsvrc_2012_mean.npy", np.ones((3, 8, 8)))
    for name in ("resnet50.pth", "resnet50.safetensors"):
        (tmp_path / name).touch()
    parsers = {"netbuilder-train": options.parse, "netbuilder-predict": parser_of(predict).parse,
               "netbuilder-make-db": parser_of(make_db).parse}  # fmt: skip
    found = []
    for name in ("training", "predictors"):
        for command, *arguments in command_lines(name):
            parsers[command](arguments)
            found.append(command)
    assert found.count("netbuilder-train") >= 4 and found.count("netbuilder-predict") >= 3


def test_commands_of_the_page_of_images():
    parsers = {"netbuilder-train": options.parse, "netbuilder-make-db": parser_of(make_db).parse}
    lines = [*command_lines("data"), *(line for line in command_lines() if line[0] == "netbuilder-make-db")]
    assert {name for name, *_ in lines} == set(parsers) and len(lines) == 7
    for name, *arguments in lines:
        parsers[name](arguments)


def test_commands_of_the_page_of_checkpoints(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = command_lines("checkpoints")
    assert [imagenet_trainer.main(arguments) for _, *arguments in lines] == [0, 0]
    assert "resumed from out/run/step-" in capsys.readouterr().out
    assert len(list((tmp_path / "out" / "run").iterdir())) in (3, 4)


def test_commands_of_the_page_of_growth(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").write_text(json.dumps(Link.parse("10us:1GB/s").to_dict()))
    parsers = {"netbuilder-simulate": parser_of(simulate), "netbuilder-benchmark": parser_of(benchmark)}
    parsed = [parsers[name].parse(arguments) for name, *arguments in command_lines("growth")]
    assert len(parsed) >= 5 and any(getattr(options, "published", None) for options in parsed)


def test_commands_of_the_pages_of_launching_and_diagnosis():
    parsers = {
        "netbuilder-check": parser_of(check).parse,
        "netbuilder-compare": lambda given: options.parse(["--cpu", *parser_of(compare).parse_known(given)[1]]),
        "netbuilder-launch": parser_of(launch).parse,
        "netbuilder-profile": parser_of(profile).parse,
        "netbuilder-train": options.parse,
    }
    found = [line for name in ("launching", "distributed", "diagnosis") for line in command_lines(name)]
    for name, *arguments in found:
        parsers[name](arguments)
    assert {name for name, *_ in found} == set(parsers)


def test_operators_of_a_program_are_not_on_the_page(monkeypatch):
    from netbuilder.ops.core import registry
    from netbuilder.ops.core.operator import Operator

    class Stranger(Operator):
        pass

    before, find = operators_page.operator_types(), registry.find
    monkeypatch.setattr(operators_page, "operator_types", lambda: [*before, "Stranger"])
    monkeypatch.setattr(operators_page, "find", lambda name: Stranger if name == "Stranger" else find(name))
    assert "Stranger" not in operators_page.operator_tables() + operators_page.onnx_table()
