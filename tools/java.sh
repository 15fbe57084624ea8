#!/usr/bin/env bash
# Says in one sentence when the Java that Spark would start is missing or too old.
set -euo pipefail
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
advice="install one (Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at it."

command -v "$java" >/dev/null || { echo "java: Spark needs Java 17 or newer and there is no $java: $advice" >&2; exit 1; }
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p')
major=${version%%[.+-]*}
if ! [[ $major =~ ^[0-9]+$ ]] || [ "$major" -lt 17 ]; then
    echo "java: Spark needs Java 17 or newer and $java is ${version:-of no version it would tell}: $advice" >&2
    exit 1
fi
