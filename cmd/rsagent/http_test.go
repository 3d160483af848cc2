package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// hear gives the command a request, and reads what it answers as any client does.
func (w *world) hear(code int, request string, args ...string) (*http.Response, string) {
	w.t.Helper()
	if w.in == nil {
		w.in = strings.NewReader(request)
	}
	w.must(code, append([]string{"status", "-o", "http"}, args...)...)
	w.in = nil
	method, _, _ := strings.Cut(request, " ")
	if method == "HEAD" && !bytes.HasSuffix(w.out.Bytes(), []byte("\r\n\r\n")) {
		w.t.Errorf("%q is answered with a body: %q", request, &w.out)
	}
	r, err := http.ReadResponse(bufio.NewReader(&w.out), &http.Request{Method: method})
	if err != nil {
		w.t.Fatalf("%q: %v", request, err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Fatalf("%q: %v", request, err)
	}
	if _, err := http.ParseTime(r.Header.Get("Date")); err != nil || !r.Close || w.errs.Len() > 0 {
		w.t.Errorf("%q: %v, %+v; stderr: %s", request, err, r, &w.errs)
	}
	if n, err := strconv.Atoi(r.Header.Get("Content-Length")); err != nil || method != "HEAD" && n != len(body) {
		w.t.Errorf("%q: Content-Length %d, %v; body of %d", request, n, err, len(body))
	}
	return r, string(body)
}

const plain = " HTTP/1.0\r\n\r\n"

// The response says what the exit code does, and its body what the JSON does.
func TestHTTP(t *testing.T) {
	w := newWorld(t)
	check := func(code, status int, path string, vips ...string) {
		t.Helper()
		for _, method := range []string{"GET", "HEAD"} {
			r, body := w.hear(code, method+" "+path+plain)
			if r.StatusCode != status || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: %+v, want %d", method, path, r, status)
			}
			if method == "HEAD" {
				if r.ContentLength == 0 || body != "" {
					t.Errorf("%s: %+v: %q", method, r, body)
				}
				continue
			}
			var told report
			if err := json.Unmarshal([]byte(body), &told); err != nil || statusCodes[told.State] != code || len(told.VIPs) != len(vips) {
				t.Errorf("%s: %v, %s", path, err, body)
			}
			for i, v := range told.VIPs {
				if v.Address != vips[i] {
					t.Errorf("%s: %s, want %q", path, body, vips)
				}
			}
		}
	}
	check(3, 503, "/")
	check(3, 503, "/10.0.0.100", "10.0.0.100")
	w.must(0, "start", "--vip", "10.0.0.100")
	w.must(0, "start", "--vip", "10.0.0.101", "--arp-guard", "none")
	check(0, 200, "/", "10.0.0.100", "10.0.0.101")
	check(0, 200, "/10.0.0.100", "10.0.0.100")
	check(0, 200, "/10.0.0.101?x=y", "10.0.0.101")
	check(0, 200, "http://10.0.0.11:5380/10.0.0.100", "10.0.0.100")
	check(0, 200, "http://10.0.0.11:5380?x=/10.0.0.102", "10.0.0.100", "10.0.0.101")
	check(0, 200, "Http://a/10%2E0.0.10%30", "10.0.0.100")
	w.set1("all", "arp_ignore", 0)
	check(1, 503, "/", "10.0.0.100", "10.0.0.101")
	check(1, 503, "/10.0.0.100", "10.0.0.100")
	check(0, 200, "/10.0.0.101", "10.0.0.101") // one VIP's drift does not take another out
	if w.changes != 6 {
		t.Errorf("%d changes, not those of start alone", w.changes)
	}
}

// What cannot be told is not up, and says why in the body; on stderr too, as ever.
func TestHTTPUnknown(t *testing.T) {
	w := newWorld(t)
	w.spoil()
	w.in = strings.NewReader("GET /" + plain)
	w.must(4, "status", "-o", "http")
	if !strings.HasPrefix(w.out.String(), "HTTP/1.1 503 ") || !strings.Contains(w.out.String(), `"state":"unknown"`) || w.errs.Len() == 0 {
		t.Errorf("%s%s", &w.out, &w.errs)
	}
}

