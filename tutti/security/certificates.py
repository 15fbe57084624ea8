"""Checks of TLS certificates: whether a certificate and its key are usable, and whether clients will accept the certificate."""

from __future__ import annotations

import errno
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from tutti.errors import ConfigError, remedy
from tutti.security.user_files import check_private, read_limited

EXPIRES_SOON_DAYS = 30
_DAY_S = 86_400
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the module `ssl` does not name
_WRONG_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH


def check_certificate(certificate: str | Path, key: str | Path) -> None:
    """Check that a certificate and its key are usable.

    Raises:
        ConfigError: a file is not readable, other users can read the key, or the two do not match.
    """
    try:
        for path in (certificate, key):
            found = read_limited(path)[1]
            if not stat.S_ISREG(found.st_mode):  # a pipe can be read only once, and the gateway reads the file again after changes
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        check_private(key, found)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"the key {key} does not belong to the certificate {certificate}: give a matching pair") from None
        reason = error.reason or str(error)
        raise ConfigError(
            f"{certificate} and {key} are not a certificate and its key ({reason}): give a matching pair in PEM format"
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{error.filename or certificate} cannot be read ({reason}): {remedy(error, 'give a PEM file')}"
        ) from None


def _no_password() -> str:
    """Return an empty password, so that OpenSSL does not ask for one on the terminal."""
    return ""


def certificate_warnings(certificate: str | Path, key: str | Path, host: str) -> Iterator[tuple[str, str]]:
    """Yield each reason for which clients will reject a certificate, with its remedy.

    Args:
        certificate: path of the certificate chain (PEM).
        key: path of its private key.
        host: name or IP address that clients connect to.
    """
    try:
        found = _handshake(certificate, key)
        begins_s, ends_s = (ssl.cert_time_to_seconds(found[name]) for name in ("notBefore", "notAfter"))
        now_s = time.time()
        renew = "install a new certificate; a running gateway loads changed files"
        if now_s >= ends_s:
            yield f"{certificate} expired at {found['notAfter']}", renew
        elif now_s < begins_s:
            yield f"{certificate} is not valid before {found['notBefore']}", "check the clock of this host, or wait"
        elif ends_s - now_s < EXPIRES_SOON_DAYS * _DAY_S:
            yield f"{certificate} expires at {found['notAfter']}, within {EXPIRES_SOON_DAYS} days", renew
        try:
            _handshake(certificate, key, host)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code not in _WRONG_HOST:
                raise
            covered = ", ".join(f"{kind} {name}" for kind, name in found.get("subjectAltName", ())) or "no host"
            what = f"{certificate} is valid for {covered}, but clients connect to {host}, and will reject it"
            script = "as certificates.sh does, which `tutti config init --kind secured` writes"
            yield what, f"issue a certificate with {_entry(host)} in its subjectAltName, {script}"
    except ssl.SSLCertVerificationError as error:
        yield f"clients will reject {certificate} ({error.verify_message})", "issue a certificate for a TLS server"
    except OSError:
        return  # `check_certificate` reports files that cannot be used


def _entry(host: str) -> str:
    try:
        return f"IP:{ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _handshake(certificate: str | Path, key: str | Path, host: str | None = None) -> dict[str, Any]:
    """Return the certificate as a client sees it after a handshake in memory, at any date, and with any authority.

    Raises:
        ssl.SSLCertVerificationError: the client rejects the certificate, for example because it does not cover `host`.
        OSError: the files are unusable.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key, password=_no_password)
    client.load_verify_locations(certificate)
    # The client trusts the certificate itself, because its authority may be unknown on this host.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    client.check_hostname = host is not None
    client.hostname_checks_common_name = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    connecting = client.wrap_bio(to_client, to_server, server_hostname=host)
    for side in (connecting, accepting, connecting):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return connecting.getpeercert() or {}
