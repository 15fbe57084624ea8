"""Who may read what at the ports of the reads process, and with what it is let in at gateways' client ports itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pyarrow import flight

from tutti.common.credentials import Credentials
from tutti.errors import NotAllowed
from tutti.security.key_files import check_certificate, stamp
from tutti.security.tokens import ANYBODY, Access, Tokens
from tutti_gateway.reads.protocol.flight_errors import Fault
from tutti_gateway.reads.protocol.tickets import BytesEndAsk, Command, ReportAsk, decode

MIDDLEWARE = "token"
_BEARER = "bearer "


class Files(NamedTuple):
    """Paths of what secures a gateway; empty: it has none of it."""

    secret_key: str = ""
    public_keys: str = ""
    tokens: str = ""
    tls_certificate: str = ""
    tls_key: str = ""


class Guard:
    """Knows tokens, keys and the certificate. Thread-safe.

    Attributes:
        tokens: of clients; None where everybody may do everything.
    """

    def __init__(self, files: Files) -> None:
        """Read the files.

        Raises:
            ConfigError: one of them is wrong.
        """
        self._files = files
        self.tokens = Tokens(files.tokens) if files.tokens else None
        self._seen = self._certificate_stamp()
        if files.tls_certificate:
            check_certificate(files.tls_certificate, files.tls_key)

    def credentials(self) -> Credentials | None:
        """What this process is let in with at gateways: the key of its own, as the files have it now; None without keys.

        Raises:
            ConfigError: a file is wrong.
        """
        files = self._files
        return Credentials.of_gateway(files.secret_key, files.public_keys) if files.secret_key else None

    @property
    def certificate(self) -> tuple[str, str] | None:
        """The certificate and its key (PEM); None where nothing is encrypted."""
        files = self._files
        return (Path(files.tls_certificate).read_text(), Path(files.tls_key).read_text()) if files.tls_certificate else None

    def renewed(self) -> bool:
        """Whether there is another certificate since this process began, and a good one."""
        files = self._files
        if not files.tls_certificate or self._certificate_stamp() == self._seen:
            return False
        check_certificate(files.tls_certificate, files.tls_key)
        return True

    def _certificate_stamp(self) -> object:
        return stamp(self._files.tls_certificate), stamp(self._files.tls_key)

    def who(self, authorization: str) -> Access:
        """Who shows this in the header `authorization`.

        Raises:
            NotAllowed: nobody who is known.
        """
        if self.tokens is None:
            return ANYBODY
        token = authorization[len(_BEARER) :].strip() if authorization.lower().startswith(_BEARER) else ""
        return self.tokens.who(token)

    def caller(self, context: flight.ServerCallContext) -> Access:
        """Who calls.

        Raises:
            NotAllowed: nobody who is known.
        """
        if self.tokens is None:
            return ANYBODY
        shown = context.get_middleware(MIDDLEWARE)
        return self.who(shown.authorization if isinstance(shown, Shown) else "")

    def checked(self, check: Callable[[], None]) -> None:
        """Do a check of what somebody may do, and count it where they may not.

        Raises:
            NotAllowed: they may not.
        """
        try:
            check()
        except NotAllowed as error:
            if self.tokens is not None:
                self.tokens.count_refused(error)
            raise

    def middleware(self) -> dict[str, flight.ServerMiddlewareFactory] | None:
        """What notes the token of a call."""
        return None if self.tokens is None else {MIDDLEWARE: Noting()}

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {} if self.tokens is None else {"trouble": self.tokens.trouble, "refused": self.refused()}

    def refused(self) -> dict[str, int]:
        """Return how many callers were rejected, by reason."""
        return {} if self.tokens is None else dict(self.tokens.refused)


@contextmanager
def hints_for(access: Access) -> Iterator[None]:
    """What is said within has no names in it that the caller did not say, unless he may read everything."""
    try:
        yield
    except Fault as fault:
        if fault.hint and not access.may_read_all:
            raise fault.without_hint() from None
        raise


class Shown(flight.ServerMiddleware):
    """What a call showed."""

    def __init__(self, authorization: str) -> None:
        """Keep it for as long as the call lasts."""
        self.authorization = authorization


class Noting(flight.ServerMiddlewareFactory):
    """Notes what each call shows. It refuses nobody: what is raised in here does not reach the caller as it is meant."""

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str] | list[bytes]]) -> Shown:
        """A call begins."""
        del info
        value = next((values[0] for name, values in headers.items() if name.lower() == "authorization" and values), "")
        return Shown(value.decode(errors="replace") if isinstance(value, bytes) else value)


#: Actions that anybody who is known may ask: they tell of no topic's records.
_FOR_ALL = frozenset({"frontier", "offset_for_time", "ticks", "tick_end", "lanes", "topics", "readers", "passed", "queries"})


def check_action(access: Access, kind: str, body: bytes) -> None:
    """Refuse an action that somebody may not ask.

    Raises:
        NotAllowed: they may not.
        Fault: the body is malformed.
    """
    if kind in _FOR_ALL:
        return
    if kind == "plan":
        access.require_read(decode(Command, body, "the body of plan").topics)
    elif kind == "bytes_end":
        access.require_read(decode(BytesEndAsk, body, "the body of bytes_end").topics)
    elif kind == "save_offset":
        access.require_reader()
    elif kind == "report":  # it saves an offset, too
        access.require_reader()
        access.require_read(decode(ReportAsk, body, "the body of report").topics)
    else:
        access.require_admin("list all producers" if kind == "producers" else f"ask for {kind[:100]!r}")
