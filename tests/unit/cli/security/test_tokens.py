"""Tests of `tutti tokens`: a token is printed once and stored nowhere, and the file lists its rights."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from tutti.common.credentials import Credentials
from tutti.security.tokens import Tokens, read_tokens
from tutti_gateway.cli.main import main
from tutti_gateway.transport.keys import generate, read_public


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["tokens", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUTTI_TOKENS", str(tmp_path / "etc" / "tokens.toml"))
    return tmp_path / "etc" / "tokens.toml"


def test_a_token_is_printed_once_and_its_hash_is_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "new", "feed", "--produce", "flights*", "--read", "*", "--expires", "30d")
    assert (code, err) == (0, "")
    token = out.strip()
    access = Tokens(path).authenticate(token)
    assert (access.name, access.produce, access.read, access.admin) == ("feed", ("flights*",), ("*",), False)
    assert abs(access.expires_us / 1e6 - time.time() - 30 * 86400) < 60
    assert token not in path.read_text()
    code, out, _ = run(capsys, "list")
    assert token not in out
    assert out.splitlines()[1].startswith("feed\tflights*\t*\t*\t-\t20")
    code, out, _ = run(capsys, "list", "--json")
    assert json.loads(out)[0]["produce"] == ["flights*"]


def test_a_token_with_quotas_is_listed_with_them(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--produce", "flights*", "--records-per-s", "1000", "--bytes-per-s", "2000000")
    token = run(capsys, "new", "feed", *options)[1].strip()
    run(capsys, "new", "free", "--produce", "*")
    assert Tokens(path).authenticate(token)[-2:] == (1000, 2_000_000)
    header, feed, free = (line.split("\t") for line in run(capsys, "list")[1].splitlines())
    assert header[-2:] == ["records/s", "bytes/s"]
    assert (feed[-2:], free[-2:]) == (["1000", "2000000"], ["-", "-"])
    listed = json.loads(run(capsys, "list", "--json")[1])
    assert [(one["records_per_s"], one["bytes_per_s"]) for one in listed] == [(1000, 2_000_000), (None, None)]


def test_a_removed_token_authenticates_no_client(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "new", "ops", "--admin", "--json")
    assert Tokens(path).authenticate(json.loads(out)["token"]).admin
    assert run(capsys, "remove", "ops") == (0, "", "")
    assert read_tokens(path) == {}
    code, out, err = run(capsys, "remove", "ops")
    assert (code, out) == (2, "")
    assert "has no token 'ops'" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["new", "feed"], "feed would have no rights"),
        (["new", "two words", "--admin"], "contains ' '"),
        (["new", "feed", "--produce", "a b"], "--produce has 'a b'"),
        (["new", "feed", "--admin", "--expires", "soon"], "'soon' is not a duration"),
        (["new", "feed", "--produce", "a", "--records-per-s", "0"], "0 is not in the range"),
        (["new", "feed", "--produce", "a", "--bytes-per-s", "many"], "'many' is not a valid integer"),
        (["new", "taken", "--admin"], "already has a token 'taken'"),
    ],
)
def test_mistakes_are_reported_and_nothing_is_written(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    run(capsys, "new", "taken", "--admin")
    before = path.read_bytes()
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert path.read_bytes() == before


def test_an_unwritable_file_is_reported_with_a_remedy(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.write_text("a file")
    code, out, err = run(capsys, "new", "feed", "--admin")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "choose a writable file with --file" in err


def test_all_that_a_client_needs_is_one_file_that_its_user_alone_may_read(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path, ["jfk"])
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    client, keys = tmp_path / "out" / "feed.client", tmp_path / "group.keys"
    made = "new", "feed", "--produce", "*", "--client", str(client), "--keys", str(keys), "--ca", str(tmp_path / "ca.pem")
    code, out, err = run(capsys, *made)
    assert (code, err) == (0, "")
    assert "tutti_" not in out
    assert stat.S_IMODE(client.stat().st_mode) == 0o600
    found = Credentials.read(client)
    assert Tokens(path).authenticate(found.token).name == "feed"
    assert found.server_keys == read_public(keys)
    assert "BEGIN CERTIFICATE" in found.certificates
    before = path.read_bytes()
    for arguments, said in (
        (("new", "b", "--admin", "--client", str(client), "--keys", str(keys)), "already exists"),
        (("new", "b", "--admin", "--client", str(tmp_path / "b")), "needs --keys group.keys"),
        (("new", "b", "--admin", "--keys", str(keys)), "needs --keys group.keys"),
        (("new", "b", "--admin", "--client", str(tmp_path / "b"), "--keys", str(tmp_path / "jfk.secret")), "has the secret key"),
        (
            ("new", "b", "--admin", "--client", str(tmp_path / "b"), "--keys", str(keys), "--ca", str(keys)),
            "must hold certificates only",
        ),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert path.read_bytes() == before
