"""Key files: what is written can be read, and what should not be used is refused with a way to mend it."""

import os
import stat
from pathlib import Path

import pytest
import zmq.auth

from common.curve import ClientCurve, KeyFileError, KeyPair, ServerCurve, allowed_files, certificate, load_public
from common.paths import user_name

STRANGER = 4711  # a user id that is not ours


@pytest.fixture
def keys():
    return KeyPair.generate()


@pytest.fixture
def secret_file(tmp_path, keys):
    path = tmp_path / "server.key_secret"
    path.write_text(certificate(keys.public, keys.secret))
    path.chmod(0o600)
    return path


def owned_by(user, monkeypatch, *paths):
    """Make all files look like that user's, or some."""
    real = Path.stat

    def status(path, **options):
        fields = list(real(path, **options))
        if not paths or path in paths:
            fields[stat.ST_UID] = user
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "stat", status)


def test_files_are_those_of_pyzmq_and_czmq(secret_file, tmp_path, keys):
    assert KeyPair.load(secret_file) == keys
    assert zmq.auth.load_certificate(secret_file) == (keys.public, keys.secret)
    theirs, _ = zmq.auth.create_certificates(tmp_path, "theirs")
    assert load_public(Path(theirs)) == zmq.auth.load_certificate(theirs)[0]


def test_a_secret_is_not_shown(keys):
    assert keys.secret.decode() not in repr(keys)
    assert keys.secret.decode() not in repr(ServerCurve(keys, Path("x")))


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644, 0o620])
def test_a_secret_that_is_open_to_others_is_refused(secret_file, mode):
    secret_file.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"open to others \(mode {mode:04o}\).*chmod 600 {secret_file}"):
        KeyPair.load(secret_file)


def test_a_group_may_read_what_is_roots(secret_file, keys, monkeypatch):
    """As Kubernetes mounts secrets, and as PostgreSQL has it."""
    secret_file.chmod(0o440)
    owned_by(0, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert KeyPair.load(secret_file) == keys


def test_a_group_may_not_read_what_is_ours(secret_file, monkeypatch):
    secret_file.chmod(0o640)
    owned_by(STRANGER, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    with pytest.raises(KeyFileError, match="open to others"):
        KeyPair.load(secret_file)


@pytest.mark.parametrize("mode", [0o600, 0o440, 0o400])
def test_a_secret_of_some_third_user_is_refused(secret_file, monkeypatch, mode):
    """Its owner can read it, and put another file in its place."""
    secret_file.chmod(mode)
    owned_by(STRANGER, monkeypatch)
    with pytest.raises(KeyFileError, match=rf"{secret_file} belongs to user {user_name(STRANGER)}, not to root"):
        KeyPair.load(secret_file)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o622])
def test_a_public_key_that_others_can_change_is_refused(tmp_path, keys, mode):
    """What it says is whom we talk to."""
    path = tmp_path / "server.key"
    path.write_text(certificate(keys.public))
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"can be changed by others \(mode {mode:04o}\).*chmod go-w {path}"):
        load_public(path)
    path.chmod(0o644)
    assert load_public(path) == keys.public


def test_a_public_key_of_some_third_user_is_refused(tmp_path, keys, monkeypatch):
    path = tmp_path / "server.key"
    path.write_text(certificate(keys.public))
    owned_by(STRANGER, monkeypatch)
    with pytest.raises(KeyFileError, match=f"belongs to user {user_name(STRANGER)}"):
        load_public(path)


@pytest.mark.parametrize(("mode", "is_safe"), [
    (0o700, True), (0o755, True), (0o2755, True), (0o1777, True), (0o3777, True), (0o770, False), (0o707, False),
    (0o777, False), (0o2775, False),
])  # fmt: skip
def test_folders_that_others_can_change_are_refused(tmp_path, keys, secret_file, mode, is_safe):
    """But not those in which users can touch their own files only: kubelet's mounts are such."""
    secret_file.with_name("executor.key_secret").write_text(certificate(keys.public, keys.secret))
    secret_file.with_name("executor.key_secret").chmod(0o600)
    (tmp_path / "server.key").write_text(certificate(keys.public))
    tmp_path.chmod(mode)
    for load in (ServerCurve.load, ClientCurve.load):
        if is_safe:
            assert load(tmp_path).keys == keys
        else:
            with pytest.raises(KeyFileError, match=rf"{tmp_path} can be changed by others \(mode {mode:04o}\)"):
                load(tmp_path)


def test_a_folder_of_some_third_user_is_refused(tmp_path, secret_file, monkeypatch):
    owned_by(STRANGER, monkeypatch, tmp_path)
    with pytest.raises(KeyFileError, match=f"{tmp_path} belongs to user {user_name(STRANGER)}"):
        ServerCurve.load(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "executor-x.key", 0o600)
    with pytest.raises(KeyFileError, match="is no file"):
        load_public(tmp_path / "executor-x.key")


def test_files_that_are_no_keys(tmp_path, keys, secret_file):
    other = KeyPair.generate()
    cases = {
        "": "has no public key",
        'public-key = "tooshort"': "not 40 characters of Z85",
        "curve\n    public-key = \n": "not 40 characters of Z85",
        f'public-key = "{"~" * 40}"': "not 40 characters of Z85",
        f'public-key = "{"#" * 40}"': "not 40 characters of Z85",
        "curve\n    public-key\n": "is no file of keys",
        certificate(keys.public) + "secret-key\n": "is no file of keys",
        certificate(keys.public): "has no secret key",
        certificate(other.public, keys.secret): "do not belong together",
        certificate(keys.public, b"short"): "not 40 characters of Z85",
    }
    for text, complaint in cases.items():
        secret_file.write_text(text)
        with pytest.raises(KeyFileError, match=complaint) as caught:
            KeyPair.load(secret_file)
        assert str(secret_file) in str(caught.value)
    secret_file.write_bytes(os.urandom(300))
    with pytest.raises(KeyFileError):
        load_public(secret_file)
    with pytest.raises(KeyFileError, match="No such file"):
        load_public(tmp_path / "nothing")
    with pytest.raises(KeyFileError, match="is no file"):
        load_public(tmp_path)


def test_folders(tmp_path, keys, secret_file):
    assert ServerCurve.load(tmp_path) == ServerCurve(keys, tmp_path)
    with pytest.raises(KeyFileError, match=r"executor\.key_secret cannot be read"):
        ClientCurve.load(tmp_path)
    secret_file.rename(tmp_path / "executor.key_secret")
    with pytest.raises(KeyFileError, match=r"server\.key cannot be read"):
        ClientCurve.load(tmp_path)
    server = KeyPair.generate()
    (tmp_path / "server.key").write_text(certificate(server.public))
    assert ClientCurve.load(tmp_path) == ClientCurve(keys, server.public)
    for name in (
        "executor-b.key",
        "executor-a.key",
        "executor-.a.swp",
        ".executor-c.key",
        "executor-d.key.bak",
        "e.key",
    ):
        (tmp_path / name).write_text("")
    assert list(allowed_files(tmp_path)) == ["a", "b"]
