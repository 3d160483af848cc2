#!/bin/sh
# seed.sh DISK: makes the disk that cloud-init looks for (NoCloud): user-data and meta-data, and what user-data installs
# from there. The binary is RSAGENT_BIN, by default build/rsagent of this checkout. Needs genisoimage.
set -eu

here=$(dirname "$0")
genisoimage -quiet -volid cidata -joliet -rock -graft-points -output "$1" "$here/user-data" "$here/meta-data" \
	"$here/../systemd/rsagent.service" "$here/../systemd/rsagent-online.service" \
	"rsagent=${RSAGENT_BIN:-$here/../../build/rsagent}"
