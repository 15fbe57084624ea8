"""What an operator should know of a configuration that is good: `tutti config check` prints it, a gateway that starts logs it."""

from __future__ import annotations

import time

from tutti.data.addresses import is_loopback, parse_host_port, parse_member
from tutti.errors import ConfigError
from tutti.toml.mistakes import Mistake
from tutti_gateway.config.model import Config


def advice(config: Config, *, begun: bool = False) -> list[Mistake]:
    """What an operator should know of a configuration that is good.

    `begun`: the gateway has a log, which names the members; `group.members` is only where to look for the others then.
    """
    found: list[Mistake] = []
    count = len(config.group.members)
    if count and count % 2 == 0 and not begun:
        what = (
            f"names {count} gateways, an even number: in a group that is founded so, a split into two halves stops both, and no "
            f"more may fail than with {count - 1}"
        )
        do = "found it with an odd number; where the group has begun already nothing is to be done, as its log names the members"
        found.append(Mistake("group.members", None, what, do))
    security = config.security
    if security.has_keys and security.missing and not is_loopback(config.client_address.host):
        ports = ", ".join(str(address.port) for address in (config.client_address, config.reads_address, config.admin_address))
        what = "can be reached by others, and keys alone protect only the port between gateways"
        do = f"name {', '.join(security.missing)} in [security], or let only networks that you trust reach ports {ports}"
        found.append(Mistake("listen", None, what, do))
    keyless = _keyless(config)
    if keyless:
        what = f"{config.security.public_keys} lists no key of {', '.join(keyless)}, so that neither lets the other in"
        do = "make it the file that all gateways have alike (`tutti keys new` adds to it)"
        found.append(Mistake("security.public_keys", None, what, do))
    if config.group.transport == "multicast" and config.security.has_keys:
        what = 'is "multicast": what goes by it is sealed with keys, so that nobody else can speak for a gateway, but not encrypted'
        found.append(Mistake("group.transport", None, what, 'take "mesh" where nobody on the network may read along'))
    return found


def _keyless(config: Config) -> list[str]:
    """Members without a public key, where there are keys and their file can be read."""
    if not (config.security.has_keys and config.security.public_keys):
        return []
    from tutti_gateway.transport.keys import read_public  # noqa: PLC0415 - the crypto, for those alone who have keys

    try:
        listed = read_public(config.security.public_keys)
    except ConfigError:
        return []  # a mistake, and told as one
    return [name for name in config.group.members if name not in listed]


def unknown_hosts(config: Config, wait_s: float) -> list[Mistake]:
    """Names of hosts in a good configuration that this host does not know now, looked up for so long; a gateway that runs looks
    for those of others again and again.
    """
    from tutti.runtime.dns import Names  # noqa: PLC0415 - for those alone who ask

    places = {"listen": parse_host_port(config.listen).host}
    if config.advertise is not None:
        places["advertise"] = parse_host_port(config.advertise).host
    places |= {f"group.members.{name}": parse_member(text).clients.host for name, text in config.group.members.items()}
    names = Names()
    end_s = time.monotonic() + wait_s
    try:
        waiting = set(places.values())
        while waiting and time.monotonic() < end_s:
            waiting = {host for host in waiting if not names.address(host) and not names.wrong(host)}
            if waiting:
                names.wait(end_s - time.monotonic())
                names.take()
        wrong = {host: names.wrong(host) or f"no answer within {wait_s:g} s" for host in places.values() if not names.address(host)}
    finally:
        names.close()
    return [
        Mistake(
            key, None, f"names host {host!r}, which is not known here ({wrong[host]})", "correct it, or see to it before the start"
        )
        for key, host in places.items()
        if host in wrong
    ]
