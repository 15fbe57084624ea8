"""The deterministic protocol stack of the group, without I/O: events in, actions out (protocol/lifecycle, L1)."""

from tutti_gateway.core import limit_relations as _relations  # noqa: F401 - the import asserts the relations between the limits
