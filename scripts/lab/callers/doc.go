// Package callers has the slow callers of rsagent run it for real: cloud-init, from its first boot on, and Ansible, from this
// machine by ssh. It boots an image of its own, with Debian's cloud-init, by package vm: once to be set up by cloud-init, and
// once more to see that it lasts.
//
// Where nothing of it has changed since it passed, it passes at once; RSAGENT_LAB_AGAIN=1 has it run all the same.
package callers
