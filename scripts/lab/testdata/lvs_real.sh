#!/bin/bash
# lvs_real.sh start|stop VIP dr|tun: the script that rsagent replaces, as it is found at LVS sites (in bash; most of them
# run sysctl -p besides, which is left out here) and with what is found in it: the VIP is bound before ARP is silenced,
# rp_filter is opened for the whole host, and stop writes zeros where start found something else. The lab runs it beside
# rsagent, to see that its checks can fail.

conf=/proc/sys/net/ipv4/conf
vip=$2

start_dr() {
	ifconfig lo:0 "$vip" netmask 255.255.255.255 broadcast "$vip" up
	route add -host "$vip" dev lo:0
	silence lo
}

stop_dr() {
	ifconfig lo:0 down
	route del -host "$vip" 2>/dev/null
	answer lo
}

start_tun() {
	modprobe ipip
	ifconfig tunl0 "$vip" netmask 255.255.255.255 broadcast "$vip" up
	route add -host "$vip" dev tunl0
	silence tunl0
	echo 0 >$conf/tunl0/rp_filter
	echo 0 >$conf/all/rp_filter
}

stop_tun() {
	ifconfig tunl0 0.0.0.0 down
	answer tunl0
}

silence() {
	echo 1 >"$conf/$1/arp_ignore"
	echo 2 >"$conf/$1/arp_announce"
	echo 1 >$conf/all/arp_ignore
	echo 2 >$conf/all/arp_announce
}

answer() {
	echo 0 >"$conf/$1/arp_ignore"
	echo 0 >"$conf/$1/arp_announce"
	echo 0 >$conf/all/arp_ignore
	echo 0 >$conf/all/arp_announce
}

"$1_$3"
