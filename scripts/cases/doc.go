// Package cases holds what rsagent is tried against in network namespaces:
// situations that people who run LVS real servers and other direct server
// return set-ups have reported. Each test is named after its number in the
// table of README.md. The built binary is run as an operator would run it,
// and judged by arping, ip, tcpdump, strace and the kernel.
package cases
