"""Who may import whom (docs/architecture.md), and what may not be in the tree at all."""

import ast
import functools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import ROOT

OURS = {"common", "kernels", "scheduler_svc", "executor_svc", "keeper_svc", "tests", "benchmarks", "tools"}
MAY_IMPORT = {
    "common": {"common"},
    "kernels": {"kernels"},
    "scheduler_svc": {"scheduler_svc", "common"},
    "executor_svc": {"executor_svc", "common", "kernels"},
    "keeper_svc": {"keeper_svc", "common"},
}
# No socket, clock, thread, process, file or log: in any module of these folders, and in these modules.
PURE = [
    *("scheduler_svc/core", "scheduler_svc/frontend/parsing", "scheduler_svc/frontend/tracing/life_spans.py"),
    *("executor_svc/staging", "executor_svc/service/registration.py"),
    *(
        f"keeper_svc/{name}.py"
        for name in ("keeper", "report", "deposits", "readers", "roles", "leases", "registry", "shelf", "executor")
    ),
    "keeper_svc/actions.py",
    *(
        f"scheduler_svc/client/ray/{name}.py"
        for name in ("clocks", "facts", "places", "plan", "succession", "task", "telling")
    ),
]
IMPURE_MODULES = {
    *("zmq", "socket", "ssl", "http", "select", "selectors", "signal", "time", "datetime", "random", "secrets", "uuid"),
    *("threading", "queue", "asyncio", "concurrent", "multiprocessing", "subprocess", "logging", "structlog"),
    *("os", "sys", "io", "pathlib", "shutil", "tempfile", "sqlite3"),
    *("common.logging", "common.curve", "common.clocks.read_clocks"),
}
# Rooms (folders and modules) of a house, from the top. A room imports itself and what stands below it.
FLOORS = {
    house: floors.split()
    for house, floors in {
        "executor_svc": "__main__ startup devices runner model staging service keeper name_claim options",
        "keeper_svc": """
            __main__ server listening descriptors keeper report deposits readers roles leases registry shelf executor
            actions""",
        "scheduler_svc/core": """
            event_loop core config observability autoscaling requests scheduling executor fleet step_output sequence
            actions""",
        "scheduler_svc/frontend": """
            __main__ background revocations http tracing requests storing answers live link grammars parsing text
            client_turns helper_process helper_program page api_keys errors""",
        "scheduler_svc/store": """
            store_thread backup check sweep owners batch_results batches files responses quotas open_store store_clock
            database schema records errors""",
        # Those in the second line are each the work of one command.
        "scheduler_svc/client": """
            cli commands
            batch bench demo embed generate responses chat keeper keys ray rollout status
            http processes options request_files service_address progress output interrupts clock
            errors""",
        "kernels": "gpu cpu reference arguments",
        "benchmarks": "__main__ BENCHMARKS scheduler service constraints cpu gpu kernels rig".replace(
            "BENCHMARKS", " ".join(sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py")))
        ),
    }.items()
}
# Houses that share the scheduler service and nothing else: what crosses between them is messages, HTTP or files.
APART = ["core", "server", "frontend", "client", "store"]
# The only modules that import a package.
IMPORTERS = {
    # What runs in Ray's actors does not know of it.
    "ray": [f"scheduler_svc/client/ray/{name}.py" for name in ("cluster", "journal_probe", "manager", "operator")],
    # A frontend imports it where traces are asked for.
    "opentelemetry": ["scheduler_svc/frontend/tracing/otel.py"],
    # Anybody can make other data of the same XXH3. So it is where hits are verified (block_manager), where it shows
    # accidents alone (checksums), and where earlier releases' journals are read (vocabulary). BLAKE3 names the rest.
    "xxhash": [
        "common/vocabulary.py",
        "executor_svc/model/weight_file.py",
        "scheduler_svc/core/executor/block_manager.py",
        "scheduler_svc/core/requests/journal_time.py",
        "scheduler_svc/core/requests/record_frames.py",
    ],
}
NOT_IMPORTED = {
    **{side: {"torch", "transformers", "triton", "safetensors"} for side in ("common", "scheduler_svc", "keeper_svc")},
    **{room: {"torch", "triton", "kernels"} for room in ("executor_svc/service", "executor_svc/keeper")},
}


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def files_of(*folders: str) -> list[Path]:
    """The Python files of some folders, by their paths."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_who_imports_whom(package):
    for path in files_of(package):
        ours = {name.split(".")[0] for name in imports(path)} & OURS
        assert ours <= MAY_IMPORT[package], f"{path} imports {ours - MAY_IMPORT[package]}"


@pytest.mark.parametrize("folder", NOT_IMPORTED)
def test_what_needs_no_torch_or_models_imports_none(folder):
    for path in files_of(folder):
        foreign = {name.split(".")[0] for name in imports(path)} & NOT_IMPORTED[folder]
        assert not foreign, f"{path} imports {foreign}"


@pytest.mark.parametrize("package", IMPORTERS)
def test_only_these_modules_import_it(package):
    paths = [path for path in files_of(*MAY_IMPORT) if package in {name.split(".")[0] for name in imports(path)}]
    assert [str(path.relative_to(ROOT)) for path in paths] == sorted(IMPORTERS[package])


@pytest.mark.parametrize("pure", PURE)
def test_what_decides_does_no_io(pure):
    for path in [ROOT / pure] if pure.endswith(".py") else files_of(pure):
        found = imports(path)
        impure = ({name.split(".")[0] for name in found} | found) & IMPURE_MODULES
        assert not impure, f"{path} imports {impure}"
        names = {node.id for node in ast.walk(tree_of(path)) if isinstance(node, ast.Name)}
        assert not names & {"open", "print"}, f"{path} does I/O"


@pytest.mark.parametrize("house", FLOORS)
def test_a_room_imports_only_what_stands_below_it(house):
    rooms = FLOORS[house]
    for path in files_of(house):
        room = path.relative_to(ROOT / house).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in rooms, f"{path} is in a room without a floor"
        above = rooms[: rooms.index(room)]
        for name in imports(path):
            part = name.removeprefix(house.replace("/", ".") + ".")
            if part != name:
                assert part.split(".")[0] not in above, f"{path} imports {name}, which stands above {room}"


@pytest.mark.parametrize("house", APART)
def test_houses_of_the_scheduler_service_that_do_not_import_each_other(house):
    others = {f"scheduler_svc.{other}" for other in APART if other != house}
    if house == "server":
        others.remove("scheduler_svc.core")  # it runs the core
    if house in ("server", "frontend"):
        others.remove("scheduler_svc.store")  # a library: a scheduler looks whether it can be opened, frontends use it
    for path in files_of(f"scheduler_svc/{house}"):
        found = {".".join(name.split(".")[:2]) for name in imports(path)} & others
        if path == ROOT / "scheduler_svc" / "client" / "commands" / "store.py":
            found.remove("scheduler_svc.store")  # it copies its files, with or without a service
        assert not found, f"{path} imports {found}"


@pytest.mark.parametrize("house", FLOORS)
def test_modules_import_in_no_circle(house):
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files_of(house)
    }
    graph = {module: (imports(path) & modules.keys()) - {module} for module, path in modules.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", ["executor_svc", "common", "kernels"])
def test_no_process_of_an_executor_is_forked_without_another_program(package):
    """Such a child has /dev/nvidia* open: after a kill of the executor the GPU may work on for it, though the pidfd is
    readable, by which the keeper ends the lease."""
    for path in files_of(package):
        tree = tree_of(path)
        forks = {name for name in imports(path) if "multiprocessing" in name or name.endswith("ProcessPoolExecutor")}
        forks |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & {"fork", "forkpty"}
        assert not forks, f"{path} has {forks}"
        inherits = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "close_fds"]
        assert not inherits, f"{path} decides about descriptors that a child inherits, which subprocess does right"


# The data that these modules read are code, or name functions that are called.
UNPICKLERS = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
UNPICKLERS |= {"multiprocessing", "torch.multiprocessing", "torch.package", "torch.hub", "torch.distributed.rpc"}
# Functions of whatever module or object: of zmq's sockets, of torch's groups of processes, of pandas and of YAML.
UNPICKLING = {"recv_pyobj", "broadcast_object_list", "scatter_object_list", "recv_object_list", "all_gather_object"}
UNPICKLING |= {"gather_object", "read_pickle", "unsafe_load", "full_load"}
# A function that unpickles unless this argument is True, and arguments that make any function run what it reads.
TORCH_LOAD, SAFE_WITH = "torch.load", "weights_only"
UNSAFE_WITH = {"allow_pickle", "trust_remote_code"}


def unpickling(tree: ast.Module) -> Iterator[str]:
    """Tell by what a module may run code that stands in data which it reads."""
    nodes = list(ast.walk(tree))
    names: dict[str, str] = {}  # what stands for what was imported
    for node in nodes:
        if isinstance(node, ast.Import):
            found = [each.name for each in node.names]
            names |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{each.name}" for each in node.names]
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Call) and last_name(node.func) == "import_module":
            found = [each.value for each in node.args if isinstance(each, ast.Constant)]
        else:
            continue
        yield from (name for name in found if any(f"{name}.".startswith(f"{module}.") for module in UNPICKLERS))
    safe = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            told = {each.arg: ast.unparse(each.value) for each in node.keywords}
            yield from (name for name in UNSAFE_WITH & told.keys() if told[name] != "False")
            if told.get(SAFE_WITH) == "True":
                safe.add(node.func)
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and node not in safe:
            first, _, rest = ast.unparse(node).partition(".")
            name = f"{names.get(first, first)}.{rest}".rstrip(".")
            if name == TORCH_LOAD or name.rpartition(".")[2] in UNPICKLING:
                yield name


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def test_nothing_unpickles():
    for path in files_of(*MAY_IMPORT):
        found = [*unpickling(tree_of(path))]
        assert not found, f"{path} has {found}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle", ["pickle"]),
        ("import multiprocessing.pool as mp", ["multiprocessing.pool"]),
        ("from marshal import loads", ["marshal.loads"]),
        ("importlib.import_module('dill')", ["dill"]),
        ("import torch as t\nt.load(path)", ["torch.load"]),
        ("from torch import load\nload(path, weights_only=False)", ["torch.load"]),
        ("import torch\nread = torch.load", ["torch.load"]),
        ("import torch\ntorch.load(path, weights_only=True)", []),
        ("socket.recv_pyobj()", ["socket.recv_pyobj"]),
        ("import torch.distributed as dist\ndist.all_gather_object(all, one)", ["torch.distributed.all_gather_object"]),
        ("numpy.load(path, allow_pickle=True)", ["allow_pickle"]),
        ("numpy.load(path)", []),
        ("Model.from_pretrained(name, trust_remote_code=trusted)", ["trust_remote_code"]),
        ("Model.from_pretrained(name, trust_remote_code=False)  # no pickle", []),
    ],
)
def test_what_unpickles_is_seen(code, found):
    assert list(unpickling(ast.parse(code))) == found


LATER_OF_THREADS = {"_handle", "_os_thread_handle", "_context"}  # since Python 3.13 and 3.14


@pytest.mark.parametrize("package", [*MAY_IMPORT, "benchmarks", "tests"])
def test_no_attribute_of_a_thread_is_taken_from_it(package):
    """The thread's own `_context` is what Python 3.14 runs it in: ours in its place and the thread does not begin."""
    own = {name for name in vars(threading.Thread()) if name.startswith("_")} | LATER_OF_THREADS
    for path in files_of(package):
        for node in ast.walk(tree_of(path)) if "Thread" in path.read_text() else ():
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Thread") for base in node.bases):
                attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                assert not attributes & own, f"{path}: {node.name} has {attributes & own}"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        (
            "scheduler_svc.server.core_process",
            {"torch", "transformers", "tokenizers", "fastapi", "rich", "kernels", "executor_svc"},
        ),
        ("keeper_svc.__main__", {"torch", "numpy", "zmq", "rich", "scheduler_svc", "executor_svc"}),
    ],
)
def test_importing_a_process_brings_little(module, absent):
    code = f"import {module}, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not absent & set(modules)


