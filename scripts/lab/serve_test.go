package lab

import "testing"

func TestServe(t *testing.T) {
	guest(t)
	for _, mode := range []string{"dr", "tun"} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t)
			c.direct(t, mode, vip)
			for _, h := range c.real {
				classic{h}.start(t, mode, vip)
			}
			c.expectServed(t, 20, map[string]int{"rs1": 10, "rs2": 10}, vip)
			t.Log(dropped(t, c.real[0]))
		})
	}
}
