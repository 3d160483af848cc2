// Package bench measures rsagent beside what people use today, as whole processes in throw-away network namespaces: (A) the
// classic script, one call or a loop of it; (B) the fastest script that one can write, ip -batch and echo into /proc; (C) the
// kernel's own cost, netlink messages pipelined over one socket and nothing else. It is a test by form only, and built by the
// tag bench alone: `make bench`.
package bench
