#!/usr/bin/env bash
# Pins what pyproject.toml asks for: requirements.lock for all Pythons (3.11-3.13) with the default pyspark, those of
# them that a gateway's image has, and a file of its own for each other pyspark: tools/lock.sh UV. What is locked stays as it is unless pyproject.toml rules
# it out; UPGRADE=1 takes the newest of everything.
set -euo pipefail
uv=$1 default=4.2.0 others="4.3.0"
cd "$(dirname "$0")/.."

compile() {
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
        --custom-compile-command "make lock" ${UPGRADE:+--upgrade} "$@"
}
compile --all-extras --constraint <(echo "pyspark==$default") --output-file requirements.lock pyproject.toml
# What the image of a gateway is made of, at the same versions.
compile --extra kafka --extra zeromq --constraint requirements.lock --output-file requirements-gateway.lock pyproject.toml <(printf 'setuptools\n')
for version in $others; do
    echo "pyspark==$version" | compile --no-deps --output-file "requirements-pyspark-$version.lock" -
done
printf 'lock: %s packages pinned, pyspark %s by default, %s beside it\n' "$(grep -c '^[a-z]' requirements.lock)" "$default" "$others"
