#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# setup.sh - installs what lily needs from the distribution's packages; prints what it does and does
# nothing where all is there. `setup.sh build` for building and running, `setup.sh test` for the test
# suite as well.
set -eu
build="gcc make curl pkg-config xz-utils git ca-certificates libjansson-dev nettle-dev libxxhash-dev libcurl4-gnutls-dev libmicrohttpd-dev libedit-dev"
test="zsh fish groff-base g++ clang clang-format libclang-rt-14-dev libcmocka-dev python3 python3-venv"

# For tests that are skipped by name without it.
wanted="chromium chromium-driver"

packages=$build
[ "${1:-build}" = test ] && packages="$build $test" || wanted=""

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "setup: this is no Debian system; please install yourself what corresponds to: $packages"
    exit 0
fi
is_missing() { ! dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -q '^installed$'; }
missing=""
missing_wanted=""
for p in $packages; do is_missing "$p" && missing="$missing $p"; done
for p in $wanted; do is_missing "$p" && missing_wanted="$missing_wanted $p"; done
[ -z "$missing$missing_wanted" ] && exit 0
as_root=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "setup: please install as root:$missing$missing_wanted"
        [ -z "$missing" ] # without the others some tests are skipped
        exit
    }
    as_root=sudo
fi
echo "setup: installing$missing$missing_wanted"
# A fresh machine has no package lists; an installed one may have old ones.
$as_root apt-get update -qq
install() { DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
# shellcheck disable=SC2086
[ -z "$missing" ] || install $missing
# shellcheck disable=SC2086
[ -z "$missing_wanted" ] || install $missing_wanted || echo "setup: without$missing_wanted some tests are skipped"
