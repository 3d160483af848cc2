package testnet

import (
	"net"
	"testing"
)

// NIC is an interface of the host.
func (h *Host) NIC(t testing.TB, name string) *net.Interface {
	t.Helper()
	var nic *net.Interface
	var err error
	h.Do(func() { nic, err = net.InterfaceByName(name) })
	if err != nil {
		t.Fatalf("on %s: %s: %v", h.Name, name, err)
	}
	return nic
}
