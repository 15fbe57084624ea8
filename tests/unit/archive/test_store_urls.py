"""Tests of archive URLs: no message contains a secret of the URL."""

from __future__ import annotations

import pytest

from tutti.archive.store import open_store
from tutti.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAEXAMPLE:SuperSecret@bucket/ingest",
        "s3://AKIAEXAMPLE:Super/Secret@bucket/ingest",
        "simplecache::ftp://me:SuperSecret@host/ingest",
        "ftp://me:SuperSecret@host/ingest",
    ],
)
def test_a_url_with_a_password_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="contains a password") as error:
        open_store(url)
    assert "Secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://bucket/a?sig=SuperSecret", "memory://bucket/a"),
        ("nothing://me@bucket/a?sig=SuperSecret#Secret", "nothing://bucket/a"),
        ("nothing://bucket", "nothing://bucket"),
    ],
)
def test_messages_have_no_signature_of_a_url(url: str, shown: str) -> None:
    try:
        told = open_store(url).where
    except ConfigError as error:
        told = f"{error}{error.__cause__ or ''}"
    assert told.startswith(shown)
    assert "Secret" not in told
