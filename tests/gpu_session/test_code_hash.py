"""The hash changes with what code does, in whatever module it stands, and with nothing else."""

import ast
import copy

import pytest

from tests import ROOT
from tests.gpu_session.code_hash import code_hash, plain_tree, reached

FILES = {
    "kernels/__init__.py": "from kernels.other import unused\n",
    "kernels/norm.py": 'SIZE = 4\n"""Of a row."""\n\n\ndef norm(x):\n    """Norm x."""\n    return x / SIZE\n',
    "kernels/other.py": "unused = 1\n",
    "kernels/exact.py": "def norm(x):\n    return x\n",
    "executor_svc/model.py": "def run():\n    from kernels import norm\n    from kernels import exact\n"
    "    return norm.norm(1) + exact.norm(1)\n",
    "tests/test_norm.py": "import ast\nimport executor_svc.model\nfrom kernels.exact import norm as plain\n"
    "from kernels.norm import norm\nassert executor_svc.model.run() == norm(1) + plain(1)\n",
}
TEST = "tests/test_norm.py"


@pytest.fixture
def hashed(tmp_path):
    """The hash of what TEST depends on, in a tree of these files."""
    trees = iter(range(99))

    def of(files=FILES, test=TEST, left_out=()):
        root = tmp_path / str(next(trees))
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return code_hash([test], left_out, root)

    return of


def changed(name, old, new):
    """The files with one text replaced by another."""
    assert FILES[name].count(old) == 1
    return FILES | {name: FILES[name].replace(old, new)}


def moved(name, to):
    """The files with one of them in another place, and all names of it changed."""
    old, new = (path.removesuffix(".py").replace("/", ".") for path in (name, to))
    package, _, base = old.rpartition(".")
    others = {each: text.replace(old, new) for each, text in FILES.items() if each != name}
    for each, text in others.items():
        others[each] = text.replace(f"from {package} import {base}\n", f"import {new} as {base}\n")
    return others | {to: FILES[name]}


@pytest.mark.parametrize(
    "change",
    [
        ("kernels/norm.py", "SIZE = 4", "# So it is.\n\nSIZE   =   4  # lines"),
        ("kernels/norm.py", "Norm x.", "Divide x by a constant."),
        ("kernels/norm.py", '"""Of a row."""\n', ""),
        ("kernels/other.py", "unused = 1", "unused = 2"),
        ("kernels/__init__.py", "import unused", "import unused as used"),
    ],
)
def test_words_and_neighbours_do_not_count(hashed, change):
    assert hashed(changed(*change)) == hashed()


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("kernels/norm.py", "kernels/layers/norm.py"),
        ("kernels/exact.py", "kernels/reference/a_name_that_sorts_after_the_other.py"),
        ("executor_svc/model.py", "executor_svc/runner/model.py"),
        (TEST, "tests/kernels/test_norm.py"),
    ],
)
def test_a_move_of_a_file_does_not_count(hashed, name, to):
    assert hashed(moved(name, to), test=to if name == TEST else TEST) == hashed()


@pytest.mark.parametrize(
    "change",
    [
        ("kernels/norm.py", "SIZE = 4", "SIZE = 5"),
        ("kernels/norm.py", "x / SIZE", "x * SIZE"),
        ("executor_svc/model.py", "norm.norm(1) +", "norm.norm(2) +"),
        (TEST, "import ast", "import types"),
    ],
)
def test_what_code_does_counts_through_any_import(hashed, change):
    assert hashed(changed(*change)) != hashed()


@pytest.mark.parametrize(
    "change",
    [
        (TEST, "from kernels.norm import norm", "from kernels.exact import norm"),
        ("executor_svc/model.py", "norm.norm(1) + exact", "exact.norm(1) + exact"),
        ("executor_svc/model.py", "from kernels import norm", "from kernels import exact as norm"),
    ],
)
def test_it_counts_which_of_two_modules_is_named(hashed, change):
    assert hashed(changed(*change)) != hashed()


def test_what_is_left_out_does_not_count(hashed):
    change = changed("executor_svc/model.py", "norm.norm(1) +", "norm.norm(2) +")
    assert hashed(change, left_out=["executor_svc"]) == hashed(left_out=["executor_svc"]) != hashed()
    assert hashed(change, left_out=["executor"]) != hashed(left_out=["executor"]), "a part of a name is no name"


def test_pythons_agree_about_formats_within_formats(tmp_path):
    """Python 3.12 has an empty text beside the inner one."""
    (of_311,) = ast.parse("f'{a:<{n}}'").body
    of_312 = copy.deepcopy(of_311)
    spec = of_312.value.values[0].format_spec
    spec.values = [value for value in spec.values if getattr(value, "value", None) != ""]
    with_empty = copy.deepcopy(of_312)
    with_empty.value.values[0].format_spec.values.append(ast.Constant(""))
    one, other, third = (plain_tree(each, tmp_path, str) for each in (of_311, of_312, with_empty))
    assert one == other == third


def test_a_module_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.py"):
        code_hash(["tests.missing"], root=tmp_path)


def test_a_kernels_test_depends_on_its_kernel_and_not_on_the_services():
    found = {str(path.relative_to(ROOT)) for path in reached(["tests/kernels/gpu/layers/test_norm.py"])}
    assert "kernels/gpu/layers/norm.py" in found
    assert not any(name.startswith(("scheduler_svc", "executor_svc", "keeper_svc")) for name in found)
