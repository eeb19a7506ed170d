"""Who may import whom (docs/architecture.md), and what may not be in the tree at all."""

import ast
import subprocess
import sys
import threading
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
    *(
        "os",
        "sys",
        "io",
        "pathlib",
        "shutil",
        "tempfile",
        "sqlite3",
        "common.logging",
        "common.curve",
        "common.clocks.read_clocks",
    ),
}
FLOORS = {
    # Rooms (folders and modules) of a house, from the top. A room imports itself and what stands below it.
    "executor_svc": [
        "__main__",
        "startup",
        "devices",
        "runner",
        "model",
        "staging",
        "service",
        "keeper",
        "name_claim",
        "options",
    ],
    "keeper_svc": [
        *(
            "__main__",
            "server",
            "listening",
            "descriptors",
            "keeper",
            "report",
            "deposits",
            "readers",
            "roles",
            "leases",
            "registry",
        ),
        *("shelf", "executor", "actions"),
    ],
    "scheduler_svc/core": [
        *(
            "event_loop",
            "core",
            "config",
            "observability",
            "autoscaling",
            "requests",
            "scheduling",
            "executor",
            "fleet",
        ),
        *("step_output", "sequence", "actions"),
    ],
    "scheduler_svc/frontend": [
        "__main__",
        "background",
        "revocations",
        "http",
        "tracing",
        "requests",
        "storing",
        "answers",
        "live",
        "link",
        "grammars",
        "parsing",
        "text",
        "client_turns",
        "helper_process",
        "page",
        "api_keys",
        "errors",
    ],
    "scheduler_svc/store": [
        *(
            "store_thread",
            "backup",
            "check",
            "sweep",
            "owners",
            "batch_results",
            "batches",
            "files",
            "responses",
            "quotas",
            "open_store",
            "store_clock",
            "database",
        ),
        *("schema", "records", "errors"),
    ],
    "scheduler_svc/client": [
        *("cli", "commands"),
        *(
            "batch",
            "bench",
            "demo",
            "embed",
            "generate",
            "responses",
            "chat",
            "keeper",
            "keys",
            "ray",
            "rollout",
            "status",
        ),  # each the work of one command
        *("http", "processes", "options", "request_files", "service_address", "progress", "output", "interrupts"),
        "errors",
    ],
    "kernels": ["gpu", "cpu", "reference", "arguments"],
    "benchmarks": [
        *("__main__", *sorted(path.stem for path in (ROOT / "benchmarks").glob("bench_*.py"))),
        *("scheduler", "service", "constraints", "cpu", "gpu", "kernels", "rig"),
    ],
}
# Houses that share the scheduler service and nothing else: what crosses between them is messages, HTTP or files.
APART = ["core", "server", "frontend", "client", "store"]
# The only modules that import Ray: what runs in its actors does not know of it.
RAY = [f"scheduler_svc/client/ray/{name}.py" for name in ("cluster", "journal_probe", "manager", "operator")]
# The only module that imports OpenTelemetry: a frontend imports it where traces are asked for.
TRACES = "scheduler_svc/frontend/tracing/otel.py"
# Anybody can make other data of the same XXH3. So it is where hits are verified (block_manager), where it shows
# accidents alone (checksums), and where a journal of an earlier release is read (vocabulary). BLAKE3 names the rest.
XXHASH = [
    "common/vocabulary.py",
    "executor_svc/model/weight_file.py",
    "scheduler_svc/core/executor/block_manager.py",
    "scheduler_svc/core/requests/journal_time.py",
    "scheduler_svc/core/requests/record_frames.py",
]
NO_TORCH = ["executor_svc/service", "executor_svc/keeper"]


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_who_imports_whom(package):
    for path in (ROOT / package).rglob("*.py"):
        ours = {name.split(".")[0] for name in imports(path)} & OURS
        assert ours <= MAY_IMPORT[package], f"{path} imports {ours - MAY_IMPORT[package]}"


@pytest.mark.parametrize("package", ["common", "scheduler_svc", "keeper_svc"])
def test_the_scheduler_side_never_imports_torch_or_models(package):
    for path in (ROOT / package).rglob("*.py"):
        foreign = {name.split(".")[0] for name in imports(path)} & {"torch", "transformers", "triton", "safetensors"}
        assert not foreign, f"{path} imports {foreign}"


def test_only_what_talks_to_ray_imports_it():
    packages = sorted(OURS & MAY_IMPORT.keys())
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    found = [path for path in paths if "ray" in {name.split(".")[0] for name in imports(path)}]
    assert {str(path.relative_to(ROOT)) for path in found} == {*RAY}


