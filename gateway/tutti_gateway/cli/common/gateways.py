"""Finds the gateways of a group for a command: fails soon, with the reason, if no gateway runs or the group has no majority."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tutti import limits
from tutti.errors import TuttiError, Unavailable
from tutti_gateway.cli.common.waiting import TimeLimit, showing_reason

if TYPE_CHECKING:
    from tutti.common.gateway_url import Address
    from tutti.io.admin import AdminClient

#: Time without a majority after which a command fails. An ordinary failover takes less, and so does a restart of one gateway.
GRACE_S = 2.0
SILENT_S = 1.0  # time without an answer after which a command names the address for which it waits
#: Time for the status of one gateway. An answer takes about four round trips, and a round trip around the world about 0.3 s.
_STATUS_S = 1.5
_TITLE = "waiting for a gateway"


def await_gateway(url: str) -> None:
    """Wait until a gateway of `url` answers, and show on standard error why the command waits.

    Raises:
        Unavailable: no process listens at any address (raised at once), or no gateway answered in time.
    """
    from tutti.io.admin import AdminClient

    began_s = time.monotonic()
    with AdminClient(url, await_start=False) as control:

        def reason() -> str:
            # The client reports a suspended gateway only after several seconds, but a command must not wait so long in silence.
            late = time.monotonic() - began_s >= SILENT_S
            return control.trouble or (f"{control.address} has not answered yet" if late else "")

        with showing_reason(_TITLE, reason):
            control.welcome()


@contextmanager
def change_client(url: str, timeout_s: float = limits.REQUEST_TIMEOUT_US / 1e6) -> Iterator[tuple[AdminClient, TimeLimit]]:
    """Yield a client for requests that need a majority, and the time limit. A request fails soon if the group has no majority.

    Raises:
        Unavailable: no process listens at any address (raised at once), or no gateway answered in time.
    """
    from tutti.io.admin import AdminClient

    await_gateway(url)
    limit = TimeLimit(timeout_s)
    with AdminClient(url, timeout=timeout_s, check=Majority(url).check) as control:
        yield control, limit


class NoMajority(Unavailable):
    """No gateway of the group hears a majority."""


class Majority:
    """Checks whether any gateway of a group still hears a majority."""

    def __init__(self, url: str) -> None:
        """Store the addresses of `url`. Each check also asks the gateways that the answers name."""
        from tutti.common.gateway_url import parse_url

        self._addresses = parse_url(url)
        self._lost_s: float | None = None  # monotonic time of the first check without a majority

    def check(self) -> None:
        """Ask all gateways for their status, and return if one of them hears a majority, or if none of them answers.

        Raises:
            NoMajority: no gateway has heard a majority for `GRACE_S`. The text names the gateways that this command reaches.
        """
        now_s = time.monotonic()
        answers = self._answers()
        if not any(isinstance(answer, dict) for answer in answers.values()):
            return  # gateways that are slow may have a majority, and the request itself reports gateways that are down
        if any(map(_hears_majority, answers.values())):
            self._lost_s = None
        elif self._lost_s is None:
            self._lost_s = now_s
        elif now_s - self._lost_s >= GRACE_S:
            raise NoMajority(_no_majority_text(answers))

    def _answers(self) -> dict[Address, dict[str, Any] | str]:
        """Return the status of each gateway, or the reason why it did not answer. Stop when a gateway hears a majority."""
        from tutti.common.gateway_url import parse_url

        answers: dict[Address, dict[str, Any] | str] = {}
        wanted = self._addresses
        while wanted:
            with ThreadPoolExecutor(len(wanted)) as pool:
                answers |= dict(zip(wanted, pool.map(_status_or_error, wanted), strict=True))
            if any(map(_hears_majority, answers.values())):
                break
            urls = [url for answer in answers.values() if isinstance(answer, dict) for url in answer["gateways"].values()]
            named = dict.fromkeys(address for url in urls for address in parse_url(url))
            wanted = [address for address in named if address not in answers]
        return answers


def _status_or_error(address: Address) -> dict[str, Any] | str:
    from tutti.io.admin import AdminClient

    with AdminClient([address], _STATUS_S, rounds=1, learn=False) as control:
        try:
            return control.status()
        except TuttiError as error:
            return control.trouble or str(error)


def _hears_majority(answer: dict[str, Any] | str) -> bool:
    # An earlier release does not report `majority`, so the command then waits until its own time limit.
    return isinstance(answer, dict) and bool(answer.get("majority", True))


def _no_majority_text(answers: Mapping[Address, dict[str, Any] | str]) -> str:
    """Return the error text for a group without a majority: which gateways answered, which did not, and what to do."""
    reached = {address: answer for address, answer in answers.items() if isinstance(answer, dict)}
    names = {address: name for answer in reached.values() for name, url in answer["gateways"].items() for address in _at(url)}
    shown = "; ".join(f"{one['gateway']} ({one['state']}: {one['reason'] or 'no reason known'})" for one in reached.values())
    others = [f"{names.get(address, address)} ({text})" for address, text in answers.items() if isinstance(text, str)]
    missing = f" Not reached: {', '.join(others)}." if others else ""
    if not any(one["log"] for one in reached.values()):
        return f"the group is not founded yet. Reached: {shown}.{missing} Start the missing gateways, and run the command again"
    do = (
        "Start the missing gateways, or repair the network between the gateways. The change may still be made when a "
        "majority is back: check with `tutti members` then, and run the command again if it has not been made"
    )
    force = _force_text(list(reached.values()))
    return f"the group has no majority, so it cannot complete this change. Reached: {shown}.{missing} {do}{force}"


def _force_text(reached: Sequence[Mapping[str, Any]]) -> str:
    """Return the last resort after a permanent loss, a forced roster; empty if none of the reached gateways could remain in it."""
    keep = sorted(one["gateway"] for one in reached if _can_remain(one))
    if not keep:
        return ""
    # The request is refused while a gateway is heard that it would exclude.
    others = ", ".join(sorted(one["gateway"] for one in reached if not _can_remain(one)))
    first = f"stop {others} first (no log or no vote), then " if others else ""
    then = ", and then `tutti members add` for each of the others, with an empty directory" if others else ""
    return f". Only if too many gateways are lost for good: {first}`tutti roster force --keep {','.join(keep)}`{then}"


def _can_remain(status: Mapping[str, Any]) -> bool:
    """True if a gateway can remain in a forced roster: it has a log, which names the gateway with its present disk as a voter."""
    own = (member for member in status.get("members", ()) if member["name"] == status["gateway"])
    return status["state"] != "halted" and bool(status["log"]) and all(member["voter"] for member in own)


def _at(url: str) -> list[Address]:
    from tutti.common.gateway_url import parse_url

    return parse_url(url)
