// Package lab is the part of rsagent's tests that needs what a build host seldom has: ipip, IPVS, udev and systemd on
// a stock kernel. `go test ./scripts/lab` boots Debian in qemu, runs this package's test binary again in there as root,
// and passes on what it prints; flags such as -run and -v go through to it.
//
// It needs root, qemu-system-x86_64 and what build.sh names. Without them the tests skip, or fail if RSAGENT_TEST_ALL=1.
// RSAGENT_LAB_KERNEL=6.12 takes a newer kernel than 6.1. The image is kept in RSAGENT_LAB_CACHE, by default under
// XDG_CACHE_HOME or /var/cache.
package lab
