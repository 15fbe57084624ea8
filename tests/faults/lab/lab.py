"""A group of real gateways, each on a host of its own, and one host for all clients."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import urllib.request
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.faults.lab.network import Network, run
from tests.faults.lab.shim import Shim, build
from tests.support.gateway_process import GROWING, GatewayProcess, Placement
from tutti.errors import Unavailable
from tutti_gateway.transport.keys import generate

CLIENTS = "clients"
PORT = 7400
MIB = 1 << 20
SMALL_DISK_MIB = 768
BALLAST = "ballast"
_STATUS_WAIT_S = 1.0
_POLL_S = 0.05

_EXTRA = """\
members = {{ {members} }}
transport = "{transport}"
[log]
segment_bytes = {segment}
{sizes}disk_low_bytes = {low}
[security]
{security}
{more}"""
_KEYS = 'secret_key = "keys/{name}.secret"\npublic_keys = "keys/group.keys"\ninsecure = true'
_NO_KEYS = "insecure = true"


class Member(GatewayProcess):
    """One gateway of the group, with its host, its disk and its clock."""

    def __init__(self, root: Path, name: str, extra: str, placement: Placement, shim: Shim) -> None:
        """Nothing runs yet."""
        super().__init__(root, name, extra, placement)
        self.shim = shim
        self.small_disk: Path | None = None

    def pause(self) -> None:
        """SIGSTOP: it is there and does nothing."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Leave no room on its small disk."""
        assert self.small_disk is not None
        with (self.small_disk / BALLAST).open("wb") as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(MIB))
                ballast.flush()

    def empty_disk(self) -> None:
        """Give the room back."""
        assert self.small_disk is not None
        (self.small_disk / BALLAST).unlink(missing_ok=True)


