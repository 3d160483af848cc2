#!/bin/sh
# install.sh BINARY DESTDIR PREFIX: puts the binary, units, init script, man page and completions in their places, for
# `make install` and for the packages. Config files that are there stay as they are.
set -eu

here=$(dirname "$(realpath "$0")")
binary=$1 dest=$2 prefix=$3
umask 022

put() { # MODE FILE PLACE: the files name PREFIX /usr, where they name one
	mkdir -p "$dest$(dirname "$3")"
	rm -f "$dest$3"
	sed "s|/usr/lib/rsagent|$prefix/lib/rsagent|g" "$here/$2" >"$dest$3"
	chmod "$1" "$dest$3"
}

keep() { [ -e "$dest$3" ] || put "$@"; }

install -D -m 0755 "$binary" "$dest$prefix/sbin/rsagent"
put 0755 lvs_real.sh "$prefix/lib/rsagent/lvs_real.sh"
put 0755 init.d/rsagent /etc/init.d/rsagent
for unit in "$here"/systemd/*; do
	put 0644 "systemd/${unit##*/}" "$prefix/lib/systemd/system/${unit##*/}"
done
put 0644 man/rsagent.8 "$prefix/share/man/man8/rsagent.8"
put 0644 completions/bash "$prefix/share/bash-completion/completions/rsagent"
put 0644 completions/zsh "$prefix/share/zsh/site-functions/_rsagent"
put 0644 completions/fish "$prefix/share/fish/vendor_completions.d/rsagent.fish"
keep 0644 rsagent.yaml /etc/rsagent/rsagent.yaml
keep 0644 default/rsagent /etc/default/rsagent
