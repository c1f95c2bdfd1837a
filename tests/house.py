"""For the tests of the house rules: the project's files, and what each module imports."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TOP_FOLDERS", "ROOT", "Module", "files", "library_modules"]

ROOT = Path(__file__).resolve().parent.parent
TOP_FOLDERS = ("ops", "proto", "tools")  # the other packages are folders of netbuilder/

_NOT_OURS = {"build", "dist", "out", "__pycache__"}


@dataclass(frozen=True)
class Module:
    """One module of the library: its file, and its name as installed."""

    path: Path
    name: str

    @property
    def package(self) -> str:
        """The first name under netbuilder; empty for the root package."""
        return self.name.partition(".")[2].partition(".")[0]

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), str(self.path))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def generated(self) -> bool:
        return self.path.name.endswith("_pb2.py")

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree, collected once for all rules."""
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> tuple[tuple[str, int], ...]:
        """Every imported module with its line, inside functions and for type checkers too."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[tuple[str, int]]:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        package = package[: len(package) - node.level + 1]
        return ".".join([*package, node.module] if node.module else package)

    def exports(self) -> list[str] | None:
        """What ``__all__`` lists, where it is a plain list; None without one."""
        for node in self.tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name) and target.id == "__all__" and isinstance(node.value, ast.List):
                return [element.value for element in node.value.elts if isinstance(element, ast.Constant)]
        return None

    def __str__(self) -> str:
        return self.name


def files() -> list[Path]:
    """Every file of the project, except those that tools generate."""
    found = []
    for folder, names, members in os.walk(ROOT):
        names[:] = [
            name
            for name in names
            if name not in _NOT_OURS and (not name.startswith(".") or name == ".ci") and not name.endswith(".egg-info")
        ]
        found += [
            Path(folder) / member
            for member in members
            if not member.endswith((".pyc", ".swp", "~")) and member != ".git"
        ]
    return sorted(found)


@functools.cache
def library_modules() -> tuple[Module, ...]:
    """Every module that is installed."""
    found = []
    for top in ("netbuilder", *TOP_FOLDERS):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            found.append(Module(path, ".".join(parts if top == "netbuilder" else ["netbuilder", *parts])))
    return tuple(found)
