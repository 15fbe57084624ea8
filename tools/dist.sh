#!/usr/bin/env bash
# Builds sdist and wheel into dist/ and checks the wheel: tools/dist.sh PYTHON
# The wheel is built from the unpacked sdist, so a file that the sdist lacks fails the build. The check installs the wheel into a
# fresh environment outside of the checkout, with the dependencies of PYTHON's environment.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1")
dist=$PWD/dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$dist"
rm -f "$dist"/*.whl "$dist"/*.tar.gz
build() {
    "$python" -c 'import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])' "$@" \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
}
build build_sdist "$dist"
tar -xzf "$dist"/*.tar.gz -C "$work" --one-top-level=source --strip-components=1
(cd "$work/source" && build build_wheel "$dist")

"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-index "$dist"/*.whl
cd "$work"
PYTHONPATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PYTHONPATH
"$work/venv/bin/python" - <<'EOF'
import sys
from importlib import import_module
from pathlib import Path

for name in ("tutti", "tutti_gateway.cli.main", "tutti_spark.source.data_source", "tutti_connect", "pyspark_tutti"):
    found = Path(import_module(name).__file__)
    assert found.is_relative_to(sys.prefix), f"{name} is imported from {found}, not from the wheel"
packages = Path(import_module("tutti").__file__).parents[1]
for name in ("tutti/py.typed", "tutti_gateway/reads/admin/console/index.html", "tutti_gateway/cli/setup/shipped/conf/group.toml"):
    assert (packages / name).is_file(), f"the wheel lacks {name}"
EOF
"$work/venv/bin/tutti" --help >/dev/null
"$work/venv/bin/tutti" config init >/dev/null
"$work/venv/bin/tutti" examples >/dev/null
printf 'dist: %s\n' "$(cd "$dist" && ls -- *.tar.gz *.whl | xargs)"
