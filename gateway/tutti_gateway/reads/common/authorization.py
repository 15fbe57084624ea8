"""Authorization of callers at the ports of the reads process, and the credentials of this process at gateways' client ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyarrow import flight

from tutti.common.credentials import Credentials
from tutti.errors import NotAllowed
from tutti.security.certificates import check_certificate
from tutti.security.tokens import FULL_ACCESS, Access, Tokens
from tutti.security.user_files import file_stamp
from tutti_gateway.reads.protocol.flight_errors import ReadError
from tutti_gateway.reads.protocol.tickets import BytesEndRequest, Command, ReportRequest, decode

MIDDLEWARE = "token"
_BEARER = "bearer "


class SecurityFiles(NamedTuple):
    """Paths of the security files of a gateway; an empty path means that it has no such file."""

    secret_key: str = ""
    public_keys: str = ""
    tokens: str = ""
    tls_certificate: str = ""
    tls_key: str = ""


class ReadsAuthorizer:
    """Holds the tokens, keys and certificate of the gateway. Thread-safe.

    Attributes:
        tokens: the tokens of clients, or None if every caller may read everything.
    """

    def __init__(self, files: SecurityFiles) -> None:
        """Read the files.

        Raises:
            ConfigError: a file is invalid.
        """
        self._files = files
        self.tokens = Tokens(files.tokens) if files.tokens else None
        self._loaded_stamp = self._certificate_stamp()  # read before the files themselves, to detect a change while they are read
        if files.tls_certificate:
            check_certificate(files.tls_certificate, files.tls_key)

    def credentials(self) -> Credentials | None:
        """Read the gateway's key pair, for connections to gateways; return None if the gateway has no keys.

        Raises:
            ConfigError: a file is invalid.
        """
        files = self._files
        return Credentials.of_gateway(files.secret_key, files.public_keys) if files.secret_key else None

    @property
    def certificate(self) -> tuple[str, str] | None:
        """The certificate and its key (PEM); None if the ports are not encrypted."""
        files = self._files
        return (Path(files.tls_certificate).read_text(), Path(files.tls_key).read_text()) if files.tls_certificate else None

    def renewed(self) -> bool:
        """True if the certificate files have changed since the start of this process.

        Raises:
            ConfigError: the new certificate is invalid.
        """
        files = self._files
        if not files.tls_certificate or self._certificate_stamp() == self._loaded_stamp:
            return False
        # A renewal replaces two files, so a check between the two replacements finds a certificate and a key that do not match.
        check_certificate(files.tls_certificate, files.tls_key)
        return True

    def _certificate_stamp(self) -> object:
        return file_stamp(self._files.tls_certificate), file_stamp(self._files.tls_key)

    def access_of(self, authorization: str) -> Access:
        """Return the permissions of the token in a header `authorization`.

        Raises:
            NotAllowed: the token is missing or unknown.
        """
        if self.tokens is None:
            return FULL_ACCESS
        # RFC 9110, section 11.1, makes the name of an authentication scheme case-insensitive.
        token = authorization[len(_BEARER) :].strip() if authorization.lower().startswith(_BEARER) else ""
        return self.tokens.authenticate(token)

    def caller(self, context: flight.ServerCallContext) -> Access:
        """Return the permissions of the caller of a Flight call.

        Raises:
            NotAllowed: the token is missing or unknown.
        """
        if self.tokens is None:
            return FULL_ACCESS
        header = context.get_middleware(MIDDLEWARE)
        return self.access_of(header.authorization if isinstance(header, AuthorizationHeader) else "")

    def enforce(self, check: Callable[[], None]) -> None:
        """Run an authorization check, and count its refusal.

        Raises:
            NotAllowed: the check refuses.
        """
        try:
            check()
        except NotAllowed as error:
            if self.tokens is not None:
                self.tokens.count_refused(error)
            raise

    def middleware(self) -> dict[str, flight.ServerMiddlewareFactory] | None:
        """Return the Flight middleware that stores each call's header `authorization`; None if callers need no token."""
        return None if self.tokens is None else {MIDDLEWARE: AuthorizationMiddleware()}

    def facts(self) -> dict[str, object]:
        """Return the values for the status: the problem of the token file, and refusals by reason."""
        return {} if self.tokens is None else {"trouble": self.tokens.trouble, "refused": self.refused()}

    def refused(self) -> dict[str, int]:
        """Return how many callers were rejected, by reason."""
        return {} if self.tokens is None else dict(self.tokens.refused)


@contextmanager
def hints_for(access: Access) -> Iterator[None]:
    """Remove the hint from a `ReadError` raised within this context, unless the caller may read everything.

    A hint may contain names of topics and gateways that the caller must not learn.
    """
    try:
        yield
    except ReadError as error:
        if error.hint and not access.may_read_all:
            raise error.without_hint() from None
        raise


class AuthorizationHeader(flight.ServerMiddleware):
    """Middleware of one call: holds the call's header `authorization`."""

    def __init__(self, authorization: str) -> None:
        """Store the header for the duration of the call."""
        self.authorization = authorization


class AuthorizationMiddleware(flight.ServerMiddlewareFactory):
    """Stores the header `authorization` of each call.

    This middleware refuses no call, because the Flight library would send an error of the middleware without its code.
    """

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str] | list[bytes]]) -> AuthorizationHeader:
        """Return the middleware of a new call."""
        del info
        value = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), "")
        return AuthorizationHeader(value.decode(errors="replace") if isinstance(value, bytes) else value)


#: Actions that every authenticated caller may use, because they return no records.
_FOR_ALL = frozenset({"frontier", "offset_for_time", "ticks", "tick_end", "lanes", "topics", "readers", "passed", "queries"})


def check_action(access: Access, kind: str, body: bytes) -> None:
    """Check that a caller may use an action.

    Raises:
        NotAllowed: the caller has no permission for the action.
        ReadError: the body is malformed.
    """
    if kind in _FOR_ALL:
        return
    if kind == "plan":
        access.require_read(decode(Command, body, "the body of plan").topics)
    elif kind == "bytes_end":
        access.require_read(decode(BytesEndRequest, body, "the body of bytes_end").topics)
    elif kind == "save_offset":
        access.require_reader()
    elif kind == "report":  # a report also saves an offset
        access.require_reader()
        access.require_read(decode(ReportRequest, body, "the body of report").topics)
    else:
        access.require_admin("list all producers" if kind == "producers" else f"ask for {kind[:100]!r}")
