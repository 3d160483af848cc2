package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The states of connections, by include/uapi/linux/netfilter/nf_conntrack_common.h: NF_CT_STATE_INVALID_BIT,
// NF_CT_STATE_BIT(IP_CT_NEW) and NF_CT_STATE_UNTRACKED_BIT.
const (
	stateInvalid   = 1
	stateNew       = 8
	stateUntracked = 64
)

// A tracking is whether the packet is kept from conntrack.
type tracking int

const (
	tracked tracking = iota
	mayBeTracked
	untracked
)

// conntrackPriority is where in prerouting conntrack comes (NF_IP_PRI_CONNTRACK). To rules before it the packet is of no
// connection, which is the state invalid; only they can keep it from conntrack (net/netfilter/nft_ct.c, nft_ct_get_eval).
const conntrackPriority = -200

func (j *judge) early() bool {
	return j.base.Hook == unix.NF_INET_PRE_ROUTING && j.base.Priority < conntrackPriority
}

func (j *judge) untrack(sure bool) {
	switch {
	case !j.early():
	case sure && j.certain:
		j.track = untracked
	case j.track == tracked:
		j.track = mayBeTracked
	}
}

// state is that of the packet's connection; known is false where it cannot be told.
func (j *judge) state() (state uint32, known bool) {
	switch {
	case j.track == untracked:
		return stateUntracked, true
	case j.track == mayBeTracked, j.base.Hook == unix.NF_INET_PRE_ROUTING && j.base.Priority == conntrackPriority:
		return 0, false
	case j.early():
		return stateInvalid, true
	}
	return stateNew, true
}

func (j *judge) ct(e Expr) {
	if e.num[1] == 0 { // it is written to
		return
	}
	j.forget(e.num[1])
	if state, known := j.state(); known && e.num[2] == unix.NFT_CT_STATE {
		j.set(e.num[1], binary.NativeEndian.AppendUint32(nil, state))
	}
}
