"""A hash of the code that a result depends on: of what modules do, not of how they are written.

A module counts with all modules of ours that it imports, wherever in it the import stands, and so on. Comments,
docstrings, blank lines, paths and line numbers do not change the hash. A package's `__init__` counts only where it is
named itself: `from kernels.gpu.layers.norm import rms_norm` depends on that module, not on its neighbours.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests import ROOT

OURS = ("benchmarks", "common", "executor_svc", "keeper_svc", "kernels", "scheduler_svc", "tests", "tools")


def code_hash(modules: Iterable[str], left_out: Iterable[str] = (), root: Path = ROOT) -> str:
    """Hash modules and what they import, 16 hex digits.

    Args:
        modules: dotted names, or paths of files relative to `root`.
        left_out: dotted names; these modules, and all below them, do not count.
        root: folder of the packages.

    Raises:
        FileNotFoundError: there is no such module.
    """
    paths = {_path(module, root) for module in modules}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
    waiting = sorted(paths)
    while waiting:
        found = {path for path in _imported(waiting.pop(), root) if not _is_below(path, left_out, root)}
        waiting += sorted(found - paths)
        paths |= found
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)} {_content(path)}\n".encode())
    return digest.hexdigest()[:16]


def _path(module: str, root: Path) -> Path:
    if module.endswith(".py"):
        return root / module
    folder = root / module.replace(".", "/")
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def _is_below(path: Path, left_out: Iterable[str], root: Path) -> bool:
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    return any(name == each or name.startswith(f"{each}.") for each in left_out)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def _imported(path: Path, root: Path) -> tuple[Path, ...]:
    """The modules of ours that a module names in its imports, anywhere in it."""
    return tuple(_each_imported(path, root))


def _each_imported(path: Path, root: Path) -> Iterator[Path]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if _path(name, root).is_file()]
            # What is no module of its own stands in the package's file.
            names = modules if len(modules) == len(inner) else [*modules, node.module]
        else:
            continue
        for name in names:
            if name.partition(".")[0] in OURS and (found := _path(name, root)).is_file():
                yield found


@cache
def _content(path: Path) -> str:
    """A module's syntax tree, without docstrings."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)] or [ast.Pass()]
    return hashlib.sha256(repr(_plain(tree)).encode()).hexdigest()


def _plain(value: object) -> object:
    """A syntax tree as tuples. What is empty is left out: fields that a later Python adds do not change the hash."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = ((name, getattr(value, name, None)) for name in value._fields)
    if isinstance(value, ast.JoinedStr):  # Python 3.12 has an empty text beside a nested format
        fields = iter([("values", [each for each in value.values if getattr(each, "value", None) != ""])])
    return (type(value).__name__, *((name, _plain(each)) for name, each in fields if each not in (None, [])))


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a string alone: a docstring, also that of a constant."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
