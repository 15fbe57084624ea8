"""Watch of the security files: logs the problems of the token file, the public keys and the certificate for the operator."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tutti.security.certificates import CertificateWatch
from tutti.security.tokens import Tokens

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from tutti_gateway.transport.keys import Keyring

_REPEAT_S = 86_400
_NAMES = {"tokens": "the token file", "keys": "the file of public keys", "certificate": "the certificate"}


class SecurityWatch:
    """Knows the problems of a gateway's security files. Owned by the driver's thread."""

    def __init__(
        self,
        tokens: Tokens | None,
        keys: Keyring | None,
        certificate: CertificateWatch | None,
        log: FilteringBoundLogger,
    ) -> None:
        """Watch the files; None for a file that is not configured."""
        self._tokens, self._keys, self._certificate = tokens, keys, certificate
        self._log = log
        # A starting gateway logs the problems of its certificate as advice, so the first repetition is due a day later.
        started = {"certificate": certificate.trouble} if certificate is not None and certificate.trouble else {}
        self._logged = {name: (trouble, time.monotonic()) for name, trouble in started.items()}

    def check(self) -> None:
        """Log each new problem, the end of each problem, and once a day each lasting problem. Called about once a second."""
        if self._certificate is not None:
            self._certificate.refresh()
        now_s, problems = time.monotonic(), self.problems()
        for name, trouble in problems.items():
            logged, at_s = self._logged.get(name, ("", 0.0))
            if trouble != logged or now_s - at_s >= _REPEAT_S:
                self._logged[name] = trouble, now_s
                self._log.warning(f"{_NAMES[name]} has a problem", reason=trouble)
        for name in self._logged.keys() - problems.keys():
            del self._logged[name]
            self._log.info(f"{_NAMES[name]} is valid again")

    def problems(self) -> dict[str, str]:
        """Return the present problems, by file: `tokens`, `keys` and `certificate`."""
        watched = {"tokens": self._tokens, "keys": self._keys, "certificate": self._certificate}
        return {name: file.trouble for name, file in watched.items() if file is not None and file.trouble}

    def to_dict(self) -> dict[str, Any]:
        """Return the values for the status: the problems, and the end of the certificate (None: unknown).

        The result is empty without security files.
        """
        if self._tokens is None and self._keys is None and self._certificate is None:
            return {}
        problems = self.problems()
        expires = {} if self._certificate is None else {"certificate": {"expires_us": self._certificate.expires_us or None}}
        return {"trouble": "; ".join(problems.values()), "problems": problems, **expires}
