"""The group stack without I/O: events in, actions out, deterministic (design, section 4)."""

from tutti_gateway.core import relations as _relations  # noqa: F401 - asserted wherever a bound is used
