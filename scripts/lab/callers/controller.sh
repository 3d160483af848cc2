#!/bin/sh
# controller.sh DIR: runs a command for the guest, which sends it a word a line, and an empty line: ansible-playbook, in DIR/job,
# with the inventory DIR/HOSTS, which leads back to the guest by ssh.
set -eu
cd "$1/job"
set --
while IFS= read -r word && [ -n "$word" ]; do
	set -- "$@" "$word"
done
# While a task runs, the playbook's process looks a thousand times a second whether it has ended, unless told otherwise.
printf '[defaults]\ninternal_poll_interval = 0.02\n' >../ansible.cfg
exec env -i PATH="$PATH" HOME="$PWD/.." LC_ALL=C.UTF-8 ANSIBLE_CONFIG="$PWD/../ansible.cfg" ANSIBLE_PIPELINING=1 \
	ANSIBLE_HOST_KEY_CHECKING=False ANSIBLE_TIMEOUT=60 ANSIBLE_SSH_ARGS="-o ControlMaster=auto -o ControlPersist=10m" "$@" 2>&1
