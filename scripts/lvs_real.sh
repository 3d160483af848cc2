#!/bin/sh
# lvs_real.sh start|stop|restart|reload|status [VIP [dr|tun]]
#
# Takes the place of the script of that name which LVS sites carry: the same verbs, the same variable, on top of
# rsagent. The VIPs are those of VIP="a b c" in /etc/default/rsagent or /etc/sysconfig/rsagent, or in the line below, or
# in the environment; where there are none, those of /etc/rsagent/rsagent.yaml. A VIP on the command line is that one
# alone. Options are variables there too: RSAGENT_MODE=tun. Exit codes: rsagent(8).
#
# The init script and rsagent.service use it as well, so that VIP= means the same to all of them.

#VIP="192.0.2.100 192.0.2.101"

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 022
me=${0##*/}

say() { # as it is: echo may take what stands in a variable for an escape
	printf '%s\n' "$*"
}

fail() { # CODE WORD…
	code=$1
	shift
	say "$me: $*" >&2
	exit "$code"
}

usage() {
	say "Usage: $me {start|stop|restart|reload|status} [VIP [dr|tun]]" >&2
	exit 2
}

# The defaults are the administrator's shell, by Debian's convention. What comes out of them is data.
set -a
whose="VIP="
for file in /etc/default/rsagent /etc/sysconfig/rsagent; do
	[ -e "$file" ] || continue
	[ -r "$file" ] || fail 4 "$file: permission denied"
	whose="VIP= in $file"
	if sh -n "$file"; then
		# shellcheck source=/dev/null
		. "$file"
	elif [ "${1-}" != stop ]; then # which must come to its end
		exit 2
	fi
done
set +a
set -f # a VIP is no pattern
state=${RSAGENT_STATE_DIR:-/run/rsagent}
list=$state/default.yaml

if ! command -v rsagent >/dev/null; then
	[ "${1-}" = status ] && code=4 || code=5 # LSB: unknown; not installed
	fail "$code" "rsagent is not installed (looked in $PATH)"
fi

# config makes a config of VIP=, so that a reload knows which of them have gone. It ends with 1 where there are none.
config() {
	vips=$(printf %s "${VIP-}" | tr '\t,' '  ')
	text=vips:
	for vip in $vips; do
		case $vip in
		*[!0-9A-Fa-f.:/]*) fail 2 "$whose: \"$vip\" is not an IP address" ;;
		esac
		text="$text
  - '$vip'"
	done
	[ "$text" != vips: ] || return 1
	if ! { mkdir -p "$state" && say "$text" >"$list.$$" && mv -f "$list.$$" "$list"; }; then
		rm -f "$list.$$"
		fail 4 "cannot write $list, the config that is made of $whose (run as root)"
	fi
}

# judged VERB: rsagent's verb with the config of VIP=. Where that cannot be, it says whose it is, and that is the end.
judged() {
	rsagent "$1" --config "$list"
	code=$?
	[ $code != 2 ] || fail 2 "$list is made of $whose"
	return $code
}

# stop takes out what came from a config, whatever VIP= says by now, and what it does say, whoever bound that.
stop() {
	if (config); then
		rsagent stop --config "$list"
		code=$?
		[ $code = 2 ] || exit $code
		say "$me: $list is made of $whose" >&2
	fi
	exec rsagent stop --config /dev/null
}

[ $# -le 3 ] || usage
case ${3-} in
"") ;;
dr | tun) RSAGENT_MODE=$3 && export RSAGENT_MODE ;;
*) usage ;;
esac
case "${1-} ${2:+vip}" in
"start " | "reload ") verb=$1 ;;
# Not a stop and a start: nothing that is to stay blinks.
"restart ") verb=reload ;;
"stop ") stop ;; # does not come back
"status ") exec rsagent status ;;
"start vip" | "stop vip" | "status vip") exec rsagent "$1" --vip "$2" ;;
"restart vip" | "reload vip") exec rsagent start --vip "$2" ;;
# For rsagent.service: the config of VIP=, and its name where the unit reads it.
"config ")
	config || exit 0
	judged status >/dev/null
	say "RSAGENT_CONFIG=$list" >"$state/environment"
	exit
	;;
*) usage ;;
esac

config || exec rsagent "$verb"
judged "$verb"
