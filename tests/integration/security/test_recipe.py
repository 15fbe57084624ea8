"""Tests that the commands of docs/how-to/security.md make a group whose clients use keys, tokens and TLS."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import WAIT_S, serving
from tests.support.ports import free_base
from tutti import Producer, Reader

pytestmark = pytest.mark.timeout(300)
PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/security.md"
HOSTS = {"jfk": "127.0.0.1", "lga": "127.0.0.2", "ewr": "127.0.0.3"}


def commands() -> list[str]:
    """Return the first block of commands of the page, with addresses of this machine."""
    section = PAGE.read_text("utf-8").partition("## Set it up\n")[2]
    block = re.search(r"(?:^ {4}.*\n)+", section, flags=re.MULTILINE)
    assert block
    return [line.strip().replace("10.0.0.", "127.0.0.") for line in block[0].splitlines()]


def test_the_commands_of_the_page_make_a_secured_group(tmp_path: Path) -> None:
    first, *others = commands()
    assert first.startswith("tutti config init --kind secured --out tutti ")
    assert sum(line.startswith("sh certificates.sh ") for line in others) == 1
    port = free_base()
    edit = f"sed -i 's/10[.]0[.]0[.]/127.0.0./g; s/:7400/:{port}/g' tutti/*.toml"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join([first, edit, *others])
    done = subprocess.run(
        ["bash", "-ec", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "jfk.toml: valid: gateway jfk of group ingest" in done.stdout
    directory = tmp_path / "tutti"
    url = "tutti://" + ",".join(f"{host}:{port}" for host in HOSTS.values())
    with serving([Path(f"{name}.toml") for name in HOSTS], directory) as ready:
        assert [line["name"] for line in ready] == list(HOSTS)
        with Producer(url, credentials=directory / "feed.client") as producer:
            assert producer.send("flights", b"one").result(WAIT_S) == 0
        with Reader(url, topics=["flights"], start=0, credentials=directory / "jobs.client") as reader:
            assert [record.value for record in reader.records()] == [b"one"]
        for host in HOSTS.values():
            assert health(host, port + 3, ssl.create_default_context(cafile=directory / "ca.pem")) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            health("127.0.0.1", port + 3, ssl.create_default_context())


def health(host: str, port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=WAIT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()
