#!/bin/sh
# bootstrap.sh - install the Debian packages which building, checking or fuzzing Lignum needs and this machine lacks.
#
# usage: tools/bootstrap.sh [build|check|long|bench]
#   build   what compiling needs (the default)
#   check   also what `make check` and `make lint` need
#   long    also what `make check-long` and the fuzz targets need
#   bench   also what `make bench` needs to build a peer
# Does nothing, quickly, when all are there.  Installs as root or through sudo; otherwise says what to install and fails.
set -eu

packages="meson ninja-build pkgconf gcc libc6-dev libpcre2-dev libutf8proc-dev libevent-dev libsodium-dev libssl-dev libcmocka-dev"
case "${1:-build}" in
build) ;;
check) packages="$packages clang-format python3 python3-venv libopenmpi-dev openmpi-bin" ;;
bench) packages="$packages python3 python3-pip cmake g++ make" ;;
long) packages="$packages libopenmpi-dev openmpi-bin clang-format python3 python3-venv clang clang-tidy libclang-rt-14-dev" ;;
*)
    echo "usage: tools/bootstrap.sh [build|check|long|bench]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    command -v meson >/dev/null && command -v ninja >/dev/null && exit 0
    echo "bootstrap: this is not Debian, so install what these packages hold: $packages" >&2
    exit 1
fi

# shellcheck disable=SC2086
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null || true)
missing=
for p in $packages; do
    case "
$installed
" in
    *"
installed $p
"*) ;;
    *) missing="$missing $p" ;;
    esac
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
        echo "bootstrap: these Debian packages are missing, and this user is neither root nor allowed to use sudo:" >&2
        echo "bootstrap: as root, run: apt-get install$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "bootstrap: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
if ! { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "bootstrap: apt-get could not install$missing" >&2
    exit 1
fi
