package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"rsagent/realserver"
)

// A file is a config file as it was written.
type file struct {
	path     string
	exists   bool
	defaults options
	entries  []entry
}

// An entry is one VIP of a file.
type entry struct {
	line    int
	addr    netip.Addr
	options options
}

const maxFile = 16 << 20 // 10,000 VIPs with every option need a tenth of it

// configPath is the file that was named, or else the default one.
func (c *call) configPath() string {
	if w, named := c.get("config"); named {
		return w.last()
	}
	return c.env.config
}

// config reads the file that was named, or else the default one if it exists.
func (c *call) config() (*file, error) {
	_, named := c.get("config")
	path := c.configPath()
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not block
	if errors.Is(err, fs.ErrNotExist) && !named {
		return &file{path: path}, nil
	}
	if err != nil {
		return nil, usageError{err}
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() && !isNull(st) {
		return nil, misuse("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	if err != nil {
		return nil, usageError{err}
	}
	return parseFile(path, b)
}

// isNull says that a file is /dev/null: a config of nothing, for a stop of what came from any.
func isNull(st fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(st, null)
}

// parseFile reads a config file strictly; each error names file and line.
func parseFile(path string, b []byte) (*file, error) {
	f := &file{path: path, exists: true, defaults: options{}}
	d := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return f, nil
	} else if err != nil {
		return nil, f.syntax(err, b)
	}
	if err := d.Decode(&more); err == nil {
		return nil, f.misuse(&more, "a second document; there may be one only")
	} else if !errors.Is(err, io.EOF) {
		return nil, f.syntax(err, b)
	}
	top := resolve(doc.Content[0])
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return f, nil
	}
	if top.Kind != yaml.MappingNode {
		return nil, f.misuse(top, "must be keys with values")
	}
	err := f.each(top, func(key string, k, v *yaml.Node) error {
		if key != "vips" {
			return f.option(f.defaults, "vips", key, k, v)
		}
		if v.Kind != yaml.SequenceNode {
			return f.misuse(k, "vips: must be a list (write [] for none)")
		}
		for _, n := range v.Content {
			if err := f.entry(n); err != nil {
				return err
			}
		}
		return nil
	})
	return f, err
}

// entry reads one of vips: an address, or keys with values.
func (f *file) entry(n *yaml.Node) error {
	e := entry{line: n.Line, options: options{}}
	v := resolve(n)
	if v.Kind == yaml.ScalarNode {
		return f.address(&e, n, v)
	}
	if v.Kind != yaml.MappingNode {
		return f.misuse(n, "vips: must be an address, or keys with values, address among them")
	}
	addressed := false
	err := f.each(v, func(key string, k, v *yaml.Node) error {
		if key == "address" {
			addressed = true
			return f.address(&e, k, v)
		}
		return f.option(e.options, "address", key, k, v)
	})
	if err == nil && !addressed {
		err = f.misuse(n, "vips: an entry without address")
	}
	return err
}

// address reads the address of an entry, whose options may still come, and adds the entry.
func (f *file) address(e *entry, at, v *yaml.Node) (err error) {
	if v.Kind != yaml.ScalarNode || v.Tag != "!!str" {
		return f.misuse(at, "address: must be an IP address")
	}
	if e.addr, err = realserver.ParseAddr(v.Value); err != nil {
		return f.misuse(v, "address: %w", err)
	}
	f.entries = append(f.entries, *e)
	return nil
}

// option reads one option of a VIP, where it may stand beside another key.
func (f *file) option(into options, beside, key string, k, v *yaml.Node) error {
	for _, o := range vipOptions {
		if o.name != key {
			continue
		}
		scalars, want, tag := []*yaml.Node{v}, "a string", "!!str"
		if o.truth {
			want, tag = "true or false", "!!bool"
		}
		if o.number {
			want = "a number or a string"
		}
		if o.list {
			want = "a string, or a list of them"
			if v.Kind == yaml.SequenceNode {
				scalars = v.Content
			}
		}
		var words []string
		for _, s := range scalars {
			if s = resolve(s); s.Kind != yaml.ScalarNode || s.Tag != tag && !(o.number && s.Tag == "!!int") {
				return f.misuse(s, "%s: must be %s", key, want)
			}
			words = append(words, s.Value)
		}
		if len(words) == 0 {
			return f.misuse(k, "%s: is empty", key)
		}
		w, err := o.flag().read(words, fmt.Sprintf("%s:%d: %s", f.path, k.Line, key))
		into[key] = w
		return err
	}
	known := []string{beside}
	for _, o := range vipOptions {
		known = append(known, o.name)
	}
	return f.misuse(k, "unknown key %q%s", key, meant(key, known))
}

// each walks a mapping, in which each key may stand once.
func (f *file) each(m *yaml.Node, do func(key string, k, v *yaml.Node) error) error {
	seen := map[string]int{}
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], resolve(m.Content[i+1])
		key := resolve(k).Value
		if line, ok := seen[key]; ok {
			return f.misuse(k, "key %q is in line %d already", key, line)
		}
		seen[key] = k.Line
		if err := do(key, k, v); err != nil {
			return err
		}
	}
	return nil
}

// resolve is the node that an alias stands for.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func (f *file) misuse(n *yaml.Node, format string, args ...any) error {
	return written{where: fmt.Sprintf("%s:%d", f.path, n.Line)}.misuse(format, args...)
}

var yamlLine = regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`)

// placed are the words of errors that have a place, in the first line where they name none.
var placed = regexp.MustCompile(`^(found|did not find|could not find|mapping values|block )`)

// syntax puts the file's name before what the library says, and the line. The library's scanner counts lines from 1, and
// leaves the first out; its parser counts them from 0.
func (f *file) syntax(err error, text []byte) error {
	m := yamlLine.FindStringSubmatch(err.Error())
	switch {
	case m == nil:
		return misuse("%s: %w", f.path, err)
	case m[1] == "" && !placed.MatchString(m[2]):
		return misuse("%s: %s", f.path, m[2])
	}
	line, _ := strconv.Atoi(m[1])
	if line == 0 || strings.HasPrefix(m[2], "did not find expected") {
		line++
	}
	return misuse("%s:%d: %s", f.path, min(line, max(1, bytes.Count(text, []byte("\n")))), m[2])
}

// vips makes the VIPs of a file, given the layers that are stronger. The same one may stand twice,
// but not with other options.
func (f *file) vips(stronger ...options) ([]realserver.VIP, error) {
	if len(f.entries) == 0 { // options that have no effect are judged too
		_, err := build(netip.Addr{}, append(stronger, f.defaults)...)
		return nil, err
	}
	type place struct{ index, line int }
	seen := make(map[netip.Addr]place, len(f.entries))
	out := make([]realserver.VIP, 0, len(f.entries))
	plain := map[bool]realserver.VIP{} // by IP version: what all have that stand there without options
	for _, e := range f.entries {
		v, made := plain[e.addr.Is6()]
		if v.Addr = e.addr; !made || len(e.options) > 0 {
			var err error
			if v, err = build(e.addr, append(stronger[:len(stronger):len(stronger)], e.options, f.defaults)...); err != nil {
				return nil, err
			}
			if len(e.options) == 0 {
				plain[e.addr.Is6()] = v
			}
		}
		v.Origin = realserver.Config
		if p, ok := seen[e.addr]; !ok {
			seen[e.addr] = place{len(out), e.line}
			out = append(out, v)
		} else if !reflect.DeepEqual(v, out[p.index]) {
			return nil, misuse("%s:%d: VIP %s has other options in line %d", f.path, e.line, e.addr, p.line)
		}
	}
	return out, nil
}
