package arp

import (
	"testing"

	"rsagent/sysctl"
)

// TestRules holds the policy to what the kernel does, as it was measured on Linux 6.1 and 6.18: which
// values in effect on the interface asked on make a host answer for a VIP on lo, or send it.
func TestRules(t *testing.T) {
	for _, m := range []struct {
		knob          string
		value         int
		global, scope bool // silent with the VIP's scope global; host
	}{
		{sysctl.ARPIgnore, 0, false, false},
		{sysctl.ARPIgnore, 1, true, true},
		{sysctl.ARPIgnore, 2, true, true},
		{sysctl.ARPIgnore, 3, false, true},
		{sysctl.ARPIgnore, 4, false, false},
		{sysctl.ARPIgnore, 5, false, false},
		{sysctl.ARPIgnore, 6, false, false},
		{sysctl.ARPIgnore, 7, false, false},
		{sysctl.ARPIgnore, 8, true, true},
		{sysctl.ARPIgnore, 9, false, false},
		{sysctl.ARPIgnore, 100, false, false},
		{sysctl.ARPAnnounce, 0, false, false},
		{sysctl.ARPAnnounce, 1, false, false},
		{sysctl.ARPAnnounce, 2, true, true},
		{sysctl.ARPAnnounce, 3, false, false},
		{sysctl.ARPAnnounce, 100, false, false},
	} {
		for host, want := range map[bool]bool{false: m.global, true: m.scope} {
			for _, r := range Rules(host) {
				if r.Knob == m.knob && r.Good(m.value) != want {
					t.Errorf("%s %d with scope host %t: good is %t", m.knob, m.value, host, !want)
				}
			}
		}
	}
}

// TestRulesAreWhole: what a rule writes must serve, and each row says why, and where that is written.
func TestRulesAreWhole(t *testing.T) {
	for _, host := range []bool{false, true} {
		rules := Rules(host)
		if len(rules) != 2 || rules[0].Knob != sysctl.ARPIgnore || rules[1].Knob != sysctl.ARPAnnounce {
			t.Fatalf("scope host %t: the rules are %+v", host, rules)
		}
		for _, r := range rules {
			if !r.Good(r.Want) {
				t.Errorf("%s: what it writes, %d, is not good", r.Knob, r.Want)
			}
			if r.Why == "" || r.Source == "" {
				t.Errorf("%s has no reason or no source", r.Knob)
			}
		}
	}
}
