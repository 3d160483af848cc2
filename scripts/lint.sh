#!/bin/sh
# lint.sh: gofmt, go vet, staticcheck, shellcheck, go mod tidy, and govulncheck where its database can be reached. The
# versions are fixed here, outside go.mod.
set -u

cd "$(dirname "$0")/.." || exit 1
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0
failed=
bad() { echo "lint: $1"; failed=1; }

unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || bad "gofmt would change: $unformatted"
go vet ./... && go vet -tags bench ./scripts/bench || bad "go vet"
go run "$staticcheck" ./... || bad "staticcheck"
go mod tidy -diff || bad "go mod tidy would change go.mod or go.sum"
if command -v shellcheck >/dev/null; then
	grep -rlE '^#!/bin/(ba)?sh|^#!/usr/bin/env bash' scripts .ci --exclude-dir=testdata | xargs shellcheck -S warning || bad "shellcheck"
else
	echo "shellcheck: not installed" >>"${RSAGENT_SKIPS:-/dev/stderr}"
fi
vulns=$(go run "$govulncheck" ./cmd/rsagent 2>&1)
case $? in
0) ;;
*) case $vulns in
	*"fetching vulnerabilities"* | *"dial tcp"* | *"no such host"*) echo "lint: govulncheck not run: its database cannot be reached" ;;
	*) echo "$vulns"; bad "govulncheck" ;;
	esac ;;
esac
if command -v ansible-lint >/dev/null; then
	(cd scripts/ansible && ansible-lint --offline --nocolor -q) || bad "ansible-lint"
else
	echo "ansible-lint: not installed" >>"${RSAGENT_SKIPS:-/dev/stderr}"
fi
[ -z "$failed" ] && echo "lint: ok"
exit ${failed:-0}
