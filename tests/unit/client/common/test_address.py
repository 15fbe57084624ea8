"""Tests of addresses: URLs are parsed correctly, and the error names each mistake."""

import re

import pytest

from tutti import limits
from tutti.common.gateway_url import Address, default_noted, parse_url, url_or_default
from tutti.errors import ConfigError, Unavailable


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("tutti://127.0.0.1:7400", [("127.0.0.1", 7400)]),
        ("tutti://127.0.0.1:7400/", [("127.0.0.1", 7400)]),
        ("  tutti://a:1,b.c-d.e:65535 ", [("a", 1), ("b.c-d.e", 65535)]),
        ("tutti://a:1, tutti://b:2", [("a", 1), ("b", 2)]),
        ("tutti://a:1,a:1,b:2", [("a", 1), ("b", 2)]),
        ("tutti://[::1]:7400,x:1", [("::1", 7400), ("x", 1)]),
        ("tutti://[fe80::1%eth0]:7", [("fe80::1%eth0", 7)]),
    ],
)
def test_good_urls(url: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "does not begin with tutti://"),
        ("127.0.0.1:7400", "does not begin with tutti://"),
        ("grpc://h:1", "reads port"),
        ("http://h:1", "admin port"),
        ("kafka://h:1", "does not begin with tutti://"),
        ("tutti://", "has no host or no port"),
        ("tutti://host", "has no host or no port"),
        ("tutti://:7400", "has no host or no port"),
        ("tutti://a:1,,b:2", "has no host or no port"),
        ("tutti://a:x", "the url 'tutti://a:x': 'x' in 'a:x' is not a port"),
        ("tutti://a:0", "not a port (1 to 65535)"),
        ("tutti://a:65536", "not a port (1 to 65535)"),
        ("tutti://a:-1", "not a port (1 to 65535)"),
        ("tutti://a:1/topic", "'1/topic'"),
        ("tutti://a b:1", "is not a host"),
        ("tutti://user@a:1", "is not a host"),
        ("tutti://::1:7400", "for IPv6"),
        ("tutti://]x[:1", "is not a host"),
        ("tutti://*:7400", "no client can connect"),
        ("tutti://" + ",".join(f"a:{port}" for port in range(1, limits.ADDRESSES_MAX + 2)), "at most 64"),
    ],
)
def test_mistakes_in_urls_are_named(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_url(url)


@pytest.mark.parametrize(
    ("variable", "addresses"),
    [(None, [("127.0.0.1", 7400)]), ("", [("127.0.0.1", 7400)]), ("tutti://a:1,b:2", [("a", 1), ("b", 2)])],
)
def test_the_url_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, addresses: list[tuple[str, int]]
) -> None:
    if variable is not None:
        monkeypatch.setenv("TUTTI_URL", variable)
    assert url_or_default(None) == addresses
    assert url_or_default("tutti://c:3") == [("c", 3)]


def test_a_mistake_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUTTI_URL", "localhost:7400")
    with pytest.raises(ConfigError, match="TUTTI_URL: the url 'localhost:7400' does not begin with tutti://"):
        url_or_default(None)


def test_only_an_unreachable_default_gets_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(url: str | None) -> list[str]:
        with pytest.raises(Unavailable) as caught, default_noted(url):
            raise Unavailable("refused")
        return getattr(caught.value, "__notes__", [])

    assert notes(None) == ["127.0.0.1:7400 is the default: start gateways with `tutti dev`, or name others with url= or TUTTI_URL"]
    assert notes("tutti://127.0.0.1:7400") == []
    monkeypatch.setenv("TUTTI_URL", "tutti://127.0.0.1:7400")
    assert notes(None) == []


def test_a_url_is_text() -> None:
    with pytest.raises(ConfigError, match="not bytes"):
        parse_url(b"tutti://a:1")  # type: ignore[arg-type]  # what is tested


def test_addresses_as_text() -> None:
    assert str(Address("::1", 5)) == "[::1]:5"
    assert str(Address("a", 5)) == "a:5"
