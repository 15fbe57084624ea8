"""Tests of a query's credentials: they come from its options or its driver's environment, and are in no message."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tutti.errors import UsageError
from tutti_gateway.transport.keys import generate
from tutti_spark.common import options
from tutti_spark.sink import options as sink_options

TOKEN, OTHER = "tutti_" + "s" * 43, "tutti_" + "o" * 43
URL = {"gateways": "tutti://h:1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    generate(tmp_path, ["jfk"])
    path = tmp_path / "feed.client"
    path.touch(0o600)
    path.write_text(f'token = "{TOKEN}"\n{(tmp_path / "group.keys").read_text()}')
    return path


def write(given: Mapping[str, str]) -> sink_options.SinkOptions:
    return sink_options.parse(given, stream=False)


@pytest.mark.parametrize("parse", [options.parse, write])
def test_reads_and_writes_accept_credentials(
    parse: Callable[[Mapping[str, str]], Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse(URL).credentials is None
    found = parse({**URL, "tokenfile": str(file)})
    assert found.credentials.token == TOKEN
    assert TOKEN not in repr(found)
    assert pickle.loads(pickle.dumps(found)).credentials.token == TOKEN  # noqa: S301 - as Spark does
    assert parse({**URL, "tokenfile": str(file), "token": OTHER}).credentials.token == OTHER
    monkeypatch.setenv("TUTTI_TOKEN_FILE", str(file))
    assert parse(URL).credentials.token == TOKEN


@pytest.mark.parametrize("parse", [options.parse, write])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"token": TOKEN}, "option 'token' also needs 'tokenFile'"),
        ({"tokenfile": "/no/such/file"}, "option 'tokenFile': /no/such/file cannot be read"),
        ({"tokne_secret": TOKEN}, r"option 'tokne_secret' \(\(not shown\)\) is not accepted"),
        ({"auth.token": TOKEN}, r"option 'auth.token' \(\(not shown\)\) is not accepted"),
    ],
)
def test_no_message_has_a_token(parse: Callable[[Mapping[str, str]], Any], given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse({**URL, **given})
    assert TOKEN not in str(error.value)


def test_files_are_read_with_the_callers_rights() -> None:
    with pytest.raises(UsageError, match=r"option 'token' \(\(not shown\)\) does not apply") as error:
        options.parse({"path": "/d", "token": TOKEN})
    assert TOKEN not in str(error.value)
