#!/bin/bash
# build.sh deb|rpm …: packages for amd64 and arm64 (ARCHES), into build/packages (OUT). VERSION is the Makefile's;
# SOURCE_DATE_EPOCH, by default the time of the last commit, is every time stamp in them, so that the same source gives
# the same bytes; MAINTAINER, by default who made that commit. nfpm's version is fixed here, outside go.mod.
set -euo pipefail

nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
cd "$(dirname "$0")/../.."
root=$PWD
out=$(realpath -m "${OUT:-build/packages}")
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo unknown)}
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || true)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Makefile)}
MAINTAINER=${MAINTAINER:-$(git log -1 --format='%an <%ae>' 2>/dev/null || echo "rsagent <root@$(uname -n)>")}
export SOURCE_DATE_EPOCH MAINTAINER

# A package's version begins with a digit and has no dash; what is no release yet comes before all that are.
of_package=${version#v}
case $of_package in
[0-9]*.*) ;;
*) of_package=0~$of_package ;;
esac
of_package=${of_package//-/+}

umask 022
[ $# -gt 0 ] || { echo "usage: build.sh deb|rpm …" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GOBIN=$work/bin go install "$nfpm"
mkdir -p "$out"

for arch in ${ARCHES:-amd64 arm64}; do
	stage=$work/$arch
	GOARCH=$arch VERSION=$version COMMIT=$commit scripts/build.sh "$work/rsagent"
	scripts/install.sh "$work/rsagent" "$stage" /usr
	gzip -9n "$stage/usr/share/man/man8/rsagent.8"
	mkdir -p "$stage/package" "$stage/usr/share/doc/rsagent" "$stage/usr/share/lintian/overrides"
	cp scripts/package/p* "$stage/package"
	cp LICENSE "$stage/usr/share/doc/rsagent/copyright"
	cp scripts/package/lintian-overrides "$stage/usr/share/lintian/overrides/rsagent"
	printf 'rsagent (%s-1) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
		"$of_package" "$MAINTAINER" "$(date -uR -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$stage/usr/share/doc/rsagent/changelog.Debian.gz"
	find "$stage" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
	for format in "$@"; do
		(cd "$stage" && ARCH=$arch VERSION=$of_package \
			"$work/bin/nfpm" package --config "$root/scripts/nfpm.yaml" --packager "$format" --target "$out")
	done
done
