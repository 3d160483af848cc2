#!/bin/sh
# build.sh FILE: the static binary, for GOARCH, as VERSION and COMMIT. Without inlining, but in what runs often, it is a
# twentieth smaller, and no verb the slower for it.
set -eu
out=$(realpath -m "$1")
cd "$(dirname "$0")/.."
CGO_ENABLED=0 GOOS=linux exec go build -buildvcs=false -trimpath -tags urfave_cli_no_docs \
	-gcflags all=-l -gcflags rsagent/...= -gcflags runtime/...= -gcflags internal/runtime/...= \
	-ldflags "-s -w -X main.version=${VERSION-} -X main.commit=${COMMIT-}" -o "$out" ./cmd/rsagent
