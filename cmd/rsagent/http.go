package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"rsagent/realserver"
)

// A request is what counts of an HTTP request here. A director's health check asks for / or, about one VIP, for /VIP.
type request struct {
	head   bool // HEAD: no body is wanted
	vip    netip.Addr
	status int // with which it is refused, or answered; 0 is not known yet
}

// The status codes of answers (RFC 9110, section 15), with their phrases.
const (
	httpUp         = 200
	httpBad        = 400
	httpNotFound   = 404
	httpNotAllowed = 405
	httpTooSlow    = 408
	httpTooLarge   = 431
	httpNotUp      = 503
)

var phrases = map[int]string{httpUp: "OK", httpBad: "Bad Request", httpNotFound: "Not Found", httpNotAllowed: "Method Not Allowed",
	httpTooSlow: "Request Timeout", httpTooLarge: "Request Header Fields Too Large", httpNotUp: "Service Unavailable"}

// about is the request with the answer to it.
func (r request) about(code int) request {
	if r.status = httpNotUp; code == exitDone {
		r.status = httpUp
	}
	return r
}

// within runs f, and leaves it alone after --timeout or a signal: what reads from a client, or writes to one, may never end.
func (c *call) within(f func()) bool {
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// hear reads the request on stdin.
func (c *call) hear() request {
	var heard request
	if !c.within(func() { heard = readRequest(c.env.stdin) }) {
		return request{status: httpTooSlow}
	}
	return heard
}

// answer writes the response on stdout. That a client has gone is no news.
func (c *call) answer(r request, body []byte) {
	c.within(func() { c.env.stdout.Write(r.response(body, time.Now())) })
}

// response closes the connection: whoever listens starts one process for each (RFC 9112, section 9.6).
func (r request) response(body []byte, now time.Time) []byte {
	kind, allow := "application/json", ""
	if body == nil {
		kind, body = "text/plain", []byte(phrases[r.status]+"\n")
	}
	if r.status == httpNotAllowed {
		allow = "Allow: GET, HEAD\r\n"
	}
	out := fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n%sConnection: close\r\n\r\n",
		r.status, phrases[r.status], now.UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), kind, len(body), allow)
	if r.head {
		return out
	}
	return append(out, body...)
}

// longestRequest bounds what is read of a request, in bytes up to its empty line.
const longestRequest = 8192

// readRequest reads up to the empty line. A body, which no request here has a use for, stays unread.
func readRequest(in io.Reader) request {
	buf := make([]byte, 0, longestRequest)
	for {
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		// A line may end without CR, and empty lines before a request are no fault (RFC 9112, section 2.2).
		text := strings.TrimLeft(strings.ReplaceAll(string(buf), "\r\n", "\n"), "\n")
		if head, _, whole := strings.Cut(text, "\n\n"); whole {
			return parseRequest(head)
		}
		switch {
		case len(buf) == cap(buf):
			return request{status: httpTooLarge}
		case err != nil:
			return request{status: httpBad}
		}
	}
}

// parseRequest reads a request line and header lines (RFC 9112, sections 3 and 5), as strictly as it must: what is taken for
// one request here could be two elsewhere.
func parseRequest(text string) (r request) {
	lines := strings.Split(text, "\n")
	words := strings.Split(lines[0], " ")
	if len(words) != 3 || !token(words[0]) || words[1] == "" || strings.ContainsFunc(words[1], blank) ||
		words[2] != "HTTP/1.0" && words[2] != "HTTP/1.1" {
		return request{status: httpBad}
	}
	hosts := 0
	for _, line := range lines[1:] {
		name, value, found := strings.Cut(line, ":")
		if !found || !token(name) || strings.ContainsFunc(value, control) {
			return request{status: httpBad}
		}
		if strings.EqualFold(name, "Host") {
			hosts++
		}
	}
	if hosts > 1 || hosts == 0 && words[2] == "HTTP/1.1" {
		return request{status: httpBad}
	}
	if r.head = words[0] == "HEAD"; !r.head && words[0] != "GET" {
		return request{status: httpNotAllowed}
	}
	r.vip, r.status = target(words[1])
	return r
}

// target is the VIP that a request is about, or none where it is about all; or why there is no such thing. One that is sent
// to a proxy names the host first, by a scheme in capitals or not (RFC 3986, section 3.1). Some clients escape a colon.
func target(s string) (vip netip.Addr, status int) {
	const scheme = "http://"
	s, _, _ = strings.Cut(s, "?")
	if len(s) >= len(scheme) && strings.EqualFold(s[:len(scheme)], scheme) {
		_, s, _ = strings.Cut(s[len(scheme):], "/")
		s = "/" + s
	}
	if s == "/" {
		return vip, 0
	}
	path, ok := unescaped(s)
	vip, err := realserver.ParseAddr(strings.TrimPrefix(path, "/"))
	if err != nil || !ok || !strings.HasPrefix(s, "/") {
		return netip.Addr{}, httpNotFound
	}
	return vip, 0
}

// unescaped is a path without its percent-encoding (RFC 3986, section 2.1).
func unescaped(s string) (string, bool) {
	first, rest, found := strings.Cut(s, "%")
	if !found {
		return s, true
	}
	if len(rest) < 2 {
		return "", false
	}
	b, err := hex.DecodeString(rest[:2])
	if err != nil {
		return "", false
	}
	rest, ok := unescaped(rest[2:])
	return first + string(b) + rest, ok
}

func control(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// blank is what a target has none of: it is of signs that can be seen.
func blank(r rune) bool { return r <= ' ' || r >= 0x7f }

// token is a method or the name of a header (RFC 9110, section 5.6.2).
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, blank) && !strings.ContainsAny(s, `"(),/:;<=>?@[\]{}`)
}
