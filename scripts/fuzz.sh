#!/bin/sh
# fuzz.sh TIME: runs each fuzz target of the module for TIME (a Go duration).
set -eu

cd "$(dirname "$0")/.."
for pkg in $(go list ./...); do
	for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
		echo "$pkg $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$pkg"
	done
done
