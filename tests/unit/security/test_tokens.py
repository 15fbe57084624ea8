"""Tests of tokens: a token gives its holder the listed rights and no others, and the token file reveals no token."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti import limits
from tutti.errors import ConfigError, NotAllowed
from tutti.security.tokens import FULL_ACCESS, Access, Tokens, change_tokens, digest_of, new_token, read_tokens

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND


class Clock:
    def __init__(self) -> None:
        self.us = NOW

    def __call__(self) -> int:
        return self.us


def put(path: Path, *accesses: Access) -> None:
    change_tokens(path, lambda known: known.update({access.name: access for access in accesses}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def test_a_token_gives_its_holder_its_rights_and_no_other(path: Path) -> None:
    feed, ops = new_token(), new_token()
    put(path, Access("feed", digest_of(feed), ("flights*",), ("*",)), Access("ops.1", digest_of(ops), admin=True))
    tokens = Tokens(path)
    assert tokens.authenticate(feed).name == "feed"
    assert tokens.authenticate(ops).admin
    assert tokens.authenticate(ops).produce == ()
    for token, why in (
        (None, "missing"),
        ("", "missing"),
        (new_token(), "unknown"),
        (feed[:-1], "unknown"),
        (digest_of(feed), "unknown"),
    ):
        before = tokens.refused[why]
        with pytest.raises(NotAllowed) as refused:
            tokens.authenticate(token)
        assert (refused.value.code, tokens.refused[why]) == ("token", before + 1)
        assert "feed" not in str(refused.value)
    assert feed not in path.read_text()


def test_an_expired_token_is_refused_as_an_unknown_one_is(path: Path) -> None:
    clock, token = Clock(), new_token()
    put(path, Access("feed", digest_of(token), ("a",), expires_us=NOW + SECOND))
    tokens = Tokens(path, clock)
    access = tokens.authenticate(token)
    assert tokens.current_access(access) == access
    clock.us += SECOND
    assert tokens.current_access(access) is None
    with pytest.raises(NotAllowed) as expired:
        tokens.authenticate(token)
    with pytest.raises(NotAllowed) as unknown:
        tokens.authenticate(new_token())
    assert str(expired.value) == str(unknown.value)
    assert tokens.refused == {"expired": 1, "unknown": 1}


def look_twice(tokens: Tokens, clock: Clock) -> None:
    for _ in range(2):
        clock.us += limits.KEYS_CHECK_US
        tokens.refresh()


def test_the_file_is_read_again_and_a_mistake_in_it_revokes_nothing(path: Path) -> None:
    clock, one, two = Clock(), new_token(), new_token()
    put(path, Access("one", digest_of(one), ("a",)))
    tokens = Tokens(path, clock)
    access = tokens.authenticate(one)
    put(path, Access("two", digest_of(two), ("b",)))
    look_twice(tokens, clock)
    assert tokens.authenticate(two).name == "two"
    good = path.read_text()
    path.write_text("[tokens.one]\nsha256 = 'x'\n")
    look_twice(tokens, clock)
    assert tokens.authenticate(two).name == "two"
    assert "tokens.one.sha256 is not a SHA-256" in tokens.trouble
    path.write_text(good.replace('"a"', '"c"'))
    look_twice(tokens, clock)
    assert tokens.authenticate(one).produce == ("c",)
    assert tokens.trouble == ""
    changed = tokens.current_access(access)
    assert changed is not None
    assert changed.produce == ("c",)
    change_tokens(path, lambda known: known.__delitem__("one"))
    look_twice(tokens, clock)
    assert tokens.current_access(access) is None


def test_a_file_that_is_written_in_place_disconnects_no_client(path: Path) -> None:
    clock, one, two = Clock(), new_token(), new_token()
    put(path, Access("one", digest_of(one), ("a",)), Access("two", digest_of(two), ("b",)))
    tokens = Tokens(path, clock)
    whole = path.read_text()
    access = tokens.authenticate(two)
    for part in ("", whole.partition("\n")[0], whole[: whole.index("[tokens.two]")], whole[:-20]):
        path.write_text(part)
        clock.us += limits.KEYS_CHECK_US
        assert tokens.current_access(access) == tokens.authenticate(two) == access
    path.write_text("")
    look_twice(tokens, clock)
    assert tokens.authenticate(two) == access
    assert "is not a tokens file" in tokens.trouble
    path.write_text(whole)
    look_twice(tokens, clock)
    assert (tokens.authenticate(two), tokens.trouble) == (access, "")
    change_tokens(path, dict.clear)
    look_twice(tokens, clock)
    assert tokens.current_access(access) is None
    assert tokens.trouble == ""


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("*", "anything", True),
        ("flights", "flights", True),
        ("flights", "flights2", False),
        ("flights*", "flights", True),
        ("flights*", "flight", False),
        ("*.raw", "a.raw", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "acb", False),
        ("a.c", "abc", False),
        ("*x*", "axb", True),
    ],
)
def test_a_star_is_any_run_of_characters_and_nothing_else_is_special(pattern: str, topic: str, matches: bool) -> None:
    assert Access("t", produce=(pattern,)).may_produce(topic) is matches
    assert Access("t", read=(pattern,)).may_read(topic) is matches


@given(st.lists(st.text("ab.", max_size=4), min_size=1, max_size=5), st.lists(st.text("ab.", max_size=4), min_size=5, max_size=5))
def test_a_filled_pattern_matches(parts: list[str], fill: list[str]) -> None:
    topic = parts[0] + "".join(filled + part for filled, part in zip(fill, parts[1:], strict=False))
    assert Access("t", produce=("*".join(parts),)).may_produce(topic)


def test_a_refusal_names_the_right_and_not_the_token() -> None:
    access = Access("feed", "0" * 64, ("flights*",), ("flights*", "delays"))
    access.require_produce("flights")
    access.require_read(["delays", "flights2"])
    refusals: list[tuple[Callable[[], None], str]] = [
        (lambda: access.require_produce("delays"), "may not write to topic 'delays'"),
        (lambda: access.require_read(["other"]), "may not read topic 'other'"),
        (lambda: access.require_read(None), r"may not read all topics \(it may read: flights\*, delays\)"),
        (lambda: access.require_admin("fence a producer"), "may not fence a producer"),
    ]
    for refuse, said in refusals:
        with pytest.raises(NotAllowed, match=said) as refused:
            refuse()
        assert refused.value.code == "rights"
        assert "0" * 64 not in str(refused.value)
    only = Access("jfk", produce=("*",), producers=("jfk-*",))
    only.require_producer("jfk-1")
    only.require_producer("~4f2a")
    for refused_one, name in ((only, "lga-1"), (Access("r", read=("*",)), "jfk-1"), (Access("r", read=("*",)), "~4f2a")):
        with pytest.raises(NotAllowed):
            refused_one.require_producer(name)
    FULL_ACCESS.require_read(None)
    FULL_ACCESS.require_produce("x")
    FULL_ACCESS.require_admin("fence")


GOOD = f"sha256 = '{'0' * 64}'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", "is not a tokens file"),
        ("", "is not a tokens file"),
        ("# Tokens of clients\n", "is not a tokens file"),
        ("tokens = 3\n", "is not a tokens file"),
        ("[tokens]\na = 3\n", "tokens.a is not a table"),
        ("[tokens.'a b']\n" + GOOD, "contains ' '"),
        ("[tokens.a]\n", "tokens.a.sha256 is not a SHA-256"),
        ("[tokens.a]\nsha256 = 'ABC'\n", "tokens.a.sha256 is not a SHA-256"),
        ("[tokens.a]\ntoken = 'x'\n" + GOOD, "tokens.a has token"),
        ("[tokens.a]\nproduce = '*'\n" + GOOD, "tokens.a.produce takes a list"),
        ("[tokens.a]\nread = ['a b']\n" + GOOD, "tokens.a.read has 'a b'"),
        ("[tokens.a]\nadmin = 1\n" + GOOD, "tokens.a.admin is 1"),
        ("[tokens.a]\nexpires = 2027-01-01T00:00:00\n" + GOOD, "takes a time with a zone"),
        ("[tokens.a]\nexpires = 'soon'\n" + GOOD, "takes a time with a zone"),
        ("[tokens.a]\nexpires = 0001-01-01T00:00:00+14:00\n" + GOOD, "in the years 1 to 9999 in UTC"),
        ("[tokens.a]\nexpires = 9999-12-31T23:59:59-12:00\n" + GOOD, "in the years 1 to 9999 in UTC"),
        ("[tokens.a]\n" + GOOD + "[tokens.b]\n" + GOOD, "a and b are the same token"),
        *(
            (f"[tokens.a]\n{key} = {value}\n{GOOD}", f"tokens.a.{key} is .*a whole number from 1 to 1000000000000; for no quota")
            for key in ("records_per_s", "bytes_per_s")
            for value in ("0", "-1", "true", "1.5", "'10MB'", "1000000000001")
        ),
        ("[tokens", "is not TOML"),
        ("token = " + "[" * 5_000, "is not TOML"),
        ("token = " + "9" * 5_000, "is not TOML"),
    ],
)
def test_mistakes_in_a_file_are_located(path: Path, text: str, said: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_tokens(path)


def test_a_file_that_every_account_may_write_is_refused(path: Path) -> None:
    put(path, Access("one", digest_of(new_token())))
    path.chmod(0o666)
    with pytest.raises(ConfigError, match=r"every user can write it \(mode 0666\): chmod 644"):
        read_tokens(path)


def test_a_written_file_reads_back_equal(path: Path) -> None:
    accesses = [
        Access("a.b", digest_of("1"), ("x*", "y"), ("*",), True, NOW, ("jfk-*",)),
        Access("limited", digest_of("3"), ("x",), records_per_s=1000, bytes_per_s=10**12),
        Access("plain", digest_of("2"), read=("z",)),
    ]
    put(path, *accesses)
    assert list(read_tokens(path).values()) == accesses


@pytest.mark.parametrize("expires_us", [1, 1_800_000_000_000_001, 253_402_300_799_999_999, -62_135_596_800_000_000])
def test_the_end_of_a_token_is_kept_to_the_microsecond(path: Path, expires_us: int) -> None:
    put(path, Access("feed", digest_of(new_token()), ("a",), expires_us=expires_us))
    assert read_tokens(path)["feed"].expires_us == expires_us
    put(path, Access("other", digest_of(new_token()), ("a",)))
    assert read_tokens(path)["feed"].expires_us == expires_us


def test_concurrent_changes_of_a_file_lose_nothing(path: Path) -> None:
    threads = [threading.Thread(target=put, args=(path, Access(f"t{n}", digest_of(str(n))))) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_tokens(path)) == 16
    assert os.listdir(path.parent) == ["tokens.toml"]


def test_tokens_are_bounded(path: Path) -> None:
    many = [Access(f"t{n}", digest_of(str(n))) for n in range(limits.TOKENS_MAX + 1)]
    with pytest.raises(ConfigError, match=f"the limit of {limits.TOKENS_MAX}"):
        put(path, *many)
    assert not path.exists()


def test_a_file_that_lists_too_many_tokens_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves it for one that was not made by the command."""
    put(path, *(Access(f"t{n}", digest_of(str(n))) for n in range(3)))
    monkeypatch.setattr(limits, "TOKENS_MAX", 3)
    assert len(read_tokens(path)) == 3
    monkeypatch.setattr(limits, "TOKENS_MAX", 2)
    with pytest.raises(ConfigError, match="lists 3 tokens, above the limit of 2"):
        read_tokens(path)
