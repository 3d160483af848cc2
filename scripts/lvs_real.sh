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
	else
		case ${1-} in
		stop | status) ;; # the one must come to its end, the other needs no VIP=
		*) exit 2 ;;
		esac
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

# judged VERB: rsagent's verb with the config of VIP=. Where that cannot be, the reason names what it was made of.
judged() {
	{ said=$(rsagent "$1" --config "$list" 2>&1 >&3); code=$?; } 3>&1
	case $said in
	"") return $code ;;
	"rsagent: $list:"*) # FILE:LINE: WHY
		said=${said#"rsagent: $list:"}
		fail $code "$whose: ${said#*: }"
		;;
	esac
	say "$said" >&2
	return $code
}

# stop takes out what came from a config, whatever that says by now, and what it does say, whoever bound it. Where there is
# no config, it takes out all. A VIP that it leaves, because that was started by itself, is a failure: it is still served.
stop() {
	unset RSAGENT_VIP
	(config)
	code=$?
	file=${RSAGENT_CONFIG:-/etc/rsagent/rsagent.yaml}
	if [ $code = 0 ]; then
		(judged stop)
		code=$?
	elif [ $code = 1 ] && [ -z "${RSAGENT_CONFIG-}" ] && [ ! -e "$file" ]; then
		exec rsagent stop
	elif [ $code = 1 ]; then
		rsagent stop --config "$file"
		code=$?
	else
		code=2
	fi
	if [ $code = 2 ]; then
		rsagent stop --config /dev/null
		code=$?
	fi
	[ $code = 0 ] || exit $code
	rsagent status >/dev/null 2>&1
	case $? in
	0 | 1) fail 1 "VIPs that were started one by one stay, as rsagent status shows: $me stop VIP, or for all of them: rsagent stop" ;;
	esac
	exit 0
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
# One that came from a config is reloaded with it: a start would make it one that was asked for by hand too.
"restart vip" | "reload vip")
	case ${3-},$(rsagent status --vip "$2" --output json 2>/dev/null) in
	,*'"origin":["config"'*) verb=reload ;;
	*) exec rsagent start --vip "$2" ;;
	esac
	;;
# For rsagent.service: the config of VIP=, and its name where the unit reads it.
"config ")
	config || exit 0
	judged status >/dev/null
	[ $? != 2 ] || exit 2
	say "RSAGENT_CONFIG=$list" >"$state/environment"
	exit
	;;
*) usage ;;
esac

config || exec rsagent "$verb"
judged "$verb"
