"""The hash changes with what code does, in whatever module it stands, and with nothing else."""

import ast
import copy

import pytest

from tests.gpu_session import code_hash as hashing
from tests.gpu_session.code_hash import code_hash

FILES = {
    "kernels/__init__.py": "from kernels.other import unused\n",
    "kernels/norm.py": 'SIZE = 4\n"""Of a row."""\n\n\ndef norm(x):\n    """Norm x."""\n    return x / SIZE\n',
    "kernels/other.py": "unused = 1\n",
    "executor_svc/model.py": "def run():\n    from kernels import norm\n    return norm.norm(1)\n",
    "tests/test_norm.py": "from kernels.norm import norm\nimport executor_svc.model\nimport numpy\n",
}


@pytest.fixture
def hashed(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def changed(name="", old="", new="", left_out=()):
        """The hash after a change, which is undone again."""
        for cached in (hashing._tree, hashing._imported, hashing._content):
            cached.cache_clear()
        if name:
            assert FILES[name].count(old) == 1
            (tmp_path / name).write_text(FILES[name].replace(old, new))
        found = code_hash(["tests/test_norm.py"], left_out, tmp_path)
        if name:
            (tmp_path / name).write_text(FILES[name])
        return found

    return changed


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kernels/norm.py", "SIZE = 4", "# So it is.\n\nSIZE   =   4  # lines"),
        ("kernels/norm.py", "Norm x.", "Divide x by a constant."),
        ("kernels/norm.py", '"""Of a row."""\n', ""),
        ("kernels/other.py", "unused = 1", "unused = 2"),
        ("kernels/__init__.py", "import unused", "import unused as used"),
    ],
)
def test_words_and_neighbours_do_not_count(hashed, name, old, new):
    assert hashed(name, old, new) == hashed()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kernels/norm.py", "SIZE = 4", "SIZE = 5"),
        ("kernels/norm.py", "x / SIZE", "x * SIZE"),
        ("executor_svc/model.py", "norm.norm(1)", "norm.norm(2)"),
        ("tests/test_norm.py", "import numpy", "import scipy"),
    ],
)
def test_what_code_does_counts_through_any_import(hashed, name, old, new):
    assert hashed(name, old, new) != hashed()


def test_what_is_left_out_does_not_count(hashed):
    change = ("executor_svc/model.py", "norm.norm(1)", "norm.norm(2)")
    assert hashed(*change, left_out=["executor_svc"]) == hashed(left_out=["executor_svc"]) != hashed()
    assert hashed(*change, left_out=["executor"]) != hashed(left_out=["executor"]), "a part of a name is no name"


def test_pythons_agree_about_formats_within_formats():
    """Python 3.12 has an empty text beside the inner one."""
    (of_311,) = ast.parse("f'{a:<{n}}'").body
    of_312 = copy.deepcopy(of_311)
    spec = of_312.value.values[0].format_spec
    spec.values = [value for value in spec.values if getattr(value, "value", None) != ""]
    with_empty = copy.deepcopy(of_312)
    with_empty.value.values[0].format_spec.values.append(ast.Constant(""))
    assert hashing._plain(of_311) == hashing._plain(of_312) == hashing._plain(with_empty)


def test_a_module_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.py"):
        code_hash(["tests.missing"], root=tmp_path)


def test_a_kernels_test_depends_on_its_kernel_and_not_on_the_services():
    sources = hashing._imported(hashing.ROOT / "tests/kernels/gpu/layers/test_norm.py", hashing.ROOT)
    assert "kernels/gpu/layers/norm.py" in {str(path.relative_to(hashing.ROOT)) for path in sources}
