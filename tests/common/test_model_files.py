"""Where a model is: a path is never looked up on the hub, and of the hub no more is fetched than is needed."""

import fnmatch
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.errors import CheckpointError
from common.model_files import DEMO_MODEL_DIR, model_name, resolve_model
from tests.support.gguf_files import gguf_bytes

FIRST, SECOND = "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some files and folders in the working directory, and no hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    for folder in ("here", "one", "some", "model"):
        (tmp_path / folder).mkdir()
    for name in ("file", "called.gguf", "model/config.json"):
        (tmp_path / name).write_text("{}")
    names = ("renamed", "model.gguf", FIRST, SECOND, "one/m.gguf", "some/a.gguf", f"some/{FIRST}", f"some/{SECOND}")
    for name in (*names, "model/a.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("called.gguf", "called.gguf is called a GGUF file, and is none: a model is a folder with config.json"),
        ("file", "file is no folder and no GGUF file: a model is a folder"),
        (SECOND, f"{SECOND} is shard 2 of 2 of a model: give the first, {FIRST}"),
        ("one", "one has no config.json: give the GGUF file in it, one/m.gguf"),
        ("some", "some has no config.json: give one of its 2 GGUF files, such as some/a.gguf"),
        ("here/mistyped", "there is no folder here/mistyped, and a hub id"),
        ("owner/mistyped.gguf", "there is no file owner/mistyped.gguf, and a hub id (owner/name) does not end like a"),
        ("mistyped.gguf", "there is no file mistyped.gguf, and it is not a hub id"),
        ("/mistyped.gguf", "there is no file /mistyped.gguf, and it is not a hub id"),
        (
            "model.gguf/below",
            "there is no folder model.gguf/below, and a hub id (owner/name) is asked for only where no",
        ),
        ("mistyped/", "there is no folder mistyped/"),
        ("./owner/name", "there is no folder ./owner/name"),
        ("./owner/name:a.gguf", "there is no file ./owner/name:a.gguf, and it is not a hub id"),
        ("owner:a.gguf", "there is no file owner:a.gguf, and it is not a hub id"),
        ("owner/name:../a.gguf", "there is no file owner/name:../a.gguf, and it is not a hub id"),
        ("owner/name:/a.gguf", "there is no file owner/name:/a.gguf, and it is not a hub id"),
        ("here/name:a.gguf", "there is no file here/name:a.gguf, and a hub id (owner/name) is asked for only where no"),
        ("some/a.gguf:b.gguf", "there is no file some/a.gguf:b.gguf, and a hub id (owner/name) does not end like a"),
        (f"owner/name:Q4/{SECOND}", f"Q4/{SECOND} is shard 2 of 2 of a model: give the first, Q4/{FIRST}"),
    ],
)
def test_a_path_is_never_looked_up_on_the_hub(model: str, said: str):
    with pytest.raises(CheckpointError) as refused:
        resolve_model(model, weights=False)
    assert str(refused.value).startswith(said)


def test_a_folder_of_a_repository_is_no_repository(here: Path):
    (here / "owner/name").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"and owner/name is here: give owner/name/a\.gguf, or another file"):
        resolve_model("owner/name:a.gguf", weights=False)


@pytest.mark.parametrize("model", ["model.gguf", "renamed", FIRST, "./model.gguf", "model"])
def test_what_is_here_is_taken(model: str):
    assert resolve_model(model, weights=True) == Path(model)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mock:
    """A hub with a repository of several models."""
    files = ("config.json", "m[1].gguf", "README.md", f"Q4/{FIRST}", f"Q4/{SECOND}", "Q4/cut-00001-of-00002.gguf")

    def download(_: str, allow_patterns: list[str]) -> str:
        for file in files:
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                (tmp_path / "cache" / file).parent.mkdir(exist_ok=True, parents=True)
                (tmp_path / "cache" / file).write_bytes(gguf_bytes())
        return str(tmp_path / "cache")

    mock = Mock(side_effect=download)
    monkeypatch.setattr("huggingface_hub.snapshot_download", mock)
    return mock


def test_of_the_hub_a_file_is_fetched_with_its_shards_where_weights_are_needed(hub: Mock, here: Path):
    cache = here / "cache"
    assert resolve_model("owner/name:m[1].gguf", weights=True) == cache / "m[1].gguf"
    assert hub.call_args.args == ("owner/name",)
    assert resolve_model(f"owner/name:Q4/{FIRST}", weights=False) == cache / "Q4" / FIRST
    assert {str(path.relative_to(cache)) for path in cache.rglob("*.*")} == {"m[1].gguf", f"Q4/{FIRST}"}
    assert resolve_model(f"owner/name:Q4/{FIRST}", weights=True) == cache / "Q4" / FIRST
    assert (cache / "Q4" / SECOND).exists()


def test_what_the_hub_does_not_have_is_named(hub: Mock):
    with pytest.raises(CheckpointError, match=r"no nothing\.gguf came from the hub's owner/name"):
        resolve_model("owner/name:nothing.gguf", weights=False)
    with pytest.raises(CheckpointError, match=r"no Q4/cut-00002-of-00002\.gguf came from the hub's owner/name"):
        resolve_model("owner/name:Q4/cut-00001-of-00002.gguf", weights=True)
    assert hub.call_count == 2


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "baton-demo"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("./model/", "model"),
        ("model.gguf", "model"),
        ("renamed", "renamed"),
        (f"./{FIRST}", "big"),
        ("owner/name:m-Q4_0.gguf", "m-Q4_0"),
        (f"owner/name:Q4/{FIRST}", "big"),
        ("/not/here/m.Q4_1.gguf", "m.Q4_1"),
    ],
)
def test_the_name_that_clients_see(model: str | None, name: str):
    assert model_name(model) == name


def test_no_model_is_the_demo():
    assert resolve_model(None, weights=True) == DEMO_MODEL_DIR
