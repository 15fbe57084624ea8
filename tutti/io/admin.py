"""Admin client: status requests and administrative commands to gateways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from tutti.data import client_protocol
from tutti.data.names import check_name, check_producer
from tutti.io.request import RequestClient


class AdminClient(RequestClient):
    """Status requests and administrative commands. `RequestClient` documents how a gateway is found, and the errors."""

    def status(self) -> dict[str, Any]:
        """Return the gateway's status, as `tutti status --json` prints it."""
        answer: dict[str, Any] = orjson.loads(self.ask(client_protocol.StatusAnswer, client_protocol.Status).json)
        return answer

    def producers(self) -> list[dict[str, Any]]:
        """Return the received-table, one dict for each producer.

        The keys are name, number, epoch, sequence, progress (or progress_base64), closed and last_seen (microseconds of the last
        tick before the producer's last frame, 0 before any tick).
        """
        answer = orjson.loads(self.ask(client_protocol.StatusAnswer, client_protocol.Producers).json)
        return [{**line, "last_seen": line.get("last_seen_us")} for line in answer["producers"]]

    def members(self) -> list[dict[str, Any]]:
        """Return all gateways that the log of the group names, as the answering gateway knows them.

        The keys are name, number, address, incarnation, state, voter, coordinator, age, frontier, lag, heard_us, round_trip_us and
        reason.
        """
        answer: list[dict[str, Any]] = orjson.loads(self.ask(client_protocol.StatusAnswer, client_protocol.Members).json)
        return answer

    def forget(self, names: Iterable[str], instances: Iterable[bytes] = ()) -> None:
        """Delete producers from the received-table, through the log.

        A client with write access may delete its own unnamed producers, if it presents the `instances` of all of them. Other
        deletions need administrative rights.
        """
        checked, shown = tuple(check_producer(name) for name in names), tuple(instances)
        self.ask(client_protocol.Done, lambda request: client_protocol.Forget(request, checked, shown))

    def fence(self, name: str) -> None:
        """End the epoch of a producer, so that a running instance is fenced."""
        check_producer(name)
        self.ask(client_protocol.Done, lambda request: client_protocol.Fence(request, name))

    def change_roster(self, change: str, name: str, address: str = "", incarnation: bytes = b"") -> None:
        """Change the roster through the log: "add" (at `address`, HOST:P), "remove", or "replace" (by the disk `incarnation`).

        When this method returns, a majority knows the change durably. Temporary refusals are retried.
        """
        check_name("gateway", name)
        self.ask(client_protocol.Done, lambda request: client_protocol.ChangeRoster(request, change, name, address, incarnation))

    def force_roster(self, names: Iterable[str]) -> None:
        """Declare that the named gateways, including the one asked, are the whole roster, after a permanent loss of the majority.

        Data that only the lost gateways had is lost. When this method returns, all remaining gateways have decided the roster.
        """
        checked = tuple(check_name("gateway", name) for name in names)
        self.ask(client_protocol.Done, lambda request: client_protocol.ForceRoster(request, checked))

    def leave(self, name: str) -> None:
        """Order the gateway `name`, which must be the one asked, to leave the group and to end."""
        check_name("gateway", name)
        self.ask(client_protocol.Done, lambda request: client_protocol.Leave(request, name))

    def save_offset(self, reader: str, offset: int, back: bool = False, given_up: Callable[[], bool] = bool) -> None:
        """Commit the offset of a named reader, durably. `back` allows an offset below the previous one."""
        check_name("reader", reader)
        self.ask(client_protocol.Done, lambda request: client_protocol.SaveOffset(request, reader, offset, back), given_up)
