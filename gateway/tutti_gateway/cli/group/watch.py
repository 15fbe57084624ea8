"""`tutti status --watch`: every gateway of the group, asked again and again; a table that is drawn anew, or a line a change."""

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
from tutti.io.admin import Control
from tutti_gateway.cli.common.output import cell_text, on_terminal, print_json

ANSWER_S_MAX = 2.0
#: An answer that takes longer is missed, and told as missing until it comes.
LATE_S = 0.5
NO_ANSWER = "no answer"
_ROUNDS = 2  # a connection that broke is made anew once: who is not there then is not there
_STEP_S = 0.25  # within which nobody asks any more who was told so
_COLUMNS = ("gateway", "address", "state", "view", "frontier", "lag", "heard", "reason")
_STYLES = {"primary": "green", "minority": "yellow", "joining": "yellow", "leaving": "yellow", "halted": "red", NO_ANSWER: "red"}


class Sight(NamedTuple):
    """One gateway at one moment: `frontier` is its next offset, `lag` decided positions that it lacks; None where nobody says.

    `heard` is when it answered last (UTC), of one that does not answer now; None of one that does, or never did.
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
class _Known:
    """What is known of one address: its last answer and when that came (UTC), since when an answer is waited for (monotonic; None:
    for none), and why there was none to the last question ("": there was one, or that is not known yet).
    """

    told: dict[str, Any] | None = None
    heard: str | None = None
    asked_s: float | None = None
    trouble: str = ""

    def missing(self, now_s: float) -> str:
        """Why it is not known how it is; empty where it is."""
        late = self.asked_s is not None and now_s - self.asked_s >= LATE_S
        return self.trouble or (_LATE if late else "")


_LATE = f"it was asked, and has not answered for {LATE_S:g} s and more"


class Watch:
    """Asks each gateway in a thread of its own, so that one that hangs keeps nobody waiting; gateways name further ones."""

    def __init__(self, addresses: Iterable[Address], interval_s: float) -> None:
        """Begin to ask."""
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._all: dict[Address, _Known] = {}
        self._names: dict[Address, str] = {}
        self._stop = threading.Event()
        self._turned = threading.Event()  # one does not answer any more, or answers again
        self._follow(addresses)

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()

    def wait_for_all(self, limit_s: float) -> None:
        """Wait until of each something is known, be it that it does not answer at once."""
        until_s = time.monotonic() + limit_s
        while (now_s := time.monotonic()) < until_s:
            with self._lock:
                if all(known.told or known.missing(now_s) for known in self._all.values()):
                    return
            time.sleep(0.02)

    def pause(self) -> None:
        """Wait until the next look: at once when one does not answer any more, or again."""
        self._turned.wait(min(self._interval_s, LATE_S))
        self._turned.clear()

    def _follow(self, addresses: Iterable[Address]) -> None:
        with self._lock:
            room = limits.ADDRESSES_MAX - len(self._all)
            new = [address for address in addresses if address not in self._all][: max(0, room)]
            self._all.update((address, _Known()) for address in new)
        for address in new:
            threading.Thread(target=self._ask, args=(address,), name=f"watch-{address}", daemon=True).start()

    def _ask(self, address: Address) -> None:
        known = self._all[address]
        with Control([address], timeout=ANSWER_S_MAX, rounds=_ROUNDS, learn=False) as control:
            while not self._stop.is_set():
                known.asked_s = time.monotonic()
                try:
                    self._take(address, known, control.status())
                except TuttiError as error:
                    self._miss(known, control.trouble or str(error))
                self._rest(control)

    def _rest(self, control: Control) -> None:
        """Until it is time to ask again: when the connection breaks, at once."""
        until_s = time.monotonic() + self._interval_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.is_set():
            if control.broke(min(left_s, _STEP_S)):
                return

    def _miss(self, known: _Known, trouble: str) -> None:
        with self._lock:
            turned = not known.trouble
            known.asked_s, known.trouble = None, trouble
        if turned:
            self._turned.set()

    def _take(self, address: Address, known: _Known, told: dict[str, Any]) -> None:
        found: dict[Address, str] = {}
        for name, url in told.get("gateways", {}).items():
            found.update(dict.fromkeys(parse_url(url), name))
        with self._lock:
            turned = bool(known.trouble)
            known.told, known.heard, known.asked_s, known.trouble = told, _now(), None, ""
            self._names.update(found)
            self._names[address] = str(told["gateway"])
        if turned:
            self._turned.set()
        self._follow(found)

    def sights(self) -> list[Sight]:
        """What is known now, by name; of two addresses of one gateway (a host by name and by number) one that answers."""
        now_s = time.monotonic()
        with self._lock:
            all_known = {address: (replace(known), known.missing(now_s)) for address, known in self._all.items()}
            names = dict(self._names)
        answers = [known.told for known, missing in all_known.values() if known.told and not missing]
        found: dict[str, Sight] = {}
        for address, (known, missing) in all_known.items():
            sight = _sight(names.get(address, ""), address, known, missing, answers)
            key = sight.gateway or sight.address
            if key not in found or found[key].state == NO_ANSWER:
                found[key] = sight
        return [found[key] for key in sorted(found)]


def _sight(name: str, address: Address, known: _Known, missing: str, answers: Sequence[Mapping[str, Any]]) -> Sight:
    told = known.told
    if missing or told is None:
        lags = [answer["lag"][name] for answer in answers if name in answer.get("lag", {})]
        reason = f"{missing}; it was {told['state']} when it was heard last" if told else missing
        return Sight(name, str(address), NO_ANSWER, "", None, max(lags, default=None), known.heard, reason)
    view = str(told["view"]["text"]) if told["view"]["id"] else ""
    coordinates = ", coordinates" if view and told["view"]["coordinator"] == name else ""
    lag = told["lag"].get(name)
    return Sight(name, str(address), told["state"], view + coordinates, told["frontier"], lag, None, told["reason"])


def watch(url: str, interval_s: float, as_json: bool, ends: Callable[[], bool] = bool) -> None:
    """Show the gateways until interrupted, or until `ends`."""
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


def _table(sights: Iterable[Sight]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", caption=_now(), caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("frontier", "lag") else "left", overflow="fold")
    for sight in sights:
        shown = sight._replace(heard=_ago(sight.heard))
        table.add_row(*(escape(cell_text(value)) for value in shown), style=_STYLES.get(sight.state, "yellow"))
    return table


def _write(watching: Watch, as_json: bool, ends: Callable[[], bool]) -> None:
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
        watching.pause()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _ago(heard: str | None) -> str | None:
    return None if heard is None else f"{(datetime.now(UTC) - datetime.fromisoformat(heard)).total_seconds():.0f} s ago"
