"""When keys were last used is noted beside the journal: soon, seldom, and over any end of the service."""

import os
import signal
import time

import httpx
import pytest

from scheduler_svc.api_key_file import ApiKey, digest, encode_key_file
from scheduler_svc.key_uses import NOTED_EVERY_S, USES_FOLDER, KeyUses, last_uses, name_of_use
from tests.support.clock import Clock
from tests.support.eventually import eventually
from tests.support.frontend_process import running_frontend

KEY, OTHER = digest("key"), digest("other")


@pytest.fixture
def clock():
    return Clock()


def note(uses, **end):
    """Write down what is due. Returns how many keys are."""
    due = uses.due(**end)
    uses.note(due)
    return len(due)


def test_a_use_is_noted_at_once_and_further_ones_seldom(tmp_path, clock):
    uses = KeyUses(tmp_path, clock.time)
    assert note(uses) == 0
    uses.used(KEY)
    assert note(uses) == 1
    assert last_uses(tmp_path) == {name_of_use(KEY): clock.time()}
    for _ in range(29):
        clock.now += 1
        uses.used(KEY)
        assert note(uses) == 0
    used_at = clock.time()
    clock.now += 1
    assert note(uses) == 1
    assert last_uses(tmp_path) == {name_of_use(KEY): used_at}, "when it was used, and not when that was noted"
    uses.used(KEY)
    uses.used(OTHER)
    assert (note(uses), note(uses, is_end=True)) == (1, 1)
    assert last_uses(tmp_path) == {name_of_use(KEY): clock.time(), name_of_use(OTHER): clock.time()}
    clock.now -= 5 * NOTED_EVERY_S
    uses.used(KEY)
    assert note(uses) == 1, "the clock was set back"


def test_a_folder_that_another_user_could_have_made_is_not_written_to(tmp_path, capfd):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o777)
    (tmp_path / USES_FOLDER).symlink_to(tmp_path / "elsewhere")
    uses = KeyUses(tmp_path)
    uses.note({KEY: 1.0})
    uses.note({KEY: 2.0})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_only_keys_that_let_somebody_in_are_noted_and_a_kill_loses_nothing_that_was(tmp_path):
    entries = [ApiKey(name=name, sha256=digest(name), created="") for name in ("used", "unused")]
    (tmp_path / "keys.json").write_bytes(encode_key_file(entries))
    (tmp_path / "keys.json").chmod(0o600)

    def get(frontend, key):
        return httpx.get(f"{frontend.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

    options = ("--api-keys", str(tmp_path / "keys.json"), "--key-uses", str(tmp_path))
    began = time.time()
    with running_frontend(*options, BATON_API_KEYS="plain") as frontend:
        assert [get(frontend, key) for key in ("wrong", "plain", "used")] == [401, 200, 200]
        eventually(lambda: last_uses(tmp_path), 10)
        os.kill(frontend.process.pid, signal.SIGKILL)
    uses = last_uses(tmp_path)
    assert [*uses] == [name_of_use(digest("used"))]
    assert began - 1 <= uses[name_of_use(digest("used"))] <= time.time()
    assert (tmp_path / USES_FOLDER).stat().st_mode & 0o777 == 0o700


def test_uses_that_cannot_be_noted_are_logged_and_keep_nobody_out(tmp_path):
    (tmp_path / "keys.json").write_bytes(encode_key_file([ApiKey(name="used", sha256=digest("used"), created="")]))
    (tmp_path / "keys.json").chmod(0o600)
    (tmp_path / USES_FOLDER).write_text("in the way")
    options = ("--api-keys", str(tmp_path / "keys.json"), "--key-uses", str(tmp_path))
    with running_frontend(*options) as frontend:
        answer = httpx.get(f"{frontend.url}/v1/models", headers={"authorization": "Bearer used"})
        assert answer.status_code == 200
        eventually(lambda: 'event="uses of API keys not noted"' in frontend.log, 10)
        assert USES_FOLDER in frontend.log
