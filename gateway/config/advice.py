"""What an operator should know of a configuration that is good: `tutti config check` prints it, a gateway that starts logs it."""

from __future__ import annotations

from gateway.config.mistakes import Mistake
from gateway.config.model import Config, is_loopback


def advice(config: Config) -> list[Mistake]:
    """What an operator should know of a configuration that is good."""
    found: list[Mistake] = []
    count = len(config.group.members)
    if count and count % 2 == 0:
        what = (
            f"names {count} gateways, an even number: a split into two halves stops both, and no more may fail than with "
            f"{count - 1}"
        )
        found.append(Mistake("group.members", None, what, "name an odd number"))
    if config.security.has_keys and not is_loopback(config.client_address.host):
        ports = ", ".join(str(address.port) for address in (config.client_address, config.reads_address, config.admin_address))
        what = (
            "can be reached by others, and keys protect only the port between gateways: clients, reads and admin pages are neither "
            "encrypted nor authenticated"
        )
        found.append(Mistake("listen", None, what, f"let only networks that you trust reach ports {ports}"))
    if config.group.transport == "multicast" and config.security.has_keys:
        what = 'is "multicast": what goes by it is sealed with keys, so that nobody else can speak for a gateway, but not encrypted'
        found.append(Mistake("group.transport", None, what, 'take "mesh" where nobody on the network may read along'))
    return found
