"""How a child process runs a module of benchmarks/, whatever folder it is started in."""

from pathlib import Path

_BENCHMARKS = Path(__file__).resolve().parents[1]


def module_arguments(module: str) -> tuple[str, str]:
    """What stands behind `python` to run a module, such as `cpu.in_process_side` (see benchmarks/__main__.py)."""
    return str(_BENCHMARKS), module