def test_only_what_exports_traces_imports_opentelemetry():
    packages = sorted(OURS & MAY_IMPORT.keys())
    paths = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    found = [path for path in paths if "opentelemetry" in {name.split(".")[0] for name in imports(path)}]
    assert [str(path.relative_to(ROOT)) for path in found] == [TRACES]


def test_a_hash_that_can_be_forged_names_nothing_that_comes_from_others():
    paths = [path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in paths if "xxhash" in imports(path)]
    assert sorted(found) == XXHASH


@pytest.mark.parametrize("pure", PURE)
def test_what_decides_does_no_io(pure):
    for path in [ROOT / pure] if pure.endswith(".py") else (ROOT / pure).rglob("*.py"):
        found = imports(path)
        impure = ({name.split(".")[0] for name in found} | found) & IMPURE_MODULES
        assert not impure, f"{path} imports {impure}"
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert not names & {"open", "print"}, f"{path} does I/O"


@pytest.mark.parametrize("house", FLOORS)
def test_a_room_imports_only_what_stands_below_it(house):
    rooms = FLOORS[house]
    for path in (ROOT / house).rglob("*.py"):
        room = path.relative_to(ROOT / house).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in rooms, f"{path} is in a room without a floor"
        above = rooms[: rooms.index(room)]
        for name in imports(path):
            part = name.removeprefix(house.replace("/", ".") + ".")
            if part != name:
                assert part.split(".")[0] not in above, f"{path} imports {name}, which stands above {room}"


@pytest.mark.parametrize("folder", NO_TORCH)
def test_what_needs_no_torch_imports_none(folder):
    for path in (ROOT / folder).rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "triton", "kernels"}, f"{path}"


@pytest.mark.parametrize("house", APART)
def test_houses_of_the_scheduler_service_that_do_not_import_each_other(house):
    others = {f"scheduler_svc.{other}" for other in APART if other != house}
    if house == "server":
        others.remove("scheduler_svc.core")  # it runs the core
    if house in ("server", "frontend"):
        others.remove("scheduler_svc.store")  # a library: a scheduler looks whether it can be opened, frontends use it
    for path in (ROOT / "scheduler_svc" / house).rglob("*.py"):
        found = {".".join(name.split(".")[:2]) for name in imports(path)} & others
        if path == ROOT / "scheduler_svc" / "client" / "commands" / "store.py":
            found.remove("scheduler_svc.store")  # it copies its files, with or without a service
        assert not found, f"{path} imports {found}"


@pytest.mark.parametrize("house", FLOORS)
def test_modules_import_in_no_circle(house):
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / house).rglob("*.py")
    }
    graph = {module: (imports(path) & modules.keys()) - {module} for module, path in modules.items()}
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", ["executor_svc", "common", "kernels"])
def test_no_process_of_an_executor_is_forked_without_another_program(package):
    """Such a child has /dev/nvidia* open: after a kill of the executor the GPU may work on for it, though the pidfd is
    readable, by which the keeper ends the lease."""
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        forks = {name for name in imports(path) if "multiprocessing" in name or name.endswith("ProcessPoolExecutor")}
        forks |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & {"fork", "forkpty"}
        assert not forks, f"{path} has {forks}"
        inherits = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "close_fds"]
        assert not inherits, f"{path} decides about descriptors that a child inherits, which subprocess does right"


def test_nothing_unpickles():
    for package in MAY_IMPORT:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            for word in ("pickle", "recv_pyobj", "torch.load", "trust_remote_code=True"):
                assert word not in text, f"{path} mentions {word}"


LATER_OF_THREADS = {"_handle", "_os_thread_handle", "_context"}  # since Python 3.13 and 3.14


@pytest.mark.parametrize("package", [*MAY_IMPORT, "benchmarks", "tests"])
def test_no_attribute_of_a_thread_is_taken_from_it(package):
    """The thread's own `_context` is what Python 3.14 runs it in: ours in its place and the thread does not begin."""
    own = {name for name in vars(threading.Thread()) if name.startswith("_")} | LATER_OF_THREADS
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Thread") for base in node.bases):
                attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                assert not attributes & own, f"{path}: {node.name} has {attributes & own}"


def test_importing_the_core_brings_neither_torch_nor_the_tokenizer():
    code = "import scheduler_svc.server.core_process, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "tokenizers", "fastapi", "kernels", "executor_svc"} & set(modules)


def test_importing_the_keeper_brings_next_to_nothing():
    code = "import keeper_svc.__main__, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "zmq", "scheduler_svc", "executor_svc"} & set(modules)


@pytest.mark.parametrize("package", [*MAY_IMPORT, "benchmarks", "tools"])
def test_a_file_fits_in_a_head(package):
    for path in (path for path in (ROOT / package).rglob("*") if path.suffix in {".py", ".cpp", ".h"}):
        assert len(path.read_text().splitlines()) <= 600, f"{path} is too long for one idea"
