"""Warnings about a valid configuration. `tutti config check` prints the warnings, and a starting gateway logs them."""

from __future__ import annotations

import time

from tutti.data.member_address import is_loopback, parse_host_port, parse_member
from tutti.errors import ConfigError
from tutti.toml.mistakes import Mistake
from tutti_gateway.config.model import Config


def advice(config: Config, *, begun: bool = False) -> list[Mistake]:
    """Return warnings about a valid configuration.

    Args:
        begun: True if the gateway has a log. In this case, the log determines the members, and `group.members` only gives addresses
            of peers.
    """
    found: list[Mistake] = []
    count = len(config.group.members)
    if count and count % 2 == 0 and not begun:
        what = (
            f"names {count} gateways, an even number: in such a group a split into two halves stops both halves, and no "
            f"more gateways may fail than in a group of {count - 1}"
        )
        do = "name an odd number; change nothing if the group has begun, because its log names the members"
        found.append(Mistake("group.members", None, what, do))
    security = config.security
    if security.has_keys and security.missing and not is_loopback(config.client_address.host):
        ports = ", ".join(str(address.port) for address in (config.client_address, config.reads_address, config.admin_address))
        what = "is reachable from other hosts, but keys alone protect only the port between gateways"
        do = f"name {', '.join(security.missing)} in [security], or allow only trusted networks to reach ports {ports}"
        found.append(Mistake("listen", None, what, do))
    keyless = _keyless(config)
    if keyless:
        what = (
            f"{config.security.public_keys} lists no key of {', '.join(keyless)}, so these gateways and this one reject each other"
        )
        do = "use the same file on all gateways (`tutti keys new` adds keys to it)"
        found.append(Mistake("security.public_keys", None, what, do))
    if security.tls_certificate and security.tls_key:
        from tutti.security.certificates import certificate_warnings  # noqa: PLC0415 - only gateways with a certificate load it

        host = config.advertised_address.host
        for what, do in certificate_warnings(security.tls_certificate, security.tls_key, host):
            found.append(Mistake("security.tls_certificate", None, what, do))
    if config.group.transport == "multicast" and config.security.has_keys:
        what = 'is "multicast": its messages are authenticated with keys, but not encrypted'
        found.append(Mistake("group.transport", None, what, 'use "mesh" where the network is not trusted'))
    return found


def _keyless(config: Config) -> list[str]:
    """Return the members whose key is not in the public key file; none if keys are not configured or the file is unreadable."""
    if not (config.security.has_keys and config.security.public_keys):
        return []
    from tutti_gateway.transport.keys import read_public  # noqa: PLC0415 - a gateway without keys does not load PyNaCl

    try:
        listed = read_public(config.security.public_keys)
    except ConfigError:
        return []  # `check_config` reports this mistake
    return [name for name in config.group.members if name not in listed]


def unknown_hosts(config: Config, wait_s: float) -> list[Mistake]:
    """Return a warning for each host name in the configuration that this host cannot resolve within `wait_s` seconds.

    An unresolved name is only a warning, because a running gateway keeps trying to resolve the names of its peers.
    """
    from tutti.runtime.dns import Resolver  # noqa: PLC0415 - only this check needs a resolver

    hosts = {"listen": parse_host_port(config.listen).host}
    if config.advertise is not None:
        hosts["advertise"] = parse_host_port(config.advertise).host
    hosts |= {f"group.members.{name}": parse_member(text).clients.host for name, text in config.group.members.items()}
    names = Resolver()
    end_s = time.monotonic() + wait_s
    try:
        waiting = set(hosts.values())
        while waiting and time.monotonic() < end_s:
            waiting = {host for host in waiting if not names.address(host) and not names.error(host)}
            if waiting:
                names.wait(end_s - time.monotonic())
                names.drain()
        wrong = {host: names.error(host) or f"no answer within {wait_s:g} s" for host in hosts.values() if not names.address(host)}
    finally:
        names.close()
    return [
        Mistake(
            key,
            None,
            f"names host {host!r}, which this host cannot resolve ({wrong[host]})",
            "correct it, or make the name resolvable",
        )
        for key, host in hosts.items()
        if host in wrong
    ]
