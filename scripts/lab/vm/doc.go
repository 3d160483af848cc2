// Package vm boots a stock Debian in qemu and runs the test binary of the calling package again in there, as root: what
// that prints is passed on, and how it ends is how the host's run ends. Flags such as -run and -v go through to it.
//
//	var guest = vm.Guest{Packages: []string{"ipvsadm"}}
//
//	func TestMain(m *testing.M)      { os.Exit(guest.Main(m)) }
//	func TestSomething(t *testing.T) { guest.Need(t); … }
//
// It needs root, qemu-system-x86_64 and what build.sh names. Without them the tests skip, or fail if RSAGENT_TEST_ALL=1.
// RSAGENT_LAB_KERNEL=6.12 takes a newer kernel than 6.1. Images are kept in RSAGENT_LAB_CACHE, by default under
// XDG_CACHE_HOME or /var/cache; with RSAGENT_LAB_IMAGE=1 that is all that is done, the image is built.
package vm
