"""Tests of key files: only the own gateway can read the secret key, and a wrong file is refused with a clear error."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import zmq

from tutti import limits
from tutti.errors import ConfigError, UsageError
from tutti_gateway.transport.keys import Keyring, generate, new_keys, read_either, read_public, read_secret, write_public


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    generate(tmp_path, ["jfk", "lga"])
    return tmp_path


def test_a_secret_for_each_and_one_public_file_for_all(keys: Path) -> None:
    pairs = {name: read_secret(keys / f"{name}.secret") for name in ("jfk", "lga")}
    assert read_public(keys / "group.keys") == {name: pair.public for name, pair in pairs.items()}
    assert all(zmq.curve_public(pair.secret.encode()).decode() == pair.public for pair in pairs.values()), "as ZeroMQ has it"
    assert pairs["jfk"].secret not in (keys / "group.keys").read_text()


def test_only_its_user_may_read_a_secret_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secret, public = generate(tmp_path / "new", ["jfk"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644


def test_a_gateway_is_added_to_the_public_file_and_the_others_stay(keys: Path) -> None:
    before = read_public(keys / "group.keys")
    generate(keys, ["ewr.2"])
    after = read_public(keys / "group.keys")
    assert list(after) == ["ewr.2", "jfk", "lga"]
    assert before.items() < after.items()


def test_keys_are_never_written_over(keys: Path) -> None:
    before = {path: path.read_bytes() for path in keys.iterdir()}
    with pytest.raises(ConfigError, match=r"lga has keys already \(.*lga\.secret\)"):
        generate(keys, ["ewr", "lga"])
    (keys / "lga.secret").unlink()
    with pytest.raises(ConfigError, match=r"lga has keys already \(.*group\.keys\)"):
        generate(keys, ["lga"])
    del before[keys / "lga.secret"]
    assert {path: path.read_bytes() for path in keys.iterdir()} == before


@pytest.mark.parametrize("names", [[], ["jfk", "jfk"], ["a b"], ["../x"]])
def test_names_are_checked_first(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(UsageError):
        generate(tmp_path / "keys", names)
    assert not (tmp_path / "keys").exists()


def test_a_printed_key_shows_no_secret() -> None:
    pair = new_keys("jfk")
    assert pair.secret not in repr(pair)
    assert pair.secret not in str(pair)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_may_read_is_refused(keys: Path, mode: int) -> None:
    secret = keys / "jfk.secret"
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=rf"other users can read or write it \(mode {mode:04o}\): chmod 600 .*jfk\.secret"):
        read_secret(secret)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"is not a secret key of a gateway \(it has nothing\)"),
        ("x = 1\n", r"is not a secret key of a gateway \(it has x\)"),
        ("\x00", "is not TOML"),
        ("a" * 1_050_000, "is larger than 1048576 bytes"),
        ('gateway = "jfk"\npublic = "short"\nsecret = "short"\n', "public is not a key of 40 Z85 characters"),
        ('gateway = 1\npublic = "short"\nsecret = "short"\n', "gateway is 1"),
    ],
)
def test_a_malformed_secret_is_refused(tmp_path: Path, text: str, said: str) -> None:
    secret = tmp_path / "jfk.secret"
    secret.touch(0o600)
    secret.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_secret(secret)


def test_halves_of_two_pairs_are_refused(keys: Path) -> None:
    secret = keys / "jfk.secret"
    pair, other = read_secret(secret), new_keys("jfk")
    secret.write_text(secret.read_text().replace(pair.secret, other.secret))
    with pytest.raises(ConfigError, match="public and secret are not a pair"):
        read_secret(secret)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lists no public keys"),
        ("[gateways]\n", "lists no public keys"),
        ("gateways = 1\n", "lists no public keys"),
        ('[gateways]\njfk = "short"\n', "the key of jfk is 'short'"),
        ("[gateways]\njfk = 3\n", "the key of jfk is 3"),
        (f'[gateways]\n"a b" = "{"a" * 40}"\n', "gateway name 'a b'"),
        (f'[gateways]\njfk = "{"a" * 40}"\nlga = "{"a" * 40}"\n', "jfk and lga have the same key"),
        ("[gateways]\n" + "".join(f'g{n} = "{"a" * 40}"\n' for n in range(limits.ROSTER_MAX + 1)), "lists 64 gateways"),
    ],
)
def test_a_malformed_public_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    public = tmp_path / "group.keys"
    public.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_public(public)


def test_a_file_of_the_other_kind_is_reported_as_such(keys: Path) -> None:
    with pytest.raises(ConfigError, match=r"group\.keys lists the public keys of a group and has no secret key"):
        read_secret(keys / "group.keys")
    with pytest.raises(ConfigError, match=r"jfk\.secret has the secret key of a gateway: name .*, group\.keys"):
        read_public(keys / "jfk.secret")


def test_a_file_without_a_secret_need_not_be_hidden(keys: Path) -> None:
    """The advice to hide the public file would keep the other gateways' users from reading it."""
    wrong = keys / "jfk.secret"
    for text in ("x = 1\n", "\x00", 'gateway = "jfk"\npublic = "short"\nsecret = "short"\n', (keys / "group.keys").read_text()):
        wrong.write_text(text)
        wrong.chmod(0o644)
        with pytest.raises(ConfigError) as refused:
            read_secret(wrong)
        assert "chmod" not in str(refused.value)


