// Package hostile holds the tests of what can go wrong around rsagent: it is killed at every system call that writes,
// called from many sides at once, given hostile input, and run on hosts that refuse. README.md has the table of them.
//
// The kill tests are a function, Kills, so that the lab can run them with a tunnel too.
package hostile
