"""All laws, in the order in which they are measured and told."""

from __future__ import annotations

from benchmarks.laws import clients, log, sizes
from benchmarks.laws.law import Law

LAWS: dict[str, Law] = {**sizes.LAWS, **clients.LAWS, **log.LAWS}
