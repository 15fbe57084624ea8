"""Check of the Java that Spark will start."""

from __future__ import annotations

from tutti.errors import Unavailable
from tutti_gateway.cli.doctor.machine import Finding


def java() -> Finding:
    """Check that Spark can start Java, and that the version is supported."""
    from tutti_spark.common.java import INSTALL, find_java
    from tutti_spark.common.requirements import JAVA_MIN

    try:
        found = find_java()
    except Unavailable as error:
        return Finding("java", False, str(error), INSTALL)
    return Finding("java", found.major >= JAVA_MIN, f"{found.version} at {found.command}", INSTALL)
