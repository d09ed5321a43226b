#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh - installs what lily needs from the distribution's packages; prints what it does and does
# nothing where all is there. `setup.sh build` for building and running, `setup.sh test` for the test
# suite as well.
set -eu
build="gcc make curl pkg-config xz-utils git ca-certificates libjansson-dev nettle-dev libxxhash-dev libcurl4-gnutls-dev libmicrohttpd-dev libedit-dev"
test="g++ clang clang-format libclang-rt-14-dev libcmocka-dev python3 python3-venv"

packages=$build
[ "${1:-build}" = test ] && packages="$build $test"

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: this is no Debian system; please install yourself what corresponds to: $packages"
    exit 0
fi
missing=""
for p in $packages; do
    dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | grep -q '^installed$' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "setup: please install as root:$missing"
        exit 1
    }
    as_root=sudo
fi
echo "setup: installing$missing"
# A fresh machine has no package lists; an installed one may have old ones.
$as_root apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
