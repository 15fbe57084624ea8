#!/usr/bin/env bash
# Makes the virtual environment that every Make target runs in: tools/setup.sh VENV PYSPARK_VERSION
# Everything comes from requirements.lock (hashes checked); run again it changes only what the lock changed.
set -euo pipefail
venv=$1 pyspark=$2
cd "$(dirname "$0")/.."

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
step() { printf 'setup: %s\n' "$*" >&2; }
suits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
# The locked requirement named $1 with its hashes; with "others" as $2, all but that one.
locked() { awk -v name="$1" -v others="${2:-}" '/^[^ #]/ { mine = index($0, name "==") == 1 } mine == (others == "")' requirements.lock; }
locked_pyspark() {
    if [ "$pyspark" = "$default" ]; then locked pyspark; else cat "requirements-pyspark-$pyspark.lock"; fi
}

[ "$(uname -s)" = Linux ] || die "Tutti runs on Linux only, this is $(uname -s)."
command -v flock >/dev/null && exec 9>"$venv.lock" && flock 9  # two makes at once take turns

python=
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if suits "$candidate"; then python=$candidate; break; fi
done
[ -n "$python" ] || die "Python 3.11, 3.12 or 3.13 is needed and ${PYTHON:-none on PATH} is not one: install it (Debian: apt-get install python3.11 python3.11-venv) or name one with PYTHON=/path/to/python."
[ -f requirements.lock ] || die "requirements.lock is missing: take it from the repository, or run make lock."
default=$(locked pyspark | sed -n 's/^pyspark==\([^ ]*\).*/\1/p')
[ "$pyspark" = "$default" ] || [ -f "requirements-pyspark-$pyspark.lock" ] ||
    die "pyspark $pyspark is not locked; there are $default (the default) and $(ls requirements-pyspark-*.lock | sed 's/[^0-9]*\(.*\)[.]lock/\1/' | xargs)."

if [ -e "$venv" ] && ! { suits "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then rm -rf "$venv"; fi
if [ ! -e "$venv" ]; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        die "Python $version here has no venv module: install it (Debian: apt-get install python$version-venv)."
    step "1/5 a virtual environment in $venv, with Python $version"
    "$python" -m venv "$venv"
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
# No build isolation: the locked setuptools builds what comes as source, nothing else is fetched. Not compressed,
# because the wheel of pyspark is unpacked a moment later.
install() {
    pip install --require-hashes --no-deps --no-build-isolation --use-pep517 \
        --config-settings=--build-option=--compression=stored -r "$1"
}
install <(locked setuptools)
step "2/5 $(locked pyspark others | grep -c '^[^ #]') packages of requirements.lock, which takes minutes the first time"
install <(locked pyspark others)
step "3/5 pyspark $pyspark, the largest download"
install <(locked_pyspark)
step "4/5 tutti-ingest from this checkout, with its compiled part"
pip install --no-deps --no-build-isolation --editable .
# The editable install finds the packages by a hook; Spark looks for data sources along the path itself.
printf '%s\n' "$PWD" "$PWD/gateway" "$PWD/streaming" "$PWD/connectors" \
    >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tutti-checkout.pth"
step "5/5 Spark's settings, and a check of all packages"
"$venv/bin/python" -m tutti_spark.launch --install  # Spark started from here runs its Python workers with this interpreter
pip check
"$venv/bin/python" -c 'from tutti.batching.appender import compiled; raise SystemExit(compiled is None)' ||
    [ "${TUTTI_SWIFT:-}" = 0 ] ||
    printf "setup: send() is not compiled, which costs a third of its rate: there is no C compiler, or no header of Python (Debian: apt-get install gcc python3-dev, then rm .venv*/.ready and make setup)\n" >&2
printf 'setup: %s, %s, %s packages in %s\n' "$("$venv/bin/python" -V)" "pyspark $pyspark" "$("$venv/bin/python" -m pip list 2>/dev/null | tail -n +3 | wc -l)" "$venv"
