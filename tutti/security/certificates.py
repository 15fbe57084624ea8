"""Checks of TLS certificates: whether a certificate and its key are usable, and whether and how long clients accept it."""

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
from tutti.security.user_files import FileWatcher, check_private, file_stamp, read_limited

EXPIRES_SOON_DAYS = 30
_DAY_S = 86_400
_CHECK_S = 3600  # the state of an unchanged certificate changes only with time
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


class CertificateWatch:
    """Watches the certificate of a gateway: when it expires, and why clients reject it or will soon reject it. Used by one thread.

    Attributes:
        expires_us: end of validity, us since 1970, UTC; 0 if the certificate cannot be read.
        trouble: the reasons why clients reject the certificate or soon will, with the remedies; empty for a good certificate.
    """

    def __init__(self, certificate: str | Path, key: str | Path, host: str) -> None:
        """Read the certificate; `host` is the name or IP address that clients connect to."""
        self._certificate, self._key, self._host = certificate, key, host
        self._watchers = [FileWatcher(path, file_stamp(path)) for path in (certificate, key)]
        self._checked_s = 0.0
        self._read()

    def refresh(self) -> None:
        """Check the certificate again if a file has changed, or if an hour has passed."""
        changed = [(watcher, stamp) for watcher in self._watchers if (stamp := watcher.check()) is not None]
        if not changed and 0 <= time.time() - self._checked_s < _CHECK_S:
            return
        for watcher, stamp in changed:
            watcher.mark_read(stamp)
        self._read()

    def _read(self) -> None:
        self._checked_s = time.time()
        try:
            check_certificate(self._certificate, self._key)
        except ConfigError as error:
            # Servers load a changed certificate only if it is usable, so `expires_us` of the previous one stays right.
            self.trouble = f"the new certificate is invalid, and the old one stays in use: {error}"
            return
        self.expires_us = _expires_us(self._certificate, self._key)
        found = certificate_warnings(self._certificate, self._key, self._host)
        self.trouble = "; ".join(f"{what}: {do}" for what, do in found)

    expires_us = 0


def _expires_us(certificate: str | Path, key: str | Path) -> int:
    """Return the end of validity of a usable certificate, us since 1970, UTC; 0 if no client can use the certificate."""
    try:
        return ssl.cert_time_to_seconds(_handshake(certificate, key)["notAfter"]) * 1_000_000
    except OSError:
        return 0


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
        except UnicodeError:
            yield f"clients cannot connect to {host!r}, which is not a valid host name", "correct the name"
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