class Lab:
    """A network with a group on it. A context: whatever happened, no process, mount or namespace stays.

    Args:
        root: directory for configurations, data and logs.
        members: how many gateways.
        small_disks: so many of the last ones have their data on a small file system of their own.
        record: each gateway records what happens to its stack, in `root/NAME.runs`.
        transport: between the gateways, "mesh" or "multicast".
        keys: what they say to each other is encrypted, with keys in `root/keys`.
        more: TOML for every gateway's configuration, tables only.
        founders: so many of the first ones found the group, all unless said otherwise; `join` brings the next one.
        growing: the segments of the log start small and double in size.
    """

    def __init__(
        self,
        root: Path,
        members: int = 3,
        *,
        small_disks: int = 0,
        record: bool = False,
        transport: str = "mesh",
        keys: bool = False,
        more: str = "",
        founders: int | None = None,
        growing: bool = False,
    ) -> None:
        """Nothing is made yet."""
        self._root = root
        self._more = more
        self._sizes = GROWING if growing else "prepared_segments = 1\n"
        self._keys = keys
        self.transport = transport
        self._record = record
        self.all_names = [f"g{number + 1}" for number in range(members)]
        self.names = self.all_names[:founders]
        self._small = self.all_names[members - small_disks :]
        self.network = Network([*self.all_names, CLIENTS])
        self.members: dict[str, Member] = {}
        self._spare: list[Member] = []
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        """Make the hosts; no gateway runs yet."""
        with contextlib.ExitStack() as opened:
            opened.enter_context(self.network)
            library = build(self._root)
            if self._keys:
                generate(self._root / "keys", self.all_names)
            for number, name in enumerate(self.all_names, start=1):
                known = self.all_names[: max(number, len(self.names))]
                members = ", ".join(f'{other} = "{self.network.addresses[other]}:{PORT}"' for other in known)
                security = _KEYS.format(name=name) if self._keys else _NO_KEYS
                given = {
                    "members": members,
                    "transport": self.transport,
                    "security": security,
                    "sizes": self._sizes,
                    "more": self._more,
                }
                extra = _EXTRA.format(segment=32 * MIB, low=96 * MIB, **given)
                shim = Shim(library, self._root / f"{name}.shim")
                opened.callback(shim.close)
                arguments = ["--record", str(self._root / f"{name}.runs")] if self._record else []
                placement = Placement(self.network.addresses[name], PORT, self.network.inside(name), arguments, shim.environment)
                member = Member(self._root, name, extra, placement, shim)
                if number <= len(self.names):
                    self.members[name] = member
                else:
                    self._spare.append(member)
                if name in self._small:
                    self._mount(member, opened)
                opened.callback(member.__exit__)
            self._opened = opened.pop_all()
        return self

    def _mount(self, member: Member, opened: contextlib.ExitStack) -> None:
        member.small_disk = self._root / f"{member.name}.disk"
        member.small_disk.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", self.network.namespace(member.name), str(member.small_disk))
        opened.callback(run, "umount", "--lazy", str(member.small_disk))
        data = member.small_disk / "data"
        member.config.write_text(member.config.read_text().replace(f'"{member.data}"', f'"{data}"'))
        member.data = data

    def __exit__(self, *_: object) -> None:
        """Take all of it away."""
        self._opened.close()

    @property
    def url(self) -> str:
        """The address of the whole group, with those that have not joined yet: they are refused, and clients go on to the next."""
        return "tutti://" + ",".join(f"{self.network.addresses[name]}:{PORT}" for name in self.all_names)

    def join(self) -> Member:
        """The next gateway that has not joined: it belongs to the lab from now on and does not run yet."""
        member = self._spare.pop(0)
        self.names.append(member.name)
        self.members[member.name] = member
        return member

    def start(self) -> None:
        """Start all, and wait until they are one group."""
        for member in self.members.values():
            member.start(wait=False)
        for member in self.members.values():
            member.wait_ready()

    def status(self, name: str) -> dict[str, Any] | None:
        """What a gateway says of itself; None when it does not answer."""
        address = f"http://{self.network.addresses[name]}:{PORT + 3}/v1/status"

        def ask() -> dict[str, Any] | None:
            try:
                with urllib.request.urlopen(address, timeout=_STATUS_WAIT_S) as answer:
                    told: dict[str, Any] = json.load(answer)
                    return told
            except (OSError, ValueError):
                return None

        return self.network.call(CLIENTS, ask)

    def coordinator(self) -> str | None:
        """Who coordinates the newest primary view that any gateway tells of."""
        told = [status for name in self.names if (status := self.status(name)) and status["state"] == "primary"]
        newest = max(told, key=lambda status: int(status["view"]["id"]), default=None)
        return str(newest["view"]["coordinator"]) if newest else None

    def together(self) -> bool:
        """Whether all gateways are in one primary view."""
        told = [self.status(name) for name in self.names]
        return (
            all(status is not None and status["state"] == "primary" for status in told)
            and len({status["view"]["id"] for status in told if status}) == 1
        )

    def wait_together(self, timeout_s: float) -> float:
        """Wait until all gateways are in one primary view; the seconds it took.

        Raises:
            Unavailable: it took too long; the message tells what each gateway says.
        """
        return self._wait(self.together, timeout_s, "one primary view of all")

    def wait_shared(self, timeout_s: float) -> float:
        """Wait until what is acknowledged in any lane is on the disks of all gateways, and so is all of lanes whose origin is over;
        the seconds it took.

        Raises:
            Unavailable: it took too long; the message tells what each gateway says.
        """
        return self._wait(self.shared, timeout_s, "lane that all have")

    def shared(self) -> bool:
        """Whether all gateways have all of each lane that takes records, and as much of the others as any of them."""
        told = [self.status(name) for name in self.names]
        statuses = [status for status in told if status is not None]
        own = {lane["lane"]: lane for status in statuses for lane in status["lanes"] if lane["lane"] == status["lane"]}
        return (
            len(statuses) == len(self.names)
            and all(not status["lane"] or status["lane"] in own for status in statuses)
            and all(set(lane["members"]) == set(self.names) for lane in own.values())
            and self._alike(statuses, own)
        )

    def wait_alike(self, timeout_s: float) -> float:
        """Wait until all gateways have all lanes equally far; the seconds it took.

        Raises:
            Unavailable: it took too long; the message tells what each gateway says.
        """
        return self._wait(self.alike, timeout_s, "equal lanes on all")

    def alike(self) -> bool:
        """Whether all gateways have all lanes equally far, but for a lane that its own gateway lost."""
        told = [status for name in self.names if (status := self.status(name))]
        return len(told) == len(self.names) and self._alike(told, ())

    def _alike(self, statuses: list[dict[str, Any]], but: Collection[str]) -> bool:
        told = [{lane["lane"]: lane for lane in status["lanes"]} for status in statuses]
        for lane in {lane for one in told for lane in one} - set(but):
            ends = {one[lane]["frontier"] if lane in one else 0 for one in told if not (lane in one and one[lane]["halted"])}
            if len(ends) > 1:
                return False
        return True

    def wait_mended(self, timeout_s: float) -> float:
        """Wait until every gateway has looked at all of its log since it was started and misses nothing; the seconds it took.

        Raises:
            Unavailable: it took too long; the message tells what each gateway says.
        """
        return self._wait(self.whole, timeout_s, "whole log on all")

    def whole(self) -> bool:
        """Whether every gateway has looked at all of its log and misses nothing of it, nor, as far as it knows, of a lane that goes
        on.
        """
        statuses = [status for name in self.names if (status := self.status(name))]
        if any(lane["damaged"] and not lane["halted"] for status in statuses for lane in status["lanes"]):
            return False
        told = [status["disk"]["damage"] for status in statuses]
        return len(told) == len(self.names) and all(damage["rounds"] and not damage["lost"] for damage in told)

    def _wait(self, holds: Callable[[], bool], timeout_s: float, what: str) -> float:
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > timeout_s:
                raise Unavailable(f"no {what} within {timeout_s:.0f} s: {self.told()}")
            time.sleep(_POLL_S)
        return time.monotonic() - begun

    def told(self) -> str:
        """State, view, frontier and reason of each gateway, as they tell it now."""
        lines = []
        for name, member in self.members.items():
            status = self.status(name)
            if status is None:
                code = member.process.poll() if member.process is not None else None
                lines.append(f"{name} does not answer" + (f" (ended with {code})" if code is not None else ""))
            else:
                view, at = status["view"], status["frontier"]
                state = f"{status['state']} in view {view['id']} of {view['members']}"
                lines.append(f"{name} is {state} at {at}, lost {status['disk']['damage']['lost']} {status['reason']}".rstrip())
                lines.append(f"{name} has lanes {', '.join(_lane_told(lane) for lane in status['lanes'])}")
        return "; ".join(lines)


def _lane_told(lane: dict[str, Any]) -> str:
    """A lane in few words."""
    shared = f" with {'+'.join(lane['members'])}" if lane["members"] else ""
    return f"{lane['lane'][:8]}@{lane['frontier']}{shared} {lane['halted'] or lane['damaged']}".rstrip()
