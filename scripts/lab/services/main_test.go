package services

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"rsagent/scripts/lab/vm"
)

// Each boot leaves the guest as the next one is to find it, in tests whose names say which; all others run in the last.
var guest = &vm.Guest{
	// Those of package lab, to have one image for both.
	Packages: []string{"arping", "ipvsadm", "keepalived", "net-tools", "nftables"},
	Tools:    []string{"bash", "make"},
	Prepare:  prepare,
	Boots:    []string{"^Test([^B]|Boot[^1])", "^Test([^B]|Boot[^2])", "^TestBoot[12]"},
}

var segment *lan

// An old and a new package, named as build.sh names them.
const oldDeb, newDeb = "/job/debs/rsagent_1.0.0-1_amd64.deb", "/job/debs/rsagent_1.1.0-1_amd64.deb"

func prepare(ctx context.Context, dir, job string) ([]string, error) {
	debs := filepath.Join(job, "debs")
	for _, version := range []string{"1.0.0", "1.1.0"} {
		env := []string{"VERSION=" + version, "ARCHES=amd64", "OUT=" + debs}
		if err := run(ctx, env, "../../package/build.sh", "deb"); err != nil {
			return nil, err
		}
	}
	if err := run(ctx, nil, "cp", "/bin/busybox", job); err != nil {
		return nil, err
	}
	if err := run(ctx, nil, "cp", "../testdata/lvs_real.sh", filepath.Join(job, "classic.sh")); err != nil {
		return nil, err
	}
	if err := run(ctx, nil, "cp", "../../../README.md", job); err != nil {
		return nil, err
	}
	if err := run(ctx, nil, "make", "-C", "../../..", "install", "PREFIX=/usr", "DESTDIR="+filepath.Join(job, "root")); err != nil {
		return nil, err
	}
	var err error
	var qemu []string
	segment, qemu, err = newLAN(ctx, dir)
	return qemu, err
}

func TestMain(m *testing.M) {
	code := guest.Main(m)
	if segment != nil {
		all := code == 0 && flag.Lookup("test.run").Value.String() == ""
		if err := segment.judge(all); err != nil {
			fmt.Printf("FAIL\n%v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
