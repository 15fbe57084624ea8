"""Control: what tools ask gateways for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from tutti.data import client_protocol
from tutti.data.names import check_name, check_producer
from tutti.io.request import Talk


class Control(Talk):
    """Status and orders. See `Talk` for how it finds a gateway and what it raises."""

    def status(self) -> dict[str, Any]:
        """The gateway's status, as `tutti status --json` shows it."""
        told: dict[str, Any] = orjson.loads(self.ask(client_protocol.StatusAnswer, client_protocol.Status).json)
        return told

    def producers(self) -> list[dict[str, Any]]:
        """The received-table: name, number, epoch, sequence, progress (or progress_base64), closed, last_seen (us of the last tick
        before its last frame, 0 before any).
        """
        told = orjson.loads(self.ask(client_protocol.StatusAnswer, client_protocol.Producers).json)
        return [{**line, "last_seen": line.get("last_seen_us")} for line in told["producers"]]

    def members(self) -> list[dict[str, Any]]:
        """Every gateway that the group's log names, as the one that answers knows it: name, number, address, incarnation, state,
        voter, coordinator, age, frontier, lag, heard_us, round_trip_us, reason.
        """
        told: list[dict[str, Any]] = orjson.loads(self.ask(client_protocol.StatusAnswer, client_protocol.Members).json)
        return told

    def forget(self, names: Iterable[str], instances: Iterable[bytes] = ()) -> None:
        """Take producers out of the received-table, through the log. One's own without a name are let go with the `instances` of
        all of them, by whoever may write; any others by who administers.
        """
        checked, shown = tuple(check_producer(name) for name in names), tuple(instances)
        self.ask(client_protocol.Done, lambda request: client_protocol.Forget(request, checked, shown))

    def fence(self, name: str) -> None:
        """End the epoch of a producer: an instance that runs is fenced."""
        check_producer(name)
        self.ask(client_protocol.Done, lambda request: client_protocol.Fence(request, name))

    def change_roster(self, change: str, name: str, address: str = "", incarnation: bytes = b"") -> None:
        """Have a gateway of the roster changed through the log: "add" (at `address`, HOST:P), "remove" or "replace" (the disk that
        `incarnation` names). It is done, and known to a majority durably, when this returns; what does not go yet is tried again.
        """
        check_name("gateway", name)
        self.ask(client_protocol.Done, lambda request: client_protocol.ChangeRoster(request, change, name, address, incarnation))

    def force_roster(self, names: Iterable[str]) -> None:
        """Say that these gateways, the one that is asked among them, are all that remains of the roster: a majority is gone for
        good, and what only that had is lost. It is done, and decided by all who remain, when this returns.
        """
        checked = tuple(check_name("gateway", name) for name in names)
        self.ask(client_protocol.Done, lambda request: client_protocol.ForceRoster(request, checked))

    def leave(self, name: str) -> None:
        """Tell the gateway `name`, which must be the one that is asked, to leave the group in order and to end."""
        check_name("gateway", name)
        self.ask(client_protocol.Done, lambda request: client_protocol.Leave(request, name))

    def save_offset(self, reader: str, offset: int, back: bool = False, given_up: Callable[[], bool] = bool) -> None:
        """A named reader's offset commit; durable when this returns. One below what it committed before takes `back`."""
        check_name("reader", reader)
        self.ask(client_protocol.Done, lambda request: client_protocol.SaveOffset(request, reader, offset, back), given_up)
