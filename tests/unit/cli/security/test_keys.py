"""Tests of `tutti keys`: the configuration accepts the written files, no output shows a secret key, and existing files are not
replaced.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tutti_gateway.cli.main import main
from tutti_gateway.transport.keys import Keyring, read_public, read_secret


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["keys", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_new_keys_are_those_of_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "new", "--out", str(tmp_path / "keys"), "jfk", "lga")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{tmp_path}/keys/jfk.secret  only for the host of jfk",
        f"{tmp_path}/keys/lga.secret  only for the host of lga",
        f"{tmp_path}/keys/group.keys  for every host",
    ]
    for name in ("jfk", "lga"):
        secret = tmp_path / "keys" / f"{name}.secret"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        assert Keyring.open(secret, tmp_path / "keys" / "group.keys", name).own.gateway == name


def test_keys_of_one_more_gateway_join_those_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "new", "--out", str(tmp_path), "jfk", "lga")
    before = read_public(tmp_path / "group.keys")
    code, out, _ = run(capsys, "new", "--out", str(tmp_path), "ewr", "--json")
    assert (code, json.loads(out)) == (0, {"secrets": {"ewr": f"{tmp_path}/ewr.secret"}, "public": f"{tmp_path}/group.keys"})
    after = read_public(tmp_path / "group.keys")
    assert {**after, **before} == after
    assert set(after) == {"ewr", "jfk", "lga"}


def test_keys_that_are_there_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "new", "--out", str(tmp_path), "jfk")
    before = read_secret(tmp_path / "jfk.secret")
    code, out, err = run(capsys, "new", "--out", str(tmp_path), "jfk")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "jfk has keys already" in err
    assert read_secret(tmp_path / "jfk.secret") == before


def test_a_directory_that_cannot_be_created_is_reported_with_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    code, out, err = run(capsys, "new", "--out", str(tmp_path / "file" / "keys"), "jfk")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "keys cannot be created there (not a directory): choose a writable directory with --out" in err


def test_a_secret_is_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "new", "--out", str(tmp_path), "jfk", "lga")
    own = read_secret(tmp_path / "jfk.secret")
    code, out, _ = run(capsys, "show", str(tmp_path / "jfk.secret"))
    assert (code, out) == (0, f"gateway\tpublic\njfk\t{own.public}\n")
    assert own.secret not in out
    code, out, _ = run(capsys, "show", str(tmp_path / "group.keys"), "--json")
    assert (code, json.loads(out)) == (0, read_public(tmp_path / "group.keys"))


@pytest.mark.parametrize(("name", "said"), [("missing.secret", "cannot be read"), ("group.keys", "cannot be read")])
def test_a_file_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str) -> None:
    code, out, err = run(capsys, "show", str(tmp_path / name))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{tmp_path / name} {said}" in err


def test_a_name_that_no_gateway_can_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "new", "--out", str(tmp_path / "keys"), "two words")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "keys").exists()
