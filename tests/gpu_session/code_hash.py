"""A hash of the code that a result depends on: of what modules do, not of how they are written or where they stand.

A module counts with all modules of ours that it imports, wherever in it the import stands, and so on. Comments,
docstrings, blank lines, paths, names of modules and line numbers do not change the hash: where a module names another
one of ours, that one's own code is hashed in place of the name, so a file that moves changes nothing. A package's
`__init__` counts only where it is named itself: `from kernels.gpu.layers.norm import rms_norm` depends on that module,
not on its neighbours.
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
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
    left_out = tuple(left_out)
    contents = sorted(_content(path, left_out, root) for path in reached(modules, left_out, root))
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]


def reached(modules: Iterable[str], left_out: Iterable[str] = (), root: Path = ROOT) -> set[Path]:
    """The files of modules and of all that they import; see `code_hash`."""
    paths = {module_path(module, root) for module in modules}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
    waiting = sorted(paths)
    while waiting:
        found = {path for path in _imported(waiting.pop(), root) if not _is_below(path, left_out, root)}
        waiting += sorted(found - paths)
        paths |= found
    return paths


def module_path(module: str, root: Path = ROOT) -> Path:
    """The file that a module's dotted name, or its path relative to `root`, stands for, whether or not it is there."""
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


@dataclass(frozen=True)
class _Import:
    """One name that an import statement brings.

    Attributes:
        module: the file it comes from, if that is ours, or the module's name.
        name: what is taken out of that module; empty if it is the module itself.
        bound: the name, or the names with dots between, that stand for it in the importing module.
    """

    module: Path | str
    name: str
    bound: str


def _imports(node: ast.stmt, root: Path) -> Iterator[_Import]:
    """What a statement imports; nothing if it imports nothing."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield _Import(_ours(alias.name, root) or alias.name, "", alias.asname or alias.name)
    elif isinstance(node, ast.ImportFrom):
        package = "." * node.level + (node.module or "")
        for alias in node.names:
            inner = _ours(f"{package}.{alias.name}", root)
            # What is no module of its own stands in the package's file.
            module, name = (inner, "") if inner else (_ours(package, root) or package, alias.name)
            yield _Import(module, name, alias.asname or alias.name)


def _ours(module: str, root: Path) -> Path | None:
    path = module_path(module, root)
    return path if module.partition(".")[0] in OURS and path.is_file() else None


@cache
def _imported(path: Path, root: Path) -> tuple[Path, ...]:
    """The modules of ours that a module names in its imports, anywhere in it."""
    found = (
        each.module for node in ast.walk(_tree(path)) if isinstance(node, ast.stmt) for each in _imports(node, root)
    )
    return tuple(module for module in found if isinstance(module, Path))


@cache
def _content(path: Path, left_out: tuple[str, ...], root: Path) -> str:
    """A hash of a module's code, with that of each module that it names in place of the name, unless it is left out."""
    return _hashed(path, root, lambda each: "left out" if _is_below(each, left_out, root) else _own(each, root))


@cache
def _own(path: Path, root: Path) -> str:
    """A hash of a module's code, whatever modules of ours it names."""
    return _hashed(path, root, lambda _: "ours")


def _hashed(path: Path, root: Path, name_of: Callable[[Path], str]) -> str:
    nodes = (node for node in ast.walk(_tree(path)) if isinstance(node, ast.stmt))
    brought = (each for node in nodes for each in _imports(node, root))
    modules = {each.bound: name_of(each.module) for each in brought if isinstance(each.module, Path) and not each.name}
    plain = plain_tree(_tree(path), root, name_of, modules)
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def plain_tree(
    value: object, root: Path, name_of: Callable[[Path], str], modules: Mapping[str, str] | None = None
) -> object:
    """A syntax tree as tuples, without texts that stand alone: docstrings, also those of constants.

    What is empty is left out: fields that a later Python adds do not change the hash.

    Args:
        value: the tree, a list of trees, or a field of one.
        root: folder of the packages.
        name_of: gives the name that stands for a module of ours.
        modules: such names by the names that the tree has for them.
    """
    modules = modules or {}
    if isinstance(value, list):
        plain: list[object] = []
        for is_import, nodes in groupby(value, lambda each: isinstance(each, ast.Import | ast.ImportFrom)):
            if is_import:
                plain += _plain_imports(nodes, root, name_of)
            else:
                plain += [plain_tree(each, root, name_of, modules) for each in nodes if not _is_text(each)]
        return plain
    if not isinstance(value, ast.AST):
        return repr(value)
    if (name := modules.get(_dotted(value))) is not None:
        return ("module", name)
    fields = ((name, getattr(value, name, None)) for name in value._fields)
    if isinstance(value, ast.JoinedStr):  # Python 3.12 has an empty text beside a nested format
        fields = iter([("values", [each for each in value.values if getattr(each, "value", None) != ""])])
    plains = ((name, plain_tree(each, root, name_of, modules)) for name, each in fields if each not in (None, []))
    return (type(value).__name__, *((name, each) for name, each in plains if each != []))


def _plain_imports(nodes: Iterable[ast.stmt], root: Path, name_of: Callable[[Path], str]) -> list[object]:
    """Imports that stand together, in no order: that of their names changes when a module moves."""
    found = set()
    for each in (each for node in nodes for each in _imports(node, root)):
        if isinstance(each.module, str):
            found.add((each.module, each.name, each.bound))
        else:  # a module is known by its code, and not by the name that it has here
            found.add((name_of(each.module), each.name, each.bound if each.name else ""))
    return [("import", *each) for each in sorted(found)]


def _dotted(node: object) -> str:
    """A name, or names with dots between; empty if it is anything else."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := _dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(statement: object) -> bool:
    """Whether a statement is a string alone."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