TESTS = ROOT / "tests"
# Rooms of tests that mirror a house: `tests/<room>/a/test_b.py` is the test of `<house>/a/b.py`. Others are features.
MIRRORS = {
    path.name: house / path.name
    for path in sorted(TESTS.iterdir())
    for house in (ROOT, ROOT / "scheduler_svc")
    if (house / path.name / "__init__.py").is_file()
}
# Folders of such a room that hold tests of a feature.
FEATURES = {"executor_svc/families"}
# Tests of a feature of such a room, with the name of a module of another one: that module is another thing.
NAMED_LIKE_ANOTHER = {
    "executor_svc/model/test_moe.py",
    "executor_svc/test_cli.py",
    "executor_svc/test_curve.py",
    "executor_svc/test_grammars.py",
    "executor_svc/test_int8.py",
    "frontend/answers/test_prompt_logprobs.py",
    "frontend/http/test_errors.py",
    "frontend/test_process.py",
    "kernels/gpu/test_marks.py",
}


def modules_of_tests(room: str) -> list[Path]:
    return [path for path in files_of(f"tests/{room}") if path.name.startswith("test_")]


@pytest.mark.parametrize("room", MIRRORS)
def test_a_room_of_tests_has_no_folder_that_its_house_has_not(room):
    folders = {path.parent.relative_to(TESTS / room) for path in modules_of_tests(room)}
    missing = {f"{room}/{folder}" for folder in folders if not (MIRRORS[room] / folder).is_dir()}
    assert missing == {folder for folder in FEATURES if folder.startswith(f"{room}/")}


def test_a_test_with_the_name_of_a_module_lies_where_that_module_does():
    """One folder for both, so that they move together; what tests a feature of several modules has another name."""
    names = {path.stem for path in files_of(*MAY_IMPORT, "benchmarks", "tools")}
    elsewhere = set()
    for room, house in MIRRORS.items():
        for test in modules_of_tests(room):
            name, folder = test.stem.removeprefix("test_"), house / test.parent.relative_to(TESTS / room)
            if name in names and not any((folder / each).is_file() for each in (f"{name}.py", f"csrc/{name}.cpp")):
                elsewhere.add(str(test.relative_to(TESTS)))
    assert elsewhere == NAMED_LIKE_ANOTHER


def test_no_test_imports_a_test():
    """A test that is moved, split or deleted would take others with it."""
    tests = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules_of_tests("")}
    like_one = [path for path in files_of("tests") if re.search(r"(import|\.) ?test_", path.read_text())]
    found = {str(path.relative_to(TESTS)) for path in like_one if imports(path) & tests}
    assert not found, f"these do: {sorted(found)}"
