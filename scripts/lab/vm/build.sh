#!/bin/sh
# build.sh PACKAGE…: builds an image, a stock Debian kernel and a Debian root with systemd and those packages, and prints
# the folder that holds it: vmlinuz, initrd, root.img. It is built once for each text of this file, list of packages and
# RSAGENT_LAB_KERNEL (6.1 or 6.12). Needs root, and the packages mmdebstrap, e2fsprogs, kmod, busybox-static.
set -eu

kernel=${RSAGENT_LAB_KERNEL:-6.1}
cache=${RSAGENT_LAB_CACHE:-${XDG_CACHE_HOME:-/var/cache}/rsagent-lab}
case $kernel in
6.1) meta=linux-image-cloud-amd64 ;;
6.12) meta=linux-image-6.12-cloud-amd64 ;;
*) echo "build.sh: RSAGENT_LAB_KERNEL=$kernel: want 6.1 or 6.12" >&2; exit 2 ;;
esac

. /etc/os-release
image=$cache/$( (cat "$0"; echo "$kernel $VERSION_CODENAME $*") | sha256sum | cut -c1-16)

# The host's own Debian mirrors, so that a site with a mirror of its own uses that; other vendors' sources stay out.
sources() {
	apt-get indextargets 'Created-By: Packages' 'Origin: Debian' \
		--format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)' |
		grep -E " $VERSION_CODENAME(-security|-updates)? "
}

# Runs inside mmdebstrap, whose apt knows the root's package lists.
add_kernel() {
	export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
	package=$(apt-cache depends --important "$meta" | sed -n 's/^ *Depends: \(linux-image-[0-9]\)/\1/p' | head -n 1)
	cd "$work"
	apt-get -qq -o APT::Sandbox::User=root download "$package"
	dpkg -x "$package"_*.deb kernel
	mkdir -p "$1/lib/modules"
	cp -a kernel/lib/modules/* "$1/lib/modules/"
	release=$(ls kernel/lib/modules)
	depmod -b "$1" "$release"
	cp "kernel/boot/vmlinuz-$release" out/vmlinuz
	make_initrd "$1" "$release"
}

# Disk and file system are modules in Debian's kernel: a busybox that loads them and switches to the root.
make_initrd() {
	mkdir -p initrd/bin initrd/modules initrd/proc initrd/dev initrd/root
	cp "$(command -v busybox)" initrd/bin/busybox
	n=100
	for module in virtio_pci virtio_blk ext4; do # what is built in shows as another verb than insmod
		modprobe -d "$1" -S "$2" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
	done | awk '!seen[$0]++' | while read -r path; do
		n=$((n + 1))
		case $path in
		*.xz) xz -dc "$path" >"initrd/modules/$n.ko" ;;
		*) cp "$path" "initrd/modules/$n.ko" ;;
		esac
	done
	cat >initrd/init <<-'INIT'
		#!/bin/busybox sh
		busybox mount -t proc proc /proc
		busybox mount -t devtmpfs dev /dev
		for m in /modules/*.ko; do busybox insmod $m; done
		busybox mount -t ext4 /dev/vda /root || exit 1
		busybox mount --move /dev /root/dev
		busybox umount /proc
		exec busybox switch_root /root /sbin/init
	INIT
	chmod +x initrd/init
	(cd initrd && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >out/initrd
}

# The last thing the boot does is run what the second disk says; its output has a serial line that nothing else writes to.
add_job() {
	echo lab >"$1/etc/hostname"
	echo 127.0.0.1 localhost lab >"$1/etc/hosts"
	echo 0123456789abcdef0123456789abcdef >"$1/etc/machine-id" # without one, systemd takes it for a first boot
	echo /dev/vda / ext4 defaults 0 0 >"$1/etc/fstab"
	mkdir "$1/job"
	cat >"$1/etc/systemd/system/job.service" <<-'UNIT'
		[Unit]
		After=multi-user.target
		[Service]
		ExecStartPre=/bin/mount /dev/vdb /job
		ExecStart=/bin/sh /job/run
		ExecStopPost=/bin/sh -c 'test -e /run/job-goes-on || systemctl poweroff --force --force'
		WorkingDirectory=/
		TTYPath=/dev/ttyS1
		StandardOutput=tty
		StandardError=tty
	UNIT
	# Where there is cloud-init: no locale that takes files which the image leaves out, one key only, and no NIC of its own.
	[ ! -d "$1/etc/cloud" ] || printf '%s\n' 'locale: C.UTF-8' 'ssh_genkeytypes: [ed25519]' 'network: {config: disabled}' >"$1/etc/cloud/cloud.cfg.d/lab.cfg"
	mkdir -p "$1/etc/systemd/system/graphical.target.wants"
	ln -s ../job.service "$1/etc/systemd/system/graphical.target.wants/"
	for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer e2scrub_all.timer \
		e2scrub_reap.service systemd-timesyncd.service ipvsadm.service keepalived.service ssh.service getty.target; do
		ln -sf /dev/null "$1/etc/systemd/system/$unit"
	done
}

case ${1:-} in
add_kernel | add_job)
	"$@"
	exit
	;;
esac

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -e "$image" ]; then
	echo "$image"
	exit
fi
echo "lab: building the image in $image" >&2
rm -rf --one-file-system "$cache"/build.* # of a build that was killed
packages=$(echo systemd systemd-sysv udev dbus kmod procps iproute2 "$@" | tr ' ' ,)
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
export work meta
mkdir "$work/out"
[ -n "$(sources)" ] || apt-get -qq update >&2
sources >"$work/sources.list"
apt-config dump | grep -E '^Acquire::(http|https|Check|Retries)' >"$work/apt.conf" || true
self=$(realpath "$0")
mmdebstrap --quiet --mode=root --variant=minbase --include="$packages" --aptopt="$work/apt.conf" \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--customize-hook="$self add_kernel"' "$1"' --customize-hook="$self add_job"' "$1"' \
	"$VERSION_CODENAME" "$work/root" "$work/sources.list" >&2
mkfs.ext4 -q -d "$work/root" -E lazy_itable_init=0 "$work/out/root.img" 1500M >&2
mv "$work/out" "$image"
echo "$image"
