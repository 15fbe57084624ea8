"""`tutti status --watch`: polls every gateway of the group, and shows a live table, or a line for each change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tutti import limits
from tutti.common.address import Address, parse_url
from tutti.errors import TuttiError
from tutti.io.admin import AdminClient
from tutti_gateway.cli.common.output import cell_text, on_terminal, print_json

ANSWER_S_MAX = 2.0
#: A gateway that takes longer to answer counts as missing until it answers.
LATE_S = 0.5
NO_ANSWER = "no answer"
_ROUNDS = 2  # reconnect once: a gateway that is not reachable then is down
_STEP_S = 0.25  # polling interval of the stop flag
_COLUMNS = ("gateway", "address", "state", "view", "frontier", "lag", "heard", "reason")
_STYLES = {"primary": "green", "minority": "yellow", "joining": "yellow", "leaving": "yellow", "halted": "red", NO_ANSWER: "red"}


class GatewayState(NamedTuple):
    """State of one gateway at one moment.

    `frontier` is its next offset, `lag` the decided positions that it lacks; None if unknown. `heard` is the time (UTC) of the last
    answer of a gateway that does not answer now; None if it answers, or never did.
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
class _Poll:
    """Poll state of one address.

    `last_answer` is the last answer and `heard` its time (UTC). `asked_s` is the time of a pending request (monotonic clock), None
    if there is none. `trouble` is the error of the last request, "" if it succeeded or is pending.
    """

    last_answer: dict[str, Any] | None = None
    heard: str | None = None
    asked_s: float | None = None
    trouble: str = ""

    def missing(self, now_s: float) -> str:
        """Return why the current state is unknown; "" if it is known."""
        late = self.asked_s is not None and now_s - self.asked_s >= LATE_S
        return self.trouble or (_LATE if late else "")


_LATE = f"no answer for {LATE_S:g} s or more"


class Watch:
    """Polls each gateway in its own thread, so that a hanging one delays no other; gateways name further ones."""

    def __init__(self, addresses: Iterable[Address], interval_s: float) -> None:
        """Start polling."""
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._all: dict[Address, _Poll] = {}
        self._names: dict[Address, str] = {}
        self._stop = threading.Event()
        self._changed = threading.Event()  # a gateway has stopped answering, or answers again
        self._add(addresses)

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()

    def wait_for_all(self, limit_s: float) -> None:
        """Wait until each gateway has answered or missed its time limit."""
        until_s = time.monotonic() + limit_s
        while (now_s := time.monotonic()) < until_s:
            with self._lock:
                if all(known.last_answer or known.missing(now_s) for known in self._all.values()):
                    return
            time.sleep(0.02)

    def pause(self) -> None:
        """Wait for the next update: at once when a gateway stops answering, or answers again."""
        self._changed.wait(min(self._interval_s, LATE_S))
        self._changed.clear()

    def _add(self, addresses: Iterable[Address]) -> None:
        with self._lock:
            free = limits.ADDRESSES_MAX - len(self._all)
            new = [address for address in addresses if address not in self._all][: max(0, free)]
            self._all.update((address, _Poll()) for address in new)
        for address in new:
            threading.Thread(target=self._ask, args=(address,), name=f"watch-{address}", daemon=True).start()

    def _ask(self, address: Address) -> None:
        known = self._all[address]
        with AdminClient([address], timeout=ANSWER_S_MAX, rounds=_ROUNDS, learn=False) as control:
            while not self._stop.is_set():
                known.asked_s = time.monotonic()
                try:
                    self._record_answer(address, known, control.status())
                except TuttiError as error:
                    self._record_failure(known, control.trouble or str(error))
                self._wait(control)

    def _wait(self, control: AdminClient) -> None:
        """Wait for the next poll; return at once if the connection breaks."""
        until_s = time.monotonic() + self._interval_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set():
            if control.await_disconnect(min(left_s, _STEP_S)):
                return

    def _record_failure(self, known: _Poll, trouble: str) -> None:
        with self._lock:
            changed = not known.trouble
            known.asked_s, known.trouble = None, trouble
        if changed:
            self._changed.set()

    def _record_answer(self, address: Address, known: _Poll, last_answer: dict[str, Any]) -> None:
        found: dict[Address, str] = {}
        for name, url in last_answer.get("gateways", {}).items():
            found.update(dict.fromkeys(parse_url(url), name))
        with self._lock:
            changed = bool(known.trouble)
            known.last_answer, known.heard, known.asked_s, known.trouble = last_answer, _now(), None, ""
            self._names.update(found)
            self._names[address] = str(last_answer["gateway"])
        if changed:
            self._changed.set()
        self._add(found)

    def sights(self) -> list[GatewayState]:
        """Return the current state by name; for two addresses of one gateway (host name and IP), prefer one that answers."""
        now_s = time.monotonic()
        with self._lock:
            all_known = {address: (replace(known), known.missing(now_s)) for address, known in self._all.items()}
            names = dict(self._names)
        answers = [known.last_answer for known, missing in all_known.values() if known.last_answer and not missing]
        found: dict[str, GatewayState] = {}
        for address, (known, missing) in all_known.items():
            sight = _sight(names.get(address, ""), address, known, missing, answers)
            key = sight.gateway or sight.address
            if key not in found or found[key].state == NO_ANSWER:
                found[key] = sight
        return [found[key] for key in sorted(found)]


