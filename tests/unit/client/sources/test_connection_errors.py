"""Tests of errors of the reads port: failed connections have plain words and a remedy, not gRPC's words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import flight

from tests.support.certificates import certificate
from tests.support.ports import free_port
from tutti.errors import Unavailable
from tutti.sources.flight_pool import FLIGHT_EXCEPTIONS, translate


def failed(location: str, tls_root_certs: str | None = None) -> str:
    client = flight.FlightClient(location, tls_root_certs=tls_root_certs)
    with pytest.raises(FLIGHT_EXCEPTIONS) as error:
        list(client.do_action(flight.Action("status", b""), flight.FlightCallOptions(timeout=10)))
    told = translate(error.value)
    assert type(told) is Unavailable
    assert not any(word in str(told) for word in ("UNKNOWN", "failed to connect", "addresses", "Flight", "SSL_"))
    return str(told)


def test_a_refused_connection_is_named() -> None:
    assert failed(f"grpc://127.0.0.1:{free_port()}").startswith("the reads port refuses connections: ")


def test_an_unknown_host_name_is_named() -> None:
    assert failed("grpc://no.such.host.invalid:7402").startswith("the host name of the reads port is unknown: ")


def test_each_failure_of_tls_is_named(tmp_path: Path) -> None:
    certificate(tmp_path, "here")
    certificate(tmp_path, "other")
    here, key, other = (tmp_path.joinpath(name).read_text() for name in ("here.pem", "here.key", "other.pem"))
    with (
        flight.FlightServerBase("grpc+tls://127.0.0.1:0", tls_certificates=[(here, key)]) as secured,
        flight.FlightServerBase("grpc://127.0.0.1:0") as plain,
    ):
        secure = f"grpc+tls://127.0.0.1:{secured.port}"
        untrusted = "TLS failed: the certificate of the reads port is not trusted here"
        assert failed(secure, tls_root_certs=other).startswith(untrusted)
        assert failed(secure).startswith(untrusted)
        assert failed(secure, tls_root_certs="no PEM").startswith("TLS failed: `certificates` in the credentials contains no valid")
        spoken = failed(f"grpc+tls://127.0.0.1:{plain.port}", tls_root_certs=here)
        assert spoken.startswith("TLS failed: the reads port does not speak TLS")
        assert failed(f"grpc://127.0.0.1:{secured.port}").endswith("or it needs TLS; see the gateway's log")


def test_an_expired_certificate_is_named(tmp_path: Path) -> None:
    certificate(tmp_path, "old", days=-1)
    old, key = (tmp_path.joinpath(name).read_text() for name in ("old.pem", "old.key"))
    with flight.FlightServerBase("grpc+tls://127.0.0.1:0", tls_certificates=[(old, key)]) as expired:
        said = failed(f"grpc+tls://127.0.0.1:{expired.port}", tls_root_certs=old)
    assert said.startswith("TLS failed: the certificate of the reads port has expired (or the clock")


def test_a_failed_handshake_writes_no_lines_of_grpc_unless_the_user_asks(tmp_path: Path) -> None:
    certificate(tmp_path, "here")
    certificate(tmp_path, "other")
    here, key = (tmp_path.joinpath(name).read_text() for name in ("here.pem", "here.key"))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pyarrow import flight\n"
        "from tutti.sources import flight_pool\n"
        "client = flight.FlightClient(sys.argv[1], tls_root_certs=Path(sys.argv[2]).read_text())\n"
        "try:\n"
        "    list(client.do_action(flight.Action('status', b'')))\n"
        "except flight_pool.FLIGHT_EXCEPTIONS:\n"
        "    print('failed')\n"
    )

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
        command = [sys.executable, "-c", code, f"grpc+tls://127.0.0.1:{secured.port}", str(tmp_path / "other.pem")]
        return subprocess.run(command, env=plain | variables, capture_output=True, text=True, check=True)

    with flight.FlightServerBase("grpc+tls://127.0.0.1:0", tls_certificates=[(here, key)]) as secured:
        silent, asked = run(), run(GRPC_VERBOSITY="INFO")
    assert (silent.stdout, silent.stderr) == ("failed\n", "")
    assert "Handshake failed" in asked.stderr


def test_an_unknown_text_of_grpc_stays() -> None:
    assert str(translate(flight.FlightUnavailableError("something new\nmore"))).startswith("something new")
