#!/bin/bash
# demo.sh RSAGENT: the main job, on a real server and a neighbour made of network namespaces. The neighbour asks for the
# VIP by ARP all the time: the classic script's order answers, rsagent does not. Ends non-zero where that is not so.
set -eu
unset RSAGENT_BIN RSAGENT_SKIPS RSAGENT_TEST_ALL RSAGENT_TEST_STRIDE RSAGENT_LAB_KERNEL RSAGENT_LAB_CACHE RSAGENT_LAB_AGAIN # of the tests

rsagent=$(realpath "$1")
classic=$(dirname "$(realpath "$0")")/lab/testdata/lvs_real.sh
[ "$(id -u)" = 0 ] || { echo "the demo makes network namespaces: run it as root" >&2; exit 1; }

vip=192.0.2.100
rs=rsa-demo-$$-rs
peer=rsa-demo-$$-peer
work=$(mktemp -d)

cleanup() {
	ip netns pids "$peer" 2>/dev/null | xargs -r kill 2>/dev/null || true
	ip netns del "$rs" 2>/dev/null || true
	ip netns del "$peer" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

on() { ip netns exec "$@"; }
agent() { on "$rs" "$rsagent" "$@" --state-dir "$work/state"; }
say() { printf '\n== %s\n' "$*"; }
show() { printf '$ rsagent %s\n' "$*"; agent "$@"; }

# baseline is everything a stop must give back.
baseline() {
	on "$rs" sh -c 'grep -r . /proc/sys/net/ipv4/conf 2>/dev/null | sort; ip addr show up; ip route show table all' |
		sed 's/valid_lft.*//'
}

# leaks COMMAND…: runs it 20 times while the neighbour asks, and prints how many replies for the VIP it saw.
leaks() {
	on "$peer" tcpdump -l -n -i eth0 "arp[6:2] = 2 and src host $vip" >"$work/wire" 2>"$work/started" &
	local dump=$!
	on "$peer" arping -q -i eth0 -W 0.001 -c 100000 "$vip" >/dev/null 2>&1 &
	local ask=$!
	for _ in $(seq 100); do grep -q listening "$work/started" && break; sleep 0.05; done
	for _ in $(seq 20); do "$@"; done
	sleep 0.2
	kill "$ask" "$dump"
	wait "$ask" "$dump" 2>/dev/null || true
	wc -l <"$work/wire"
}

classic_cycle() { on "$rs" sh "$classic" start "$vip" dr; on "$rs" sh "$classic" stop "$vip" dr; }
rsagent_cycle() { agent start --vip "$vip"; agent stop; } >/dev/null

ip netns add "$rs"
ip netns add "$peer"
ip link add eth0 netns "$rs" type veth peer name eth0 netns "$peer"
for end in "$rs 192.0.2.11" "$peer 192.0.2.1"; do
	ip -n "${end% *}" addr add "${end#* }/24" dev eth0
	ip -n "${end% *}" link set eth0 addrgenmode none up # no IPv6 address that comes late
	ip -n "${end% *}" link set lo up
done

say "A neighbour asks for the VIP $vip about a thousand times a second, while a real server starts and stops 20 times"
old=$(leaks classic_cycle)
new=$(leaks rsagent_cycle)
printf '%-30s %5d ARP replies\n' "the classic script" "$old" "rsagent" "$new"
[ "$old" -gt 0 ] || { echo "the classic script did not leak: this demo shows nothing" >&2; exit 1; }
[ "$new" -eq 0 ] || { echo "rsagent leaked" >&2; exit 1; }

before=$(baseline)
say "Start"
show start --vip "$vip"
say "Start again: nothing to do"
show start --vip "$vip"
say "Status"
show status
say "The neighbour asks, and hears nothing"
echo "\$ arping -c 3 $vip"
if on "$peer" arping -i eth0 -c 3 -W 0.1 "$vip"; then echo "answered" >&2; exit 1; fi
say "Stop: everything goes back"
show stop
[ "$(baseline)" = "$before" ] || { echo "the host is not as it was" >&2; diff <(echo "$before") <(baseline) >&2 || true; exit 1; }
echo "all of /proc/sys/net/ipv4/conf, the addresses and the routes are as before the start"