var requests = []struct {
	text   string
	status int // 0: it is heard
}{
	{"GET /" + plain, 0},
	{"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 0},
	{"\r\n\r\nGET / HTTP/1.1\r\nHost:\r\n\r\n", 0},
	{"GET / HTTP/1.0\n\n", 0},
	{"GET / HTTP/1.0\r\nUser-Agent: KeepAliveClient\r\nHost: 10.0.0.11:5380\r\n\r\n", 0}, // keepalived's
	{"GET / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", 0},
	{"GET /10.0.0.100" + plain, 0},
	{"GET /10.0.0.100/32" + plain, 0},
	{"GET http://a" + plain, 0},
	{"GET /2001:db8::100?x=/y" + plain, 0},
	{"GET /2001%3adb8%3A:100%2F128" + plain, 0},
	{"GET HTTP://a/10.0.0.100" + plain, 0},

	{"", 400},
	{"\r\n\r\n", 400},
	{"GET", 400},
	{"GET /\r\n\r\n", 400}, // HTTP/0.9
	{"GET / HTTP/1.0\r\n", 400},
	{"GET / HTTP/1.1\r\n\r\n", 400},
	{"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400},
	{"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
	{"GET  / HTTP/1.0\r\n\r\n", 400},
	{"GET /\t HTTP/1.0\r\n\r\n", 400},
	{"GET / / HTTP/1.0\r\n\r\n", 400},
	{"GET / HTTP/1.0 \r\n\r\n", 400},
	{"G(T / HTTP/1.0\r\n\r\n", 400},
	{"GET / HTTP/1.0\r\nA\r\n\r\n", 400},
	{"GET / HTTP/1.0\r\nA : b\r\n\r\n", 400},
	{"GET / HTTP/1.0\r\nA: b\r\n c\r\n\r\n", 400},
	{"GET / HTTP/1.0\r\n: b\r\n\r\n", 400},
	{"GET / HTTP/1.0\r\nA: b\rc\r\n\r\n", 400},
	{"GET / HTTP/1.0\r\nA: b\x00\r\n\r\n", 400},
	{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400}, // TLS

	{"GET /x" + plain, 404},
	{"GET /10.0.0.300" + plain, 404},
	{"GET /10.0.0.0/24" + plain, 404},
	{"GET /127.0.0.1" + plain, 404},
	{"GET 10.0.0.100" + plain, 404},
	{"GET //10.0.0.100" + plain, 404},
	{"GET /../etc/passwd" + plain, 404},
	{"GET https://a/" + plain, 404},
	{"GET /10.0.0.100%" + plain, 404},
	{"GET /10.0.0.10%3" + plain, 404},
	{"GET /10.0.0.10%+3" + plain, 404},
	{"GET %2f10.0.0.100" + plain, 404},

	{"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405},
	{"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 405},
	{"get /" + plain, 405},

	{strings.Repeat("\r\n", longestRequest), 431},
	{"GET /" + strings.Repeat("a", longestRequest), 431},
	{"GET / HTTP/1.0\r\n" + strings.Repeat("A: b\r\n", longestRequest/6) + "\r\n", 431},
}

// A request is heard the same in one piece and byte by byte; one that cannot be is answered, and looks at nothing.
func TestRequests(t *testing.T) {
	for _, test := range requests {
		w := newWorld(t)
		for _, in := range []io.Reader{strings.NewReader(test.text), iotest.OneByteReader(strings.NewReader(test.text))} {
			if got := readRequest(in); got.status != test.status {
				t.Errorf("%q: %d, want %d", test.text, got.status, test.status)
			}
		}
		if test.status == 0 {
			continue
		}
		r, body := w.hear(4, test.text)
		if r.StatusCode != test.status || body == "" || (r.Header.Get("Allow") != "") != (test.status == 405) {
			t.Errorf("%q: %+v: %s", test.text, r, body)
		}
		w.untouched()
	}
}

// never is a client that neither says anything nor takes anything.
type never struct{ ever chan struct{} }

func (n never) Read([]byte) (int, error)  { <-n.ever; return 0, errors.New("closed") }
func (n never) Write([]byte) (int, error) { <-n.ever; return 0, errors.New("closed") }

// A client that says nothing is told so after --timeout; neither it nor one that takes nothing is waited for any longer.
func TestSlowClients(t *testing.T) {
	n := never{make(chan struct{})}
	defer close(n.ever)
	w := newWorld(t)
	for _, in := range []io.Reader{n, io.MultiReader(strings.NewReader("GET / HTT"), n)} {
		w.in = in
		if r, _ := w.hear(4, "GET /", "--timeout", "10ms"); r.StatusCode != 408 {
			t.Errorf("%+v", r)
		}
	}
	w.untouched()
	w.must(0, "start", "--vip", "10.0.0.100")
	w.in, w.into = strings.NewReader("GET /"+plain), n
	w.must(0, "status", "-o", "http", "--timeout", "10ms")
}

// FuzzRequest: what is heard, the standard library hears in the same way.
func FuzzRequest(f *testing.F) {
	for _, r := range requests {
		f.Add([]byte(r.text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := readRequest(bytes.NewReader(b))
		if again := readRequest(iotest.OneByteReader(bytes.NewReader(b))); again != got {
			t.Errorf("%+v in one piece, %+v in many", got, again)
		}
		if out := got.about(0).response(nil, time.Unix(0, 0)); !bytes.HasSuffix(out, []byte("\r\n\r\n")) && got.head {
			t.Errorf("HEAD is answered with %q", out)
		}
		if got.status != 0 {
			if phrases[got.status] == "" {
				t.Errorf("%+v", got)
			}
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(bytes.TrimLeft(b, "\r\n"))))
		if err != nil {
			t.Fatal(err)
		}
		if (theirs.Method == "HEAD") != got.head || theirs.Method != "GET" && !got.head {
			t.Errorf("%+v, they %s", got, theirs.Method)
		}
		path := strings.TrimPrefix(theirs.URL.Path, "/")
		if vip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimSuffix(path, "/32"), "/128")); got.vip.IsValid() != (err == nil) || err == nil && vip != got.vip {
			t.Errorf("%+v, they %q", got, path)
		}
	})
}