def _sight(name: str, address: Address, known: _Poll, missing: str, answers: Sequence[Mapping[str, Any]]) -> GatewayState:
    last_answer = known.last_answer
    if missing or last_answer is None:
        lags = [answer["lag"][name] for answer in answers if name in answer.get("lag", {})]
        reason = f"{missing}; its last known state was {last_answer['state']}" if last_answer else missing
        return GatewayState(name, str(address), NO_ANSWER, "", None, max(lags, default=None), known.heard, reason)
    view = str(last_answer["view"]["text"]) if last_answer["view"]["id"] else ""
    coordinates = ", coordinates" if view and last_answer["view"]["coordinator"] == name else ""
    lag = last_answer["lag"].get(name)
    return GatewayState(
        name, str(address), last_answer["state"], view + coordinates, last_answer["frontier"], lag, None, last_answer["reason"]
    )


def watch(url: str, interval_s: float, as_json: bool, ends: Callable[[], bool] = bool) -> None:
    """Show the gateways until interrupted, or until `ends` returns true."""
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

    with Live(_table(watching.sights()), auto_refresh=False) as live:
        while not ends():
            watching.pause()
            live.update(_table(watching.sights()), refresh=True)


def _table(sights: Iterable[GatewayState]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", caption=_now(), caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("frontier", "lag") else "left", overflow="fold")
    for sight in sights:
        shown = sight._replace(heard=_age_text(sight.heard))
        table.add_row(*(escape(cell_text(value)) for value in shown), style=_STYLES.get(sight.state, "yellow"))
    return table


def _write(watching: Watch, as_json: bool, ends: Callable[[], bool]) -> None:
    """Write a line for each change: all gateways as JSON, or each changed gateway with tabs between its fields."""
    before: list[GatewayState] = []
    if not as_json:
        print("\t".join(("time", *_COLUMNS)), flush=True)
    while not ends():
        sights = watching.sights()
        if as_json and sights != before:
            print_json({"time": _now(), "gateways": [sight._asdict() for sight in sights]})
        elif not as_json:
            for sight in sights:
                if sight not in before:
                    print("\t".join((_now(), *(cell_text(value) for value in sight))), flush=True)
        before = sights
        watching.pause()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _age_text(heard: str | None) -> str | None:
    return None if heard is None else f"{(datetime.now(UTC) - datetime.fromisoformat(heard)).total_seconds():.0f} s ago"
