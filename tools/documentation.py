"""Pages of the documentation site that are made when it is built: MkDocs calls these functions (``mkdocs.yml``).

They are README, CONTRIBUTING and CHANGELOG, the page of all operators, and a reference page for each public package,
from its signatures and docstrings.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from netbuilder.proto import opened_files
from netbuilder.tools.operators_page import page as operators_page

__all__ = ["on_config", "on_files", "on_page_markdown"]

_ROOT = Path(__file__).resolve().parents[1]
_FROM_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_PACKAGES = (
    "netbuilder", "netbuilder.graph", "netbuilder.model", "netbuilder.model.brew", "netbuilder.optimizers",
    "netbuilder.parallel", "netbuilder.distributed", "netbuilder.runtime", "netbuilder.exchange",
    "netbuilder.exchange.onnx", "netbuilder.metrics", "netbuilder.passes", "netbuilder.data", "netbuilder.zoo",
    "netbuilder.proto",
)  # fmt: skip


def on_config(config: Any) -> Any:
    """Put the pages of the reference into the navigation."""
    for section in config["nav"]:
        for entries in section.values() if isinstance(section, dict) else ():
            for entry in entries:
                if isinstance(entry, dict) and "reference/" in entry.values():
                    (title,) = entry
                    entry[title] = [{name: f"reference/{name}.md"} for name in _PACKAGES]
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


def on_page_markdown(markdown: str, page: Any, **given: Any) -> str:
    """Let links between files of the checkout lead to the pages made of them."""
    up = "../" * page.file.src_uri.count("/")

    def target(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        name = path.removeprefix("./")
        while name.startswith("../"):
            name = name[3:]
        if name in _FROM_ROOT:
            return f"]({up}{_FROM_ROOT[name]}{anchor})"
        if page.file.src_uri in _FROM_ROOT.values() and name.startswith("docs/"):
            return f"]({up}{name.removeprefix('docs/')}{anchor})"
        return match[0]

    def text(match: re.Match[str]) -> str:
        return match[0] if match[2].endswith((".md", ".png", ".svg")) else f"{match[1]} (`{match[2]}`)"

    markdown = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]+)\)", text, markdown)  # a file of the checkout
    return re.sub(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", target, markdown)


def _reference(package: str) -> str:
    """Return the page of a package: its docstring, and what its names are."""
    module = importlib.import_module(package)
    title, *more = (module.__doc__ or package).strip().split("\n\n")
    parts = [f"# `{package}`", title.rstrip("."), *more]
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(names, key=str.lower):
        value = getattr(module, name)
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if home and own and home.startswith("netbuilder") and not own.startswith("_") and "." not in own:
            parts.append(f"::: {home}.{own}")
    return "\n\n".join(parts) + "\n"
