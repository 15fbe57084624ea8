"""The deterministic protocol stack of the group, without I/O: events in, actions out (protocol/lifecycle, L1)."""

from tutti_gateway.core import limit_relations as _relations  # noqa: F401 - asserts the relations of the limits wherever one is used
