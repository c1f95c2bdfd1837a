"""Pages of the documentation site that are made when it is built: MkDocs calls these functions (``mkdocs.yml``).

They are README, CONTRIBUTING and CHANGELOG, the page of all operators, and a reference page for each public package,
from its signatures and docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netbuilder.proto import opened_files
from netbuilder.tools.operators_page import page as operators_page

__all__ = ["on_config", "on_files", "on_page_content", "on_page_markdown"]

_ROOT = Path(__file__).resolve().parents[1]
_FROM_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_PACKAGES = (
    "netbuilder", "netbuilder.graph", "netbuilder.model", "netbuilder.model.brew", "netbuilder.optimizers",
    "netbuilder.parallel", "netbuilder.distributed", "netbuilder.runtime", "netbuilder.exchange",
    "netbuilder.exchange.onnx", "netbuilder.metrics", "netbuilder.passes", "netbuilder.data", "netbuilder.zoo",
    "netbuilder.proto",
)  # fmt: skip

_LINK_OR_CODE = re.compile(
    r"^```.*?^```|`[^`\n]+`|(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)", re.M | re.S
)
_BLOCK_OR_EXAMPLE = re.compile(r"^```(?s:.*?)^```$|^>>> .*(?:\n.+)*", re.M)
_CODE = re.compile(r"(?<!</span>)<code>[^<]*</code>")  # in a line, not in a block
_HYPHENATED = re.compile(r"[\w-]*-[A-Za-z][\w-]*")


def on_config(config: Any) -> Any:
    """Put the pages of the reference into the navigation; examples in docstrings become blocks of code."""
    for section in config["nav"]:
        for entries in section.values() if isinstance(section, dict) else ():
            for entry in entries:
                if isinstance(entry, dict) and "reference/" in entry.values():
                    (title,) = entry
                    entry[title] = [{name: f"reference/{name}.md"} for name in _PACKAGES]
    config["markdown_extensions"].append(_examples_extension())
    return config


def on_files(pages: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    made = {target: opened_files.read_text(_ROOT / source) for source, target in _FROM_ROOT.items()}
    made["operators.md"] = operators_page()
    made |= {f"reference/{name}.md": _reference(name) for name in _PACKAGES}
    for path, text in made.items():
        pages.append(File.generated(config, path, content=text))
    return pages


def on_page_markdown(markdown: str, page: Any, config: Any, **given: Any) -> str:
    """Let links between files of the checkout lead to the pages made of them, and name pages by their titles.

    A file that is no page of the site is named by its path.
    """
    uri = page.file.src_uri
    folder = "" if uri in _FROM_ROOT.values() else posixpath.join("docs", posixpath.dirname(uri))
    up, titles = "../" * uri.count("/"), dict(_titles(config["nav"]))

    def replaced(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        if not path:
            linked = match[0] == "`make operators-page`" and uri != "operators.md"
            return f"[{match[0]}]({up}operators.md)" if linked else match[0]
        source = posixpath.normpath(posixpath.join(folder, path))
        target = _FROM_ROOT.get(source) or (source[5:] if re.match(r"docs/.*\.(md|png|svg)$", source) else None)
        if target is None:
            return f"`{source}`" if source.endswith(text) else f"{text} (`{source}`)"
        return f"[{titles.get(target, text) if source.endswith(text) else text}]({up}{target}{anchor})"

    return _LINK_OR_CODE.sub(replaced, markdown)


def on_page_content(html: str, **given: Any) -> str:
    """Keep options and names with hyphens in one line: browsers would break them after a hyphen."""
    return _CODE.sub(lambda code: _HYPHENATED.sub(r'<span class="whole">\g<0></span>', code[0]), html)


def _titles(entries: Any) -> Iterator[tuple[str, str]]:
    """Yield path and title of each page of the navigation."""
    for entry in entries:
        for title, inner in entry.items():
            yield from [(inner, title)] if isinstance(inner, str) else _titles(inner)


def _examples_extension() -> Any:
    """Return the extension of Python-Markdown that fences examples, which it would take for quotations and links."""
    from markdown import Extension
    from markdown.preprocessors import Preprocessor

    class Fence(Preprocessor):
        def run(self, lines: list[str]) -> list[str]:
            return _fenced("\n".join(lines)).split("\n")

    class Examples(Extension):
        def extendMarkdown(self, md: Any) -> None:
            md.preprocessors.register(Fence(md), "examples", 100)  # before superfences (25)

    return Examples()


def _fenced(text: str) -> str:
    """Return the text with a fence around each example that has none."""
    return _BLOCK_OR_EXAMPLE.sub(lambda m: m[0] if m[0][0] == "`" else f"\n```pycon\n{m[0]}\n```\n", text)


def _described(package: str) -> dict[str, str]:
    """Return the functions and classes of a package, sorted: where each is defined, and its name here."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    found = {}
    for name in sorted(names, key=str.lower):
        value = getattr(module, name)
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if home and own and home.startswith("netbuilder") and not own.startswith("_") and "." not in own:
            found[f"{home}.{own}"] = name
    return found


def _reference(package: str) -> str:
    """Return the page of a package: its docstring, and what its names are.

    What a later package exports, too, is described there alone.
    """
    module = importlib.import_module(package)
    later = {path for name in _PACKAGES[_PACKAGES.index(package) + 1 :] for path in _described(name)}
    parts, linked = [f"# `{package}`", inspect.getdoc(module) or ""], []
    for path, name in _described(package).items():
        value = getattr(module, name)
        if path in later:
            summary = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
            linked.append(f"- [`{name}`][{path}]: {summary}")
        elif inspect.isfunction(value) and inspect.unwrap(value).__code__.co_name != name:
            parts.append(_made_function(path, name, value))
        else:
            parts.append(f"::: {path}")
    return "\n\n".join([*parts[:2], "\n".join(linked), *parts[2:]]) + "\n"


def _made_function(path: str, name: str, value: Any) -> str:
    """Return the description of a function that a call has made, which readers of sources take for a plain value."""
    arguments, _, result = str(inspect.signature(value)).replace("'", "").removeprefix("(").rpartition(") -> ")
    signature = f"{name}(\n    {arguments.replace(', ', ',' + chr(10) + '    ')},\n) -> {result}"
    text = re.sub(r"^    (?=\S)([\w, *]+): ", r"- **`\1`** – ", inspect.getdoc(value) or "", flags=re.M)
    text = text.replace("\nArgs:\n", "\n**Parameters:**\n\n").replace("\nRaises:\n", "\n**Raises:**\n\n")
    return f"## {name} {{: #{path} }}\n\n```python\n{signature}\n```\n\n{text}"
