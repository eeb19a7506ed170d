"""Options about the API keys that clients need, of all commands that start a scheduler.

A start without keys serves everyone. Where keys lie, that is a slip more often than a wish (a variable that was set for
one `docker compose up` and not for the next), so it has to be said.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from common.paths import ExistingPath

API_KEYS_FILE = "api-keys.json"
KEYS_FOLDER = "baton-keys"  # of `baton keys`, in the working folder
KEYS_FOLDER_VARIABLE = "BATON_KEYS_DIR"
API_KEYS_FILE_VARIABLE = "BATON_API_KEYS_FILE"
API_KEYS_VARIABLE = "BATON_API_KEYS"  # not an option: every user of the machine can read a process's arguments
_PLACES = ("", "scheduler", "keys", "keys/scheduler", f"{KEYS_FOLDER}/scheduler")  # in a folder that may have keys


def api_key_options(*, exists: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options; the command gets `api_keys_file` and `no_api_keys`, and has to call `require_keys_or_consent`.

    Args:
        exists: a file that is not there is refused as a mistake in the option; else the command says so.
    """
    kind = ExistingPath(dir_okay=False) if exists else click.Path(dir_okay=False, readable=False, path_type=Path)
    file = click.option("--api-keys", "api_keys_file", type=kind, envvar=API_KEYS_FILE_VARIABLE, show_envvar=True,
                        help="File of the API keys that clients need (baton keys api), read again when it "
                        "changes.")  # fmt: skip
    none = click.option("--no-api-keys", is_flag=True, help="Serve clients without a key, although there are keys.")
    return lambda command: file(none(command))


def plain_keys() -> list[str]:
    """Read the keys of the environment."""
    return [key.strip() for key in os.environ.get(API_KEYS_VARIABLE, "").split(",") if key.strip()]


def require_keys_or_consent(api_keys_file: Path | None, no_api_keys: bool, *folders: Path | None) -> None:
    """Refuse, with a click.UsageError, to serve everyone where a file of API keys lies and `--no-api-keys` is not said.

    Args:
        folders: where keys may lie, besides the folder of `baton keys`: with executors' keys, or the journal.
    """
    has_keys = api_keys_file is not None or bool(plain_keys())
    if has_keys and no_api_keys:
        given = API_KEYS_VARIABLE if api_keys_file is None else f"{API_KEYS_FILE_VARIABLE} (--api-keys {api_keys_file})"
        raise click.UsageError(f"--no-api-keys and {given} contradict each other")
    if has_keys or no_api_keys:
        return
    keys_folder = Path(os.environ.get(KEYS_FOLDER_VARIABLE) or KEYS_FOLDER)
    for folder in (keys_folder, *(folder for folder in folders if folder is not None)):
        for place in _PLACES:
            if fault := _why_closed(folder / place / API_KEYS_FILE):
                raise click.UsageError(f"{fault}, or --no-api-keys to serve clients without a key")


def _why_closed(path: Path) -> str | None:
    """Say so if a file of API keys is there, or if nobody can tell."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path} may have API keys, and cannot be looked at ({error.strerror}): let this user read its folder"
    return f"the API keys in {path} are not used: give --api-keys {path} (or {API_KEYS_FILE_VARIABLE}={path})"
