"""Checks rules that the struct types cannot express: the forms of names and addresses, and relations between values."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec

from tutti import limits as common_limits
from tutti.data.member_address import (
    GROUP_PORT_DISTANCE,
    HOST_REMEDY,
    PORT_MAX,
    Address,
    MemberAddress,
    is_loopback,
    parse_host_port,
    parse_member,
    unreachable_reason,
)
from tutti.data.names import NAME_BYTES_MAX, check_name
from tutti.errors import ConfigError, UsageError
from tutti.toml.mistakes import KeyPath
from tutti.toml.units import SIZE_UNITS, TIME_UNITS, quantity_text
from tutti_gateway.config.model import DURATION_REMEDY, Config, Limits, Retention, is_multicast, parse_duration
from tutti_gateway.core import limits

_HOST_PORT = f"write HOST:PORT with a port from 1 to {PORT_MAX}, such as 127.0.0.1:7400"
_MEMBER = f"{_HOST_PORT}, and HOST:PORT/GROUP-PORT where the group port is not PORT + {GROUP_PORT_DISTANCE}"


def _size(number: int) -> str:
    return quantity_text(number, SIZE_UNITS)


def _whole_mib(number: int) -> int:
    """Return a number of bytes in MiB, rounded up, so that a remedy with the result is large enough."""
    return math.ceil(number / common_limits.MIB)


class MistakeCollector(Protocol):
    """Collects the mistakes that the checks of a configuration find."""

    def mistake(self, path: KeyPath, what: str, do: str) -> None:
        """Record a mistake in the value at `path`. `what` describes the mistake, and `do` says how to correct it."""

    def good(self, *path: str) -> bool:
        """True if no mistake was found in the value at `path` or in a table that contains it."""

    def typed(self, path: KeyPath, default: str) -> str:
        """Return the value at `path` with the spelling of the file; `default` if the file lacks the key."""


class Relations:
    """Checks one configuration, and reports each mistake to the collector."""

    def __init__(self, reading: MistakeCollector, config: Config) -> None:
        self._mistake = reading.mistake
        self._good = reading.good
        self._typed = reading.typed
        self._config = config

    def check(self) -> None:
        """Check every rule. A rule is skipped if one of the values in the rule already has a mistake."""
        config = self._config
        self._name(("name",), "gateway", config.name)
        self._name(("group", "name"), "group", config.group.name)
        if not config.data:
            self._mistake(("data",), "is empty", "name a directory")
        listen = self._address(("listen",), config.listen)
        advertise = listen
        if config.advertise is not None:
            advertise = self._reachable(("advertise",), config.advertise, self._address(("advertise",), config.advertise))
        if listen is not None:
            self._ports(listen)
        members = self._members(listen, advertise) if self._good("group", "members") else {}
        if listen is not None:
            self._exposure(listen, members)
        self._keys()
        self._multicast(listen)
        if self._good("timers", "tick_ms") and config.timers.tick_ms < config.timers.heartbeat_ms:
            tick_ms, heartbeat_ms = (
                quantity_text(number, TIME_UNITS) for number in (config.timers.tick_ms, config.timers.heartbeat_ms)
            )
            what = f"is {self._typed(('timers', 'tick_ms'), tick_ms)}, below heartbeat_ms = {heartbeat_ms}"
            self._mistake(("timers", "tick_ms"), what, "make it at least as long as a heartbeat")
        if self._good("limits", "undecided_bytes") and self._good("log", "disk_low_bytes"):
            self._disk_low(config.limits.undecided_bytes + common_limits.RESERVED_BYTES, config.log.disk_low_bytes)
        self._first_segment()
        self._retention()
        self._memory()

    def _first_segment(self) -> None:
        """Check that segments can grow from the first size to the full size. Prepared segments have the full size only."""
        log, path = self._config.log, ("log", "first_segment_bytes")
        first = log.first_segment_bytes
        if not first or not all(self._good("log", key) for key in ("first_segment_bytes", "segment_bytes", "prepared_segments")):
            return
        if not limits.FIRST_SEGMENT_BYTES_MIN <= first <= log.segment_bytes:
            do = f"write {_size(limits.FIRST_SEGMENT_BYTES_MIN)} to {_size(log.segment_bytes)} (segment_bytes), or 0"
            self._mistake(path, f"is {self._typed(path, _size(first))}", do)
        # A start recognizes a used reserve by the size of the last segment, so no other segment may have that size.
        if common_limits.RESERVED_BYTES % first == 0 and (common_limits.RESERVED_BYTES // first).bit_count() == 1:
            reserve = _size(common_limits.RESERVED_BYTES)
            what = f"is {self._typed(path, _size(first))}, so a later segment would have {reserve}, the size of the reserve"
            self._mistake(path, what, f"choose a size that does not double to {reserve}, such as 3MiB")
        if log.prepared_segments:
            what = f"is {log.prepared_segments}, but segments with first_segment_bytes = {_size(first)} have several sizes"
            self._mistake(("log", "prepared_segments"), what, "write 0, or remove first_segment_bytes")

    def _retention(self) -> None:
        """Check the retention limits. A size limit needs two segments, because the newest segment is never removed."""
        retention, segment = self._config.retention, self._config.log.segment_bytes
        if self._good("retention", "bytes") and self._good("log", "segment_bytes") and 0 < retention.bytes < 2 * segment:
            typed = self._typed(("retention", "bytes"), _size(retention.bytes))
            what = f"is {typed}, less than two segments ({_size(segment)} each)"
            self._mistake(
                ("retention", "bytes"), what, f"make it at least {_whole_mib(2 * segment)}MiB, or log.segment_bytes smaller"
            )
        if self._good("retention", "time") and retention.time:
            try:
                parse_duration(retention.time)
            except ConfigError:
                do = f'{DURATION_REMEDY}, such as "7d"; leave it out to keep all'
                self._mistake(("retention", "time"), f"is {retention.time!r}", do)

        if self._good("retention", "keep_for"):
            self._keep_for(retention)

    def _keep_for(self, retention: Retention) -> None:
        for name in retention.keep_for:
            self._name(("retention", "keep_for"), "reader", name)
            if retention.keep_for.count(name) > 1:
                self._mistake(("retention", "keep_for"), f"has {name!r} twice", "name each reader once")
                return
        if retention.keep_for and not retention.bytes and not retention.time:
            self._mistake(
                ("retention", "keep_for"),
                "has an effect only with a retention limit, and none is set",
                'set retention.bytes or retention.time (such as time = "7d"), or remove keep_for to keep the whole log',
            )

    def _disk_low(self, needed: int, low: int) -> None:
        """Check that `disk_low_bytes` covers all undecided data, which a gateway must still write after it refuses new records."""
        if needed > low:
            typed = self._typed(("log", "disk_low_bytes"), _size(low))
            what = f"is {typed}, less than the sum of undecided_bytes and the reserve ({_whole_mib(needed)}MiB)"
            self._mistake(("log", "disk_low_bytes"), what, f"make it at least {_whole_mib(needed)}MiB, or undecided_bytes smaller")

    def _memory(self) -> None:
        """Check that all limits fit into a gateway's memory. A gateway that exceeds its memory closes all connections
        repeatedly.
        """
        names = [field.name for field in msgspec.structs.fields(Limits)]
        values = {name: getattr(self._config.limits, name) for name in names}
        if not all(self._good("limits", name) for name in names):
            return
        needed = limits.node_bytes(**values)
        if needed > limits.NODE_MEMORY_BYTES_MAX:
            shown = values | {"undecided_bytes": _size(values["undecided_bytes"])}
            settings = ", ".join(f"{name} = {value}" for name, value in shown.items())
            allowed = limits.NODE_MEMORY_BYTES_MAX // common_limits.MIB
            what = f"need {_whole_mib(needed)}MiB of memory at full load ({settings}), but a gateway may use {allowed}MiB"
            self._mistake(("limits",), what, "make one of them smaller")

    def _name(self, path: KeyPath, what: str, name: str) -> None:
        if not self._good(*path):
            return
        try:
            check_name(what, name)
        except UsageError:
            self._mistake(path, f"is {name!r}", f"use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-'")

    def _address(self, path: KeyPath, text: str) -> Address | None:
        if not self._good(*path):
            return None
        try:
            return parse_host_port(text)
        except UsageError:
            self._mistake(path, f"is {text!r}", _HOST_PORT)
            return None

    def _reachable(self, path: KeyPath, text: str, address: Address | None) -> Address | None:
        """Return the address if other hosts can connect to it; otherwise report a mistake and return None."""
        if address is None or not (reason := unreachable_reason(address.host)):
            return address
        self._mistake(path, f"is {text!r}, and {reason}", HOST_REMEDY)
        return None

    def _exposure(self, listen: Address, members: dict[str, MemberAddress]) -> None:
        """Check that a gateway that other hosts can reach has all protections, or sets `security.insecure`."""
        config = self._config
        missing = config.security.missing
        if not config.security.insecure and missing:
            do = (
                f"name {', '.join(missing)} in [security], listen on 127.0.0.1 only, or set [security] insecure = true where the "
                "network is trusted"
            )
            missing_protection = (
                "without keys nothing is encrypted or authenticated"
                if not config.security.has_keys
                else "not every port is protected"
            )
            remote = [name for name, address in members.items() if not is_loopback(address.clients.host)]
            if not is_loopback(listen.host):
                what = f"is {config.listen!r}, which other hosts can reach, and {missing_protection}"
                self._mistake(("listen",), what, do)
            elif remote:
                what = f"is {config.group.members[remote[0]]!r}, on another host, and {missing_protection}"
                self._mistake(("group", "members", remote[0]), what, do)
        if config.advertise is None and (reason := unreachable_reason(listen.host)):
            self._mistake(("advertise",), f"is missing, and {reason}", "add HOST:PORT for clients")

    def _keys(self) -> None:
        security = self._config.security
        named = {"secret_key": security.secret_key, "public_keys": security.public_keys}
        for name, path in named.items():
            other = next(one for one in named if one != name)
            if path is None and named[other] is not None and self._good("security", name):
                self._mistake(("security", name), f"is missing, but {other} is set", "name both files, or none")
            elif path == "":
                self._mistake(("security", name), "is empty", "name a file that `tutti keys new` created")
        if security.tokens is not None and not security.has_keys and self._good("security", "tokens"):
            what = "is set without keys: clients send tokens only over a connection that keys encrypt"
            self._mistake(("security", "tokens"), what, "name keys too (`tutti keys new`; secret_key, public_keys)")
        pair = {"tls_certificate": security.tls_certificate, "tls_key": security.tls_key}
        for name, path in pair.items():
            other = next(one for one in pair if one != name)
            if not path and pair[other] and self._good("security", name):
                self._mistake(("security", name), f"is missing, but {other} is set", "name both files, or none")

    def _multicast(self, listen: Address | None) -> None:
        config = self._config
        path = ("multicast", "address")
        address = self._address(path, config.multicast.address)
        if address is not None and not is_multicast(address.host):
            what = f"is {config.multicast.address!r}"
            self._mistake(path, what, "write an IPv4 multicast address (239.0.0.0 to 239.255.255.255 within one site) and a port")
        if config.multicast.interface == "":
            self._mistake(("multicast", "interface"), "is empty", "name an interface, or remove the key")
        if config.group.transport != "multicast" or listen is None or config.security.insecure or config.security.has_keys:
            return
        interface = config.multicast.interface
        if interface is not None and interface != "lo" and not is_loopback(interface):
            what = f"is {interface!r}, where other hosts receive the datagrams, and without keys nothing is authenticated"
            self._mistake(("multicast", "interface"), what, "name keys in [security], or set insecure = true there")

    def _ports(self, listen: Address) -> None:
        used_by = {listen.port: "listen"}
        for distance, name in enumerate(("group", "reads", "admin"), 1):
            if not self._good("ports", name):
                continue
            port = getattr(self._config.ports, name) or listen.port + distance
            if port > PORT_MAX:
                self._mistake(("listen",), f"leaves no port for {name} ({port})", f"choose a port up to {PORT_MAX - 3}")
                break
            if port in used_by:
                self._mistake(("ports", name), f"is {port}, the same as that of {used_by[port]}", "give each its own port")
            used_by.setdefault(port, name)

    def _members(self, listen: Address | None, own: Address | None) -> dict[str, MemberAddress]:
        config = self._config
        members = config.group.members
        found: dict[str, MemberAddress] = {}
        for name, text in members.items():
            path = ("group", "members", name)
            self._name(path, "gateway", name)
            address = self._member(path, text)
            if address is not None and self._reachable(path, text, address.clients):
                self._distinct(path, address, found)
                found[name] = address
        if config.name in found and listen is not None and own is not None:
            self._own_address(found[config.name], listen, own)
        if members and config.name not in members and self._good("name"):
            what = f"names {', '.join(members)}, but not this gateway ({config.name})"
            self._mistake(("group", "members"), what, "add it, or correct `name`")
        if len(members) > common_limits.ROSTER_MAX:
            what = f"names {len(members)} gateways"
            self._mistake(("group", "members"), what, f"name at most {common_limits.ROSTER_MAX}; three, five or seven are best")
        return found

    def _member(self, path: KeyPath, text: str) -> MemberAddress | None:
        if not self._good(*path):
            return None
        try:
            return parse_member(text)
        except UsageError:
            self._mistake(path, f"is {text!r}", _MEMBER)
            return None

    def _distinct(self, path: KeyPath, address: MemberAddress, others: dict[str, MemberAddress]) -> None:
        """Check that no two gateways share an address, because each would reject the other as an impostor."""
        for name, other in others.items():
            shared = set(address) & set(other)
            if shared:
                what = f"is {str(address)!r} and that of {name} is {str(other)!r}: both use {min(shared)} for clients or the group"
                self._mistake(path, what, "give each gateway its own ports")
                return

    def _own_address(self, member: MemberAddress, listen: Address, own: Address) -> None:
        """Check that this gateway's entry in `group.members` has the address at which this gateway listens."""
        config = self._config
        path = ("group", "members", config.name)
        text = config.group.members[config.name]
        group = config.ports.group or listen.port + GROUP_PORT_DISTANCE
        if member.clients != own:
            do = "write the same address in both (`advertise` takes precedence over `listen`)"
            self._mistake(path, f"is {text!r}, but this gateway is at {str(own)!r}", do)
        elif own.port == listen.port and member.group.port != group:
            what = f"is {text!r}, with group port {member.group.port}, but the group port of this gateway is {group}"
            self._mistake(path, what, f'write "{own}/{group}" on every gateway, or remove ports.group')
