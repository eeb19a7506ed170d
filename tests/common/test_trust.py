"""What another user could have put there, changed or can read is not trusted; what only looks like it is."""

import os
import stat
from pathlib import Path

import pytest

from common import trust
from common.paths import user_name
from common.trust import first_of_ours, why_changeable, why_untrusted
from tests.support.other_user import UID, as_other_user, folder_of_all, needs_root

PRIVATE = {"is_private": True}


@pytest.fixture
def shared():
    """A folder such as /tmp."""
    with folder_of_all() as folder:
        yield folder


@needs_root
@pytest.mark.parametrize("made", [
    "os.mkdir(path)", "open(path, 'x')", "os.symlink('/root', path)", "socket.socket(socket.AF_UNIX).bind(path)",
])  # fmt: skip
@pytest.mark.parametrize("below", ["", "file"])
def test_what_another_user_has_made_is_refused_wherever_it_is_on_the_way(shared, made, below):
    planted = shared / "planted"
    as_other_user(f"path = sys.argv[1]; {made}", planted)
    told = why_untrusted(planted / below)
    assert told == f"{planted} belongs to user {user_name(UID)}, not to root, who reads it"


@needs_root
def test_a_link_of_ours_is_followed_to_what_another_user_has_made(shared):
    as_other_user("os.mkdir(sys.argv[1])", shared / "theirs")
    (shared / "link").symlink_to(shared / "again")
    (shared / "again").symlink_to("theirs/below")
    assert f"{shared}/theirs belongs to user" in str(why_untrusted(shared / "link" / "file"))
    (shared / "link" / "..").resolve()
    (shared / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in str(why_untrusted(shared / "loop"))


@pytest.mark.parametrize(("mode", "is_safe"), [
    (0o700, True), (0o755, True), (0o1777, True), (0o3777, True), (0o777, False), (0o2777, False), (0o707, False),
])  # fmt: skip
def test_folders_in_which_others_can_rename_what_is_ours_are_refused(tmp_path, mode, is_safe):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    for path in (folder, folder / "store" / "store.db"):
        told = why_untrusted(path)
        refusal = f"{folder} can be changed by others (mode {mode:04o}): chmod go-w {folder}"
        assert told == (None if is_safe else refusal)
    folder.chmod(0o700)


def test_files_in_a_folder_for_this_user_alone_may_have_any_mode(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for mode in (0o600, 0o644, 0o666):
        file.chmod(mode)
        assert why_untrusted(file, **PRIVATE) is None, "others do not get there: pytest's folders are private"


@needs_root
def test_a_file_that_others_can_read_is_not_private(shared):
    file = shared / "file"
    file.touch()
    file.chmod(0o602)
    assert why_untrusted(file) == f"{file} can be changed by others (mode 0602): chmod go-w {file}"
    file.chmod(0o644)
    assert why_untrusted(file) is None
    assert why_untrusted(file, **PRIVATE) == f"{file} can be read by others (mode 0644): chmod o-rwx {file}"
    shared.chmod(0o700)
    assert why_untrusted(file, **PRIVATE) is None


@needs_root
@pytest.mark.parametrize(("gid", "groups", "is_safe"), [
    (0, [], True),  # root's
    (1, [1], False),  # another user's own
    (424_242, [424_242], True),  # an fsGroup, which no account has
    (424_242, [], False),  # of some process that is not ours
])  # fmt: skip
def test_a_group_counts_as_another_user_unless_only_this_one_is_in_it(tmp_path, monkeypatch, gid, groups, is_safe):
    monkeypatch.setattr(trust.os, "getgroups", lambda: groups)
    volume = tmp_path / "volume"
    volume.mkdir()
    os.chown(volume, 0, gid)
    volume.chmod(0o2775)  # as kubelet leaves it
    assert (why_untrusted(volume) is None) == is_safe


def test_a_missing_path_is_still_to_be_made(tmp_path):
    assert why_untrusted(tmp_path / "not" / "yet") is None
    assert why_untrusted(tmp_path / "not" / ".." / "yet") is None


@needs_root
def test_of_several_places_the_first_is_chosen_that_is_ours_or_can_be(shared):
    taken, free, other = (shared / name for name in ("taken", "free", "other"))
    as_other_user("os.mkdir(sys.argv[1], 0o700)", taken)
    places = [taken, shared / "no" / "parent", free, other]
    assert first_of_ours(places, "sock") == free
    other.mkdir(mode=0o700)
    assert first_of_ours(places, "sock") == free
    (other / "sock").touch()
    assert first_of_ours(places, "sock") == other, "whoever comes later finds what is there"
    other.chmod(0o755)
    assert first_of_ours(places, "sock") == free
    assert first_of_ours([taken], "sock") == taken, "the message about it names the usual place"
    assert stat.S_ISDIR(taken.stat().st_mode)


@needs_root
def test_a_link_leads_out_of_a_folder_for_this_user_alone(shared, tmp_path):
    """The place that the link leads to counts, and not the link's own; a link that stays inside is as safe as its
    folder."""
    tmp_path.chmod(0o700)
    for folder in (shared, tmp_path):
        (folder / "file").touch()
        (folder / "file").chmod(0o666)
    out, within = tmp_path / "out", tmp_path / "within"
    out.symlink_to(shared / "file")
    within.symlink_to("file")
    assert why_untrusted(out) == f"{shared}/file can be changed by others (mode 0666): chmod go-w {shared}/file"
    (shared / "file").chmod(0o644)
    assert (
        why_untrusted(out, **PRIVATE) == f"{shared}/file can be read by others (mode 0644): chmod o-rwx {shared}/file"
    )
    assert why_untrusted(within, **PRIVATE) is None


@needs_root
def test_where_the_operator_says_that_no_other_user_is_there_all_is_taken(shared, monkeypatch):
    as_other_user("os.mkdir(sys.argv[1], 0o777)", shared / "volume")
    for value, is_taken in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(trust.WAIVER, value)
        assert (why_untrusted(shared / "volume" / "journal", **PRIVATE) is None) == is_taken


@pytest.mark.parametrize(
    ("path", "mode", "is_advised"),
    [
        ("/", 0o40777, False),
        ("/tmp", 0o40777, False),
        ("/dev/shm", 0o40777, False),
        ("/var/lib", 0o40775, False),
        ("/usr/local/lib", 0o40775, False),
        ("/run/lock", 0o40777, False),
        ("/dev/null", 0o20666, False),
        ("/etc/passwd", 0o100666, False),
        ("/etc/baton/keys", 0o40777, True),
        ("/var/lib/baton", 0o40777, True),
        ("/home/ann/journal", 0o100666, True),
    ],
)
def test_no_advice_would_break_a_machine(path, mode, is_advised):
    status = os.stat_result([mode, 1, 1, 1, 0, 4711, 0, 0, 0, 0])
    told = why_changeable(Path(path), status)
    assert told is not None
    assert told.endswith(f": chmod go-w {path}") == ("chmod" in told) == is_advised
