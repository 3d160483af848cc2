#!/bin/sh
# test.sh [soak]: every test that can run on this machine. What could not is listed at the end, and is a failure where
# RSAGENT_TEST_ALL=1. soak: and those that have a long form in that, every host, point and round of it; and all of the
# lab on both kernels.
set -u

cd "$(dirname "$0")/.." || exit 1
RSAGENT_SKIPS=$(mktemp)
export RSAGENT_SKIPS
trap 'rm -f "$RSAGENT_SKIPS" "$RSAGENT_SKIPS".*' EXIT
failed=

race=
if command -v gcc >/dev/null; then
	race=-race
else
	echo "the race detector: needs gcc" >>"$RSAGENT_SKIPS"
fi

kernels=${RSAGENT_LAB_KERNEL:-6.1} rows='' soak=
if [ "${1-}" = soak ]; then
	kernels="6.1 6.12" rows=all soak=1
fi

# The images of the VMs are fetched meanwhile. What fails here is said by those who need them.
trap 'trap - TERM; kill 0' INT TERM
RSAGENT_LAB_IMAGE=1 go test -count=1 -p 1 -timeout 40m ./scripts/lab/... >/dev/null 2>&1 &

# What compiles and analyses makes much garbage, and has room for it.
GOGC=400 scripts/lint.sh || failed="$failed lint"
# shellcheck disable=SC2046,SC2086 # lists of words
GOGC=400 go test $race -timeout 20m $(go list ./... | grep -v '/scripts/\|/realserver$') || failed="$failed race"

# What waits for the kernel, for guests and for clocks half of the time goes on side by side, and the crash model takes what that
# leaves of the processors. It runs six times as long with the race detector: a few of its hosts do for that.
model() {
	GOGC=400 nice -n 19 go test -timeout 60m ./realserver || return
	[ -z "$race" ] || RSAGENT_TEST_STRIDE=211 nice -n 19 go test $race -timeout 20m -skip TestMutations ./realserver
}
model >"$RSAGENT_SKIPS.model" 2>&1 &
model=$!
# These run the program, and have little of their own to race.
# shellcheck disable=SC2046
go test -timeout 40m $(go list ./scripts/... | grep -v '/scripts/lab') >"$RSAGENT_SKIPS.scripts" 2>&1 &
scripts=$!
for kernel in $kernels; do
	RSAGENT_LAB_AGAIN=1 RSAGENT_LAB_KERNEL=$kernel RSAGENT_TEST_ROWS=$rows go test -v -p 3 -timeout 60m ./scripts/lab/... || failed="$failed lab-$kernel"
done
wait $scripts || failed="$failed scripts"
wait $model || failed="$failed realserver"
cat "$RSAGENT_SKIPS.scripts" "$RSAGENT_SKIPS.model"
if [ -n "$soak" ]; then
	# one package after the other, and without the race detector: that is what the short forms have
	RSAGENT_TEST_STRIDE=1 go test -v -p 1 -timeout 2h -skip TestMutations ./realserver ./scripts/hostile ./scripts/cases || failed="$failed long"
	RSAGENT_TEST_STRIDE=1 go test -v -timeout 2h -run "TestCase05|TestWatchTunnelDown" ./scripts/lab || failed="$failed lab-long"
	# shellcheck disable=SC2046
	go test -race -timeout 40m $(go list ./scripts/... | grep -v '/scripts/lab') || failed="$failed scripts-race"
fi

if [ -s "$RSAGENT_SKIPS" ]; then
	echo
	echo "COULD NOT RUN HERE:"
	sort -u "$RSAGENT_SKIPS" | sed 's/^/  /'
	[ "${RSAGENT_TEST_ALL-}" != 1 ] || failed="$failed skipped"
fi
if [ -n "$failed" ]; then
	echo "FAILED:$failed"
	exit 1
fi
