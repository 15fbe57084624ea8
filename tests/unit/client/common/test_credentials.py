"""Tests of client credentials: they come from one file that only its user may read, and no output shows them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tutti.common.credentials import Credentials, from_environment, given
from tutti.errors import ConfigError, UsageError
from tutti_gateway.transport.keys import generate

TOKEN, OTHER = "tutti_" + "s" * 43, "tutti_" + "o" * 43


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    generate(tmp_path, ["jfk", "lga"])
    return tmp_path / "group.keys"


@pytest.fixture
def file(tmp_path: Path, keys: Path) -> Path:
    path = tmp_path / "feed.client"
    path.touch(0o600)
    path.write_text(f'token = "{TOKEN}"\ncertificates = "pem"\n{keys.read_text()}')
    return path


def test_a_file_has_all_of_it(file: Path) -> None:
    found = Credentials.read(file)
    assert (found.token, found.certificates, set(found.server_keys)) == (TOKEN, "pem", {"jfk", "lga"})
    assert Credentials.read(file, OTHER).token == OTHER
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 - as Spark does
    assert (again.token, again.server_keys) == (found.token, found.server_keys)


def test_a_token_is_in_nothing_that_is_printed(file: Path) -> None:
    found = Credentials.read(file)
    assert TOKEN not in repr(found) + str(found) + f"{found}"


def test_the_environment_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_environment() is None
    assert given(None) is None
    monkeypatch.setenv("TUTTI_TOKEN", f"{OTHER}\n")
    with pytest.raises(ConfigError, match="TUTTI_TOKEN is set and TUTTI_TOKEN_FILE is not"):
        given(None)
    monkeypatch.setenv("TUTTI_TOKEN_FILE", str(file))
    found = given(None)
    assert found is not None
    assert found.token == OTHER
    assert given(found) is found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no token"),
        ("token = 3\n", "token and certificates must be text"),
        ('token = "x"\nsecret = 1\n', "has secret: use only certificates, gateways, token"),
        ('token = "x"\n', "lists no public keys of gateways"),
        ('token = "x"\n[gateways]\njfk = "short"\n', "40 characters of Z85"),
        ('token = "x', "is not TOML"),
        ("token = " + "[" * 5_000, "is not TOML"),
        ("token = " + "9" * 5_000, "is not TOML"),
    ],
)
def test_an_unusable_file_is_reported_with_the_reason_and_without_its_content(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        Credentials.read(file)
    assert str(file) in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_file_that_others_may_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match="other users can read or write it"):
        Credentials.read(file)


def test_a_token_is_sent_only_to_gateways_with_known_keys(keys: Path) -> None:
    with pytest.raises(UsageError, match="without public keys of gateways"):
        Credentials(TOKEN)
    with pytest.raises(ConfigError, match="lists no public keys"):
        Credentials(TOKEN, keys.with_name("jfk.secret"))
    found = Credentials(TOKEN, keys)
    assert found.headers("grpc+tls://10.0.0.1:7402") == [(b"authorization", b"Bearer " + TOKEN.encode())]
    assert found.headers("grpc://127.0.0.1:7402") == found.headers("grpc://[::1]:7402")
    with pytest.raises(ConfigError, match=r"reads at grpc://10.0.0.1:7402 are not encrypted") as error:
        found.headers("grpc://10.0.0.1:7402")
    assert TOKEN not in str(error.value)