def test_swapped_files_are_reported_as_swapped(keys: Path) -> None:
    with pytest.raises(ConfigError, match=r"^secret_key and public_keys are swapped \(.*group\.keys lists .*jfk\.secret has"):
        Keyring.open(keys / "group.keys", keys / "jfk.secret", "jfk")
    with pytest.raises(ConfigError, match="has no secret key"):
        Keyring.open(keys / "group.keys", keys / "group.keys", "jfk")


def test_public_keys_are_read_from_either_kind_whatever_its_name(keys: Path) -> None:
    secret = keys / "jfk.secret"
    own = read_secret(secret)
    assert read_either(secret.rename(keys / "renamed")) == {"jfk": own.public}
    assert read_either(keys / "group.keys") == read_public(keys / "group.keys")


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    for read in (read_public, read_secret):
        with pytest.raises(ConfigError, match=r"none cannot be read \(no such file or directory\): `tutti keys new`"):
            read(tmp_path / "none")


def test_a_keyring_knows_the_owner_of_each_key(keys: Path) -> None:
    ring = Keyring.open(keys / "jfk.secret", keys / "group.keys", "jfk")
    lga = read_secret(keys / "lga.secret")
    assert ring.name_of(lga.public) == "lga"
    assert ring.public_of("lga") == lga.public
    assert ring.name_of(new_keys("lga").public) == ring.public_of("ewr") == ""


def test_a_keyring_of_another_gateway_is_refused(keys: Path) -> None:
    with pytest.raises(ConfigError, match="is the secret key of 'lga', but this gateway is 'jfk'"):
        Keyring.open(keys / "lga.secret", keys / "group.keys", "jfk")


def test_own_key_has_to_be_the_one_that_the_others_know(keys: Path) -> None:
    public = keys / "group.keys"
    listed = read_public(public)
    write_public(public, listed | {"jfk": new_keys("jfk").public})
    with pytest.raises(ConfigError, match="has another key for jfk than"):
        Keyring.open(keys / "jfk.secret", public, "jfk")
    write_public(public, {"lga": listed["lga"]})
    with pytest.raises(ConfigError, match=r"lists lga and not this gateway \(jfk\): add its public key, "):
        Keyring.open(keys / "jfk.secret", public, "jfk")


class _Clock:
    us = 0

    def __call__(self) -> int:
        return self.us


def test_a_public_file_that_changed_is_read_again(keys: Path) -> None:
    clock = _Clock()
    ring = Keyring.open(keys / "jfk.secret", keys / "group.keys", "jfk", clock)
    assert not ring.refresh()
    generate(keys, ["ewr"])
    assert not ring.refresh(), "it may not be whole"
    clock.us += limits.KEYS_UNCHANGED_US
    assert ring.refresh()
    assert ring.name_of(ring.public_of("ewr")) == "ewr"
    assert not ring.refresh()


def test_the_last_valid_keys_hold_while_the_file_is_wrong(keys: Path) -> None:
    clock = _Clock()
    ring = Keyring.open(keys / "jfk.secret", keys / "group.keys", "jfk", clock)
    lga = ring.public_of("lga")
    (keys / "group.keys").write_text("[gateways")
    assert not ring.refresh()
    assert not ring.trouble
    clock.us += limits.KEYS_UNCHANGED_US
    assert not ring.refresh()
    assert "stay valid: " in ring.trouble
    assert ring.name_of(lga) == "lga"
    write_public(keys / "group.keys", {"jfk": ring.own.public})
    ring.refresh()
    clock.us += limits.KEYS_UNCHANGED_US
    assert ring.refresh()
    assert (ring.trouble, ring.name_of(lga)) == ("", "")


def test_a_briefly_unreadable_file_is_read_again_although_it_did_not_change(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    ring = Keyring.open(keys / "jfk.secret", keys / "group.keys", "jfk", clock)
    generate(keys, ["ewr"])
    assert not ring.refresh(), "it may not be whole"
    clock.us += limits.KEYS_UNCHANGED_US
    with monkeypatch.context() as full:
        full.setattr(os, "open", _no_descriptor)
        assert not ring.refresh()
    assert "stay valid: " in ring.trouble
    assert ring.refresh()
    assert (ring.trouble, ring.name_of(ring.public_of("ewr"))) == ("", "ewr")


def test_a_public_file_that_is_being_written_is_not_read(keys: Path) -> None:
    clock = _Clock()
    ring = Keyring.open(keys / "jfk.secret", keys / "group.keys", "jfk", clock)
    whole = (keys / "group.keys").read_text()
    lga = ring.public_of("lga")
    for size in range(0, len(whole), 10):
        (keys / "group.keys").write_text(whole[:size])
        clock.us += limits.KEYS_UNCHANGED_US
        assert not ring.refresh()
        assert (ring.name_of(lga), ring.trouble) == ("lga", "")


def _no_descriptor(*_: object, **__: object) -> object:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
