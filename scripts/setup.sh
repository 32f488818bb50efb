#!/bin/sh
# Installs what building, running and testing need, on Debian and its kin. As root, or through sudo.
set -eu
packages="gcc clang cmake ninja-build pkg-config git liblua5.4-dev libjansson-dev libzstd-dev zlib1g-dev libxxhash-dev
libutf8proc-dev libdnnl-dev libcmocka-dev python3"
[ "${1:-}" = ci ] && packages="$packages clang-format-14 libclang-rt-14-dev llvm-14 lua-check"
missing=""
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
