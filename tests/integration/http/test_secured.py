"""Tests of the connector with a certificate and tokens: permitted callers are authenticated, others get the reason, and no secret
is in its log.
"""

from __future__ import annotations

import http.client
import ssl
import time
from pathlib import Path

import pytest

from tests.integration.http.connector import Front
from tests.support.certificates import certificate
from tests.support.running_group import RunningGroup
from tests.support.secured import SecuredFiles
from tests.support.waiting import wait_until
from tutti import Reader
from tutti.security.tokens import Access, change_tokens, digest_of, new_token
from tutti_gateway.core import limits


def a_token(path: Path, name: str, **rights: tuple[str, ...]) -> str:
    text = new_token()
    change_tokens(path, lambda tokens: tokens.update({name: Access(name, digest_of(text), **rights)}))  # type: ignore[arg-type]  # rights of topics alone
    return text


def test_tokens_over_tls(group: RunningGroup, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    feed = a_token(tokens, "feed", produce=("flights*",), producers=("web.feed*",))
    board = a_token(tokens, "board", read=("flights",))
    certificate(tmp_path, "front")
    top = f'tokens = "{tokens}"\n[tls]\ncertificate = "{tmp_path}/front.pem"\nkey = "{tmp_path}/front.key"'
    with Front(
        tmp_path,
        group.url,
        top=top,
        before="from tutti_connect.http import limits as l\nl.STREAM_POLL_S = l.CERTIFICATE_POLL_S = 0.1",
    ) as front:
        assert front.url.startswith("https://")
        front.trusted = ssl.create_default_context(cafile=str(tmp_path / "front.pem"))
        assert [front.get(path).status for path in ("/healthz", "/readyz", "/docs", "/v1/openapi.json")] == [200] * 4
        for answer in (front.post("flights", ["a"]), front.get("/metrics"), front.get("/v1/topics"), front.get("/v1/receipts/x")):
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        unknown = front.post("flights", ["a"], authorization=f"Bearer {new_token()}")
        assert (unknown.status, "unknown to this gateway" in unknown.json["message"]) == (401, True)
        mine, theirs = {"authorization": f"Bearer {feed}"}, {"authorization": f"bearer {board}"}
        assert front.post("flights", ["a"], **mine).status == 200
        once = {"tutti_producer": "feed-1", "tutti_sequence": "1", **mine}
        assert front.post("flights", ["b"], **once).status == 200
        assert front.post("flights", ["b"], **{**once, "tutti_producer": "other"}).status == 403
        refused = front.post("delays", ["a"], **mine)
        assert (refused.status, "'delays'" in refused.json["message"]) == (403, True)
        assert front.get("/v1/producers/feed-1", **mine).json["expected"] == 2
        assert [front.get(f"/v1/producers/{name}", **who).status for name, who in (("other", mine), ("feed-1", theirs))] == [
            403
        ] * 2
        assert front.post("flights", ["a"], **theirs).status == 403
        assert len(front.get("/v1/records?topic=flights", **theirs).lines) == 2
        assert [front.get(path, **theirs).status for path in ("/v1/records", "/v1/records?topic=delays", "/metrics")] == [
            403,
            403,
            200,
        ]
        assert [topic["topic"] for topic in front.get("/v1/topics", **theirs).json["topics"]] == ["flights"]
        link = front.link()
        link.request("GET", "/v1/records/stream?topic=flights&start=earliest", headers=theirs)
        stream = link.getresponse()
        assert stream.readline().startswith(b"retry")
        kept = tokens.read_bytes()
        tokens.write_bytes(kept + b"[tokens")  # a typo: what was read before holds, and somebody is told
        wait_until(lambda: "tokens read before stay valid" in front.told())
        assert front.get("/v1/records?topic=flights", **theirs).status == 200
        assert front.measured(**theirs)['tutti_http_tokens_trouble{connector="web"}'] == 1
        assert front.measured(**theirs)['tutti_http_tokens_refused_total{connector="web",reason="rights"}'] > 5
        tokens.write_bytes(kept)
        wait_until(lambda: front.measured(**theirs)['tutti_http_tokens_trouble{connector="web"}'] == 0)
        change_tokens(tokens, lambda all_of_them: all_of_them.pop("board"))  # type: ignore[arg-type]  # what it returns is not looked at
        assert b"data" in stream.read(), "it ends with the token"
        link.close()
        wait_until(lambda: front.get("/v1/topics", **theirs).status == 401)
        assert feed not in front.told()
        front.trusted = None
        with pytest.raises((http.client.HTTPException, OSError)):
            front.get("/healthz")
        assert front.end() == 0


def test_a_quota_of_the_connectors_own_token_delays_posts_and_refuses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = SecuredFiles(tmp_path / "house")
    change_tokens(house.file, lambda known: known.update(all=known["all"]._replace(records_per_s=100)))
    own = tmp_path / "tokens.toml"
    feed = Access("feed", digest_of("tutti_feed"), ("*",), records_per_s=1)
    change_tokens(own, lambda known: known.update(feed=feed))  # the connector accepts quotas in its file, and does not apply them
    monkeypatch.setenv("TUTTI_TOKEN_FILE", str(house.client_file("all")))
    with house.gateway() as gateway, Front(tmp_path, gateway.url, top=f'tokens = "{own}"') as front:
        begin = time.monotonic()
        for _ in range(3):
            answer = front.post("flights", [f"{number}" for number in range(100)], authorization="Bearer tutti_feed")
            assert answer.status == 200
        taken = time.monotonic() - begin
        assert taken > 3 - limits.QUOTA_BURST_US / 1e6
        with Reader(gateway.url, topics=["flights"], start="earliest") as reader:
            assert len(list(reader.records())) == 300
