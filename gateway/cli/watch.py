"""`tutti status --watch`: every gateway of the group, asked again and again; a table that is drawn anew, or a line a change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.cli.output import cell_text, on_terminal, print_json
from gateway.client.control import Control
from gateway.client.url import Address, parse_url
from gateway.core import limits
from gateway.errors import TuttiError

ANSWER_S_MAX = 2.0
NO_ANSWER = "no answer"
_COLUMNS = ("gateway", "address", "state", "view", "frontier", "lag", "reason")
_STYLES = {"primary": "green", "minority": "yellow", "joining": "yellow", "leaving": "yellow", "halted": "red", NO_ANSWER: "red"}


class Sight(NamedTuple):
    """One gateway at one moment: `frontier` is its next offset, `lag` decided positions that it lacks; None where nobody says."""

    gateway: str
    address: str
    state: str
    view: str
    frontier: int | None
    lag: int | None
    reason: str


class Watch:
    """Asks each gateway in a thread of its own, so that one that hangs keeps nobody waiting; gateways name further ones."""

    def __init__(self, addresses: Iterable[Address], interval_s: float) -> None:
        """Begin to ask."""
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._told: dict[Address, dict[str, Any] | str] = {}  # a status, or why there is none
        self._names: dict[Address, str] = {}
        self._stop = threading.Event()
        self._follow(addresses)

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()

    def wait_for_all(self, limit_s: float) -> None:
        """Wait until each was asked once."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s and any(told == "" for told in self._told.copy().values()):
            time.sleep(0.02)

    def _follow(self, addresses: Iterable[Address]) -> None:
        with self._lock:
            room = limits.ADDRESSES_MAX - len(self._told)
            new = [address for address in addresses if address not in self._told][: max(0, room)]
            self._told.update(dict.fromkeys(new, ""))
        for address in new:
            threading.Thread(target=self._ask, args=(address,), name=f"watch-{address}", daemon=True).start()

    def _ask(self, address: Address) -> None:
        with Control([address], timeout=ANSWER_S_MAX, learn=False) as control:
            while True:
                try:
                    told: dict[str, Any] | str = control.status()
                except TuttiError as error:
                    told = control.trouble or str(error)
                self._take(address, told)
                if self._stop.wait(self._interval_s):
                    return

    def _take(self, address: Address, told: dict[str, Any] | str) -> None:
        found: dict[Address, str] = {}
        if isinstance(told, dict):
            for name, url in told.get("gateways", {}).items():
                found.update(dict.fromkeys(parse_url(url), name))
        with self._lock:
            self._told[address] = told
            self._names.update(found)
            if isinstance(told, dict):
                self._names[address] = str(told["gateway"])
        self._follow(found)

    def sights(self) -> list[Sight]:
        """What is known now, by name; of two addresses of one gateway (a host by name and by number) one that answers."""
        with self._lock:
            all_told, names = dict(self._told), dict(self._names)
        answers = [told for told in all_told.values() if isinstance(told, dict)]
        found: dict[str, Sight] = {}
        for address, told in all_told.items():
            sight = _sight(names.get(address, ""), address, told, answers)
            key = sight.gateway or sight.address
            if key not in found or found[key].state == NO_ANSWER:
                found[key] = sight
        return [found[key] for key in sorted(found)]


def _sight(name: str, address: Address, told: Mapping[str, Any] | str, answers: Sequence[Mapping[str, Any]]) -> Sight:
    if isinstance(told, str):
        lags = [answer["lag"][name] for answer in answers if name in answer.get("lag", {})]
        return Sight(name, str(address), NO_ANSWER, "", None, max(lags, default=None), told)
    view = str(told["view"]["text"]) if told["view"]["id"] else ""
    coordinates = ", coordinates" if view and told["view"]["coordinator"] == name else ""
    return Sight(name, str(address), told["state"], view + coordinates, told["frontier"], told["lag"].get(name), told["reason"])


def watch(url: str, interval_s: float, as_json: bool, ends: Callable[[], bool] = bool) -> None:
    """Show the gateways until interrupted, or until `ends`."""
    watching = Watch(parse_url(url), interval_s)
    try:
        watching.wait_for_all(ANSWER_S_MAX + 1)
        if on_terminal() and not as_json:
            _draw(watching, interval_s, ends)
        else:
            _write(watching, interval_s, as_json, ends)
    finally:
        watching.close()


def _draw(watching: Watch, interval_s: float, ends: Callable[[], bool]) -> None:
    from rich.live import Live

    with Live(_table(watching.sights()), auto_refresh=False) as live:
        while not ends():
            time.sleep(interval_s)
            live.update(_table(watching.sights()), refresh=True)


def _table(sights: Iterable[Sight]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", caption=_now(), caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("frontier", "lag") else "left", overflow="fold")
    for sight in sights:
        table.add_row(*(escape(cell_text(value)) for value in sight), style=_STYLES.get(sight.state, "yellow"))
    return table


def _write(watching: Watch, interval_s: float, as_json: bool, ends: Callable[[], bool]) -> None:
    """A line whenever something changed: all gateways as JSON, or each that changed with tabs between its fields."""
    before: list[Sight] = []
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
        time.sleep(interval_s)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
