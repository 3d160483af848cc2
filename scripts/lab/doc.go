// Package lab is the part of rsagent's tests that needs what a build host seldom has: ipip and IPVS with a director, a
// client and real servers, and udev, all on a stock kernel. Its tests run in a VM, see package vm.
//
// Hosts are network namespaces of that VM. Whether rsagent is right is told by connections that are served, frames that
// are seen, ip, nstat and /proc; rsagent's own words are only held against them. testdata/lvs_real.sh is the script that
// rsagent replaces: where it runs too, it shows that a check can fail.
package lab
