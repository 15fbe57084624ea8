"""Authorization of HTTP requests by bearer tokens, from the same token file as gateways use (docs/how-to/security.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from starlette.requests import Request

from tutti.errors import NotAllowed
from tutti.security.tokens import FULL_ACCESS, Access, Tokens
from tutti_connect.http.interface.problems import Problem

LOG = logging.getLogger("tutti.http")
_BEARER = "bearer"


class Authorizer:
    """Authorizes requests. `tokens` is None if every caller may do everything."""

    def __init__(self, path: str, name: str) -> None:
        """Read the token file; `path` is "" for none. `name` is the name of the connector.

        Raises:
            ConfigError: the file is unreadable or invalid.
        """
        self.tokens = Tokens(path) if path else None
        self._name = name
        self._logged = ""

    def refresh(self) -> None:
        """Reload the token file if it has changed, and log a failure once. The server calls this periodically."""
        if self.tokens is None:
            return
        self.tokens.refresh()
        before, self._logged = self._logged, self.tokens.trouble
        if self._logged and self._logged != before:
            LOG.error("%s", self._logged)
        elif before and not self._logged:
            LOG.info("the token file was read")

    @property
    def trouble(self) -> str:
        """Return the reason why the token file could not be reloaded; "" if it was reloaded.

        The last valid content stays in use.
        """
        return self.tokens.trouble if self.tokens is not None else ""

    @property
    def refused(self) -> Mapping[str, int]:
        """Return the number of rejected requests by reason."""
        return self.tokens.refused if self.tokens is not None else {}

    def authenticate(self, request: Request) -> Access:
        """Return the access rights of the caller.

        Raises:
            Problem: 401: the request has no valid token.
        """
        if self.tokens is None:
            return FULL_ACCESS
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            return self.tokens.authenticate(token.strip() if kind.lower() == _BEARER else None)
        except NotAllowed as error:
            message = str(error) if token else "a token is required: send the header Authorization: Bearer TOKEN"
            raise Problem(401, message, close=True) from error

    def check_produce(self, request: Request, topic: str, producer: str | None) -> None:
        """Reject a caller without the right to write to a topic, or under a producer name.

        Raises:
            Problem: 401, 403.
        """
        access = self.authenticate(request)
        self._check(lambda: access.require_produce(topic))
        if producer is not None:
            self._check(lambda: access.require_producer(f"{self._name}.{producer}"))

    def check_resume(self, request: Request, producer: str) -> None:
        """Reject a caller without the right to write under a producer name.

        Raises:
            Problem: 401, 403.
        """
        access = self.authenticate(request)
        self._check(lambda: access.require_producer(f"{self._name}.{producer}"))

    def check_read(self, request: Request, topics: Iterable[str] | None) -> Callable[[], bool]:
        """Reject a caller without the right to read the topics (None: all); return a function that repeats the check.

        A stream calls the returned function before each poll, because the token may be revoked while the stream is open.

        Raises:
            Problem: 401, 403.
        """
        access, tokens = self.authenticate(request), self.tokens
        self._check(lambda: access.require_read(topics))

        def still_allowed() -> bool:
            if tokens is None:
                return True
            tokens.refresh()
            current = tokens.current_access(access)
            return current is not None and (current.may_read_all if topics is None else all(map(current.may_read, topics)))

        return still_allowed

    def _check(self, required: Callable[[], None]) -> None:
        try:
            required()
        except NotAllowed as error:
            if self.tokens is not None:
                self.tokens.count_refused(error)
            raise Problem(403, str(error)) from error
