#!/bin/sh
# need.sh demo|test|bench|lint: installs the outside programs that a target of the Makefile uses, where they are
# missing, by apt-get, and says so. Without root or apt-get it only says what is missing: what can run then runs.
set -eu

demo="ip:iproute2 arping:arping tcpdump:tcpdump"
bench="ip:iproute2 ifconfig:net-tools time:time"
lint="shellcheck:shellcheck ansible-lint:ansible-lint"
test="$demo $bench $lint nft:nftables jq:jq strace:strace gcc:gcc git:git ps:procps setpriv:util-linux capsh:libcap2-bin
	qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mkfs.ext4:e2fsprogs busybox:busybox-static depmod:kmod
	cpio:cpio xz:xz-utils genisoimage:genisoimage
	ansible-playbook:ansible-core ssh:openssh-client dpkg-deb:dpkg lintian:lintian rpm:rpm fish:fish zsh:zsh
	systemd-analyze:systemd systemd-socket-activate:systemd"

case ${1-} in
demo) want=$demo ;;
test) want=$test ;;
bench) want=$bench ;;
lint) want=$lint ;;
*) echo "usage: need.sh demo|test|bench|lint" >&2; exit 2 ;;
esac

PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in $want; do
	command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "not installed, and only root can (by apt-get):$missing" >&2
	exit 0
fi
echo "installing by apt-get:$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt-get -q update >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
# shellcheck disable=SC2086 # a list of names
apt-get -q -y install --no-install-recommends $missing >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
