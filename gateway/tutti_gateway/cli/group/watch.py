"""`tutti status --watch`: polls every gateway of the group, and shows a live table, or prints a line for each change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tutti import limits
from tutti.common.gateway_url import Address, parse_url
from tutti.errors import TuttiError
from tutti.io.admin import AdminClient
from tutti_gateway.cli.common.output import cell_text, on_terminal, print_json

ANSWER_S_MAX = 2.0
#: Time after a request without an answer at which a gateway gets the state "no answer".
LATE_S = 0.5
NO_ANSWER = "no answer"
_ROUNDS = 2  # number of attempts to connect, after which a gateway counts as not reachable
_STEP_S = 0.25  # interval at which a polling thread checks the stop flag
_COLUMNS = ("gateway", "address", "state", "view", "frontier", "lag", "heard", "reason")
_STYLES = {"primary": "green", "minority": "yellow", "joining": "yellow", "leaving": "yellow", "halted": "red", NO_ANSWER: "red"}


class GatewayState(NamedTuple):
    """One line of the table: the state of one gateway.

    Attributes:
        frontier: next offset of the gateway, or None if unknown.
        lag: number of decided positions that the gateway lacks, or None if unknown.
        heard: time (UTC) of the gateway's last answer, or None if the gateway answers now or has never answered.
        reason: reason why the gateway does not answer, or why it takes no records; "" if there is no problem.
    """

    gateway: str
    address: str
    state: str
    view: str
    frontier: int | None
    lag: int | None
    heard: str | None
    reason: str


@dataclass
class _PollState:
    """Result of the polls of one address.

    Attributes:
        last_answer: status document of the last successful request, or None before the first answer.
        heard: time (UTC) of the last answer, or None before the first answer.
        request_started_s: start of the pending request on the monotonic clock, or None if no request is pending.
        error: error of the last request, or "" if the request succeeded.
    """

    last_answer: dict[str, Any] | None = None
    heard: str | None = None
    request_started_s: float | None = None
    error: str = ""

    def missing(self, now_s: float) -> str:
        """Return the reason why the gateway counts as not answering, or "" if it answers."""
        late = self.request_started_s is not None and now_s - self.request_started_s >= LATE_S
        return self.error or (_LATE if late else "")


_LATE = f"no answer for {LATE_S:g} s or more"


class Watch:
    """Polls each gateway in a separate thread, so that a hanging gateway delays no other gateway.

    The answers of the gateways contain the addresses of further gateways to poll.
    """

    def __init__(self, addresses: Iterable[Address], interval_s: float) -> None:
        """Start to poll each address every `interval_s` seconds."""
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._all: dict[Address, _PollState] = {}
        self._names: dict[Address, str] = {}
        self._stop = threading.Event()
        self._changed = threading.Event()  # is set when a gateway stops answering, and when it answers again
        self._add(addresses)

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()

    def wait_for_all(self, limit_s: float) -> None:
        """Wait until each gateway has answered or counts as not answering, at most `limit_s` seconds."""
        until_s = time.monotonic() + limit_s
        while (now_s := time.monotonic()) < until_s:
            with self._lock:
                if all(poll.last_answer or poll.missing(now_s) for poll in self._all.values()):
                    return
            time.sleep(0.02)

    def pause(self) -> None:
        """Wait one interval. Return earlier if a gateway stops answering or answers again."""
        self._changed.wait(min(self._interval_s, LATE_S))
        self._changed.clear()

    def _add(self, addresses: Iterable[Address]) -> None:
        with self._lock:
            free = limits.ADDRESSES_MAX - len(self._all)
            new = [address for address in addresses if address not in self._all][: max(0, free)]
            self._all.update((address, _PollState()) for address in new)
        for address in new:
            threading.Thread(target=self._poll_gateway, args=(address,), name=f"watch-{address}", daemon=True).start()

    def _poll_gateway(self, address: Address) -> None:
        poll = self._all[address]
        with AdminClient([address], timeout=ANSWER_S_MAX, rounds=_ROUNDS, learn=False) as control:
            while not self._stop.is_set():
                poll.request_started_s = time.monotonic()
                try:
                    self._record_answer(address, poll, control.status())
                except TuttiError as error:
                    self._record_failure(poll, control.trouble or str(error))
                self._wait(control)

    def _wait(self, control: AdminClient) -> None:
        """Wait until the next poll is due. Return earlier if the connection breaks, so that the table shows the loss at once."""
        until_s = time.monotonic() + self._interval_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set():
            if control.await_disconnect(min(left_s, _STEP_S)):
                return

    def _record_failure(self, poll: _PollState, error: str) -> None:
        with self._lock:
            changed = not poll.error
            poll.request_started_s, poll.error = None, error
        if changed:
            self._changed.set()

    def _record_answer(self, address: Address, poll: _PollState, last_answer: dict[str, Any]) -> None:
        found: dict[Address, str] = {}
        for name, url in last_answer.get("gateways", {}).items():
            found.update(dict.fromkeys(parse_url(url), name))
        with self._lock:
            changed = bool(poll.error)
            poll.last_answer, poll.heard, poll.request_started_s, poll.error = last_answer, _now(), None, ""
            self._names.update(found)
            self._names[address] = str(last_answer["gateway"])
        if changed:
            self._changed.set()
        self._add(found)

    def states(self) -> list[GatewayState]:
        """Return the state of each gateway, sorted by name. If a gateway has two addresses, an address that answers is used."""
        now_s = time.monotonic()
        with self._lock:
            polls = {address: (replace(poll), poll.missing(now_s)) for address, poll in self._all.items()}
            names = dict(self._names)
        answers = [poll.last_answer for poll, missing in polls.values() if poll.last_answer and not missing]
        found: dict[str, GatewayState] = {}
        for address, (poll, missing) in polls.items():
            gateway = _gateway_state(names.get(address, ""), address, poll, missing, answers)
            key = gateway.gateway or gateway.address
            if key not in found or found[key].state == NO_ANSWER:
                found[key] = gateway
        return [found[key] for key in sorted(found)]


def _gateway_state(
    name: str, address: Address, poll: _PollState, missing: str, answers: Sequence[Mapping[str, Any]]
) -> GatewayState:
    last_answer = poll.last_answer
    if missing or last_answer is None:
        lags = [answer["lag"][name] for answer in answers if name in answer.get("lag", {})]
        reason = f"{missing}; its last known state was {last_answer['state']}" if last_answer else missing
        return GatewayState(name, str(address), NO_ANSWER, "", None, max(lags, default=None), poll.heard, reason)
    view = str(last_answer["view"]["text"]) if last_answer["view"]["id"] else ""
    coordinates = ", coordinates" if view and last_answer["view"]["coordinator"] == name else ""
    lag = last_answer["lag"].get(name)
    trouble = last_answer.get("security", {}).get("trouble", "")
    reason = "; ".join(filter(None, [last_answer["reason"], trouble]))
    return GatewayState(name, str(address), last_answer["state"], view + coordinates, last_answer["frontier"], lag, None, reason)


def watch(url: str, interval_s: float, as_json: bool, ends: Callable[[], bool] = bool) -> None:
    """Show the gateways of `url` until Ctrl-C, or until `ends()` returns true."""
    watching = Watch(parse_url(url), interval_s)
    try:
        watching.wait_for_all(ANSWER_S_MAX + 1)
        if on_terminal() and not as_json:
            _draw(watching, ends)
        else:
            _write(watching, as_json, ends)
    finally:
        watching.close()


def _draw(watching: Watch, ends: Callable[[], bool]) -> None:
    from rich.live import Live

    with Live(_table(watching.states()), auto_refresh=False) as live:
        while not ends():
            watching.pause()
            live.update(_table(watching.states()), refresh=True)


def _table(states: Iterable[GatewayState]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", caption=_now(), caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("frontier", "lag") else "left", overflow="fold")
    for gateway in states:
        shown = gateway._replace(heard=_age_text(gateway.heard))
        table.add_row(*(escape(cell_text(value)) for value in shown), style=_STYLES.get(gateway.state, "yellow"))
    return table


def _write(watching: Watch, as_json: bool, ends: Callable[[], bool]) -> None:
    """Print a line for each change: all gateways' states as JSON, or the changed gateway's state as tab-separated text."""
    before: list[GatewayState] = []
    if not as_json:
        print("\t".join(("time", *_COLUMNS)), flush=True)
    while not ends():
        states = watching.states()
        if as_json and states != before:
            print_json({"time": _now(), "gateways": [gateway._asdict() for gateway in states]})
        elif not as_json:
            for gateway in states:
                if gateway not in before:
                    print("\t".join((_now(), *(cell_text(value) for value in gateway))), flush=True)
        before = states
        watching.pause()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _age_text(heard: str | None) -> str | None:
    return None if heard is None else f"{(datetime.now(UTC) - datetime.fromisoformat(heard)).total_seconds():.0f} s ago"
