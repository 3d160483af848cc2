package realserver

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"rsagent/arp"
	"rsagent/sysctl"
	"rsagent/tunnel"
)

// persistence finds what will undo the set later.
func (c *checkup) persistence() {
	bound := c.onHost()
	if len(bound) == 0 {
		return
	}
	if c.around.Systemd && !c.around.Enabled {
		c.add(Info, "not-enabled", "rsagent.service", "systemctl enable rsagent", "rsagent.service is not enabled: after a boot nothing is managed")
	}
	c.undone()
	for _, f := range c.around.Files {
		for _, device := range []string{"lo", "tunl0", "ip6tnl0", "sit0", "gre0", "ip6gre0"} {
			if !slices.ContainsFunc(bound, func(v VIP) bool { return v.On() == device }) {
				continue
			}
			if f.Kind == networkFile && flushes(f.Text, device) {
				c.add(Warning, "networkd", f.Path, fmt.Sprintf(`printf '[Network]\nKeepConfiguration=static\n' >> %s && networkctl reload`, quote(f.Path)), "systemd-networkd manages %s by %s, and takes addresses off it that it does not know", device, f.Path)
			}
			if f.Kind == nmFile && connects(f.Text, device) && !slices.ContainsFunc(c.around.Files, func(f File) bool { return f.Kind == nmFile && leaves(f.Text, device) }) {
				c.add(Warning, "networkmanager", f.Path, fmt.Sprintf(`mkdir -p /etc/NetworkManager/conf.d && printf '[keyfile]\nunmanaged-devices+=interface-name:%s\n' > /etc/NetworkManager/conf.d/rsagent-%s.conf && nmcli general reload`, device, device),
					"NetworkManager has a connection for %s, %s, and when it brings that up takes addresses off it that are not in there", device, f.Path)
			}
		}
	}
}

// leaves says that a configuration of NetworkManager's has it leave a device alone (NetworkManager.conf(5)).
func leaves(text, device string) bool {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if strings.TrimSuffix(strings.TrimSpace(name), "+") != "unmanaged-devices" {
			continue
		}
		for _, spec := range strings.FieldsFunc(value, func(r rune) bool { return r == ';' || r == ',' }) {
			if strings.TrimSpace(spec) == "interface-name:"+device {
				return true
			}
		}
	}
	return false
}

// connects says that a connection of NetworkManager's is for a device (nm-settings-keyfile(5)).
func connects(text, device string) bool {
	section, about := "", false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		name, value, _ := strings.Cut(line, "=")
		if section == "[connection]" {
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			about = about || name == "interface-name" && value == device || name == "type" && value == "loopback" && device == "lo"
		}
	}
	return about
}

// flushes says that a file of networkd's is about a device, and has it lose addresses of others (systemd.network(5)).
func flushes(text, device string) bool {
	about, keeps, section := false, false, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		name, value, _ := strings.Cut(line, "=")
		switch name = strings.TrimSpace(name); {
		case section == "[Match]" && name == "Name":
			for _, glob := range strings.Fields(value) {
				ok, _ := path.Match(glob, device)
				about = about || ok
			}
		case section == "[Network]" && name == "KeepConfiguration":
			keeps = strings.TrimSpace(value) == "static" || strings.TrimSpace(value) == "yes"
		case section == "[Link]" && name == "Unmanaged":
			keeps = keeps || strings.TrimSpace(value) == "yes" || strings.TrimSpace(value) == "true"
		}
	}
	return about && !keeps
}

// A line is where a file has a setting.
type line struct {
	file   string
	number int
	value  int
}

// undone finds files that, when they are applied again (sysctl --system, a package that does so, tuned), set what now
// silences the host, or opens the tunnel, to what does not.
func (c *checkup) undone() {
	set := settings(c.around.Files, c.host)
	then := maps.Clone(c.host.Conf)
	for k, l := range set {
		then[k] = l.value
	}
	judge := func(iface string, r sysctl.Rule, what string) {
		if v := then.Effective(iface, r.Knob); r.Good(c.host.Conf.Effective(iface, r.Knob)) && !r.Good(v) {
			for _, key := range []sysctl.Key{{Iface: iface, Knob: r.Knob}, {Iface: sysctl.All, Knob: r.Knob}} {
				if l, ok := set[key]; ok && l.value != c.host.Conf[key] {
					c.once(l, key, fmt.Sprintf("%s would be %d in effect on %s: %s", r.Knob, v, iface, what))
				}
			}
		}
	}
	done := map[string]bool{} // of ten thousand VIPs most ask for the same
	for _, v := range c.onHost() {
		if guard := v.Guard + " " + v.Scope; v.Addr.Is4() && (v.Guard == GuardAll || v.Guard == GuardInterface) && !done[guard] {
			done[guard] = true
			for _, r := range arp.Rules(v.Scope == "host") {
				for _, g := range c.Guards {
					if g.Asked && g.Rules == "" && g.Interface != sysctl.All {
						judge(g.Interface, r, "the host would not be silent about the VIPs any more")
					}
				}
			}
		}
		if v.Addr.Is4() && v.Mode == TUN && !done[v.kind().Device] {
			done[v.kind().Device] = true
			judge(v.kind().Device, tunnel.RPFilter(len(c.nicAddrs(v.kind().Device)) > 0), "it would drop what comes out of the tunnel")
		}
	}
}

// once tells of a line of a file, with the first thing that it does.
func (c *checkup) once(l line, key sysctl.Key, what string) {
	subject := fmt.Sprintf("%s:%d", l.file, l.number)
	if !slices.ContainsFunc(c.Findings, func(f Finding) bool { return f.Code == "sysctl-file" && f.Subject == subject }) {
		c.add(Warning, "sysctl-file", subject, fmt.Sprintf("sed -i '%ds/^/#/' %s", l.number, quote(l.file)), "%s sets %s to %d when it is applied again, and %s", subject, key, l.value, what)
	}
}

// settings takes the settings of IPv4 interfaces out of files, in the forms that sysctl.d(5) has: the last line about a name
// counts, and a pattern is about the interfaces that are there and that no line names.
func settings(files []File, h *Host) map[sysctl.Key]line {
	set, named := map[sysctl.Key]line{}, map[sysctl.Key]bool{}
	type pattern struct {
		iface, knob string
		line
	}
	var patterns []pattern
	for _, f := range files {
		number := 0
		for text := range strings.Lines(f.Text) {
			number++
			name, value, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), "-"), "=")
			iface, knob, ok := confKey(strings.TrimSpace(name))
			n, err := parseInt(strings.TrimSpace(value))
			key, l := sysctl.Key{Iface: iface, Knob: knob}, line{f.Path, number, n}
			switch {
			case f.Kind != sysctlFile || !ok:
			case !found: // a name alone is taken out of patterns
				named[key] = true
			case err != nil:
			case strings.ContainsAny(iface, "*?["):
				patterns = append(patterns, pattern{iface, knob, l})
			default:
				set[key], named[key] = l, true
			}
		}
	}
	for _, p := range patterns {
		for _, i := range append(slices.Clone(h.Links), sysctl.Interface{Name: sysctl.All}, sysctl.Interface{Name: sysctl.Default}) {
			key := sysctl.Key{Iface: i.Name, Knob: p.knob}
			if match, _ := path.Match(p.iface, i.Name); match && !named[key] {
				set[key] = p.line
			}
		}
	}
	return set
}

// parseInt reads a number as the kernel does: decimal, or with 0x hexadecimal, with 0 octal, and with a minus or no sign
// (kernel/sysctl.c, proc_get_long).
func parseInt(s string) (int, error) {
	digits := strings.ToLower(strings.TrimPrefix(s, "-"))
	if strings.ContainsAny(digits, "+_") || strings.HasPrefix(digits, "0b") || strings.HasPrefix(digits, "0o") {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseInt(s, 0, 32)
	return int(n), err
}

// confKey takes net.ipv4.conf.IFACE.KNOB apart, or the form with slashes, in which an interface may have dots.
func confKey(name string) (iface, knob string, ok bool) {
	dots, slashes := "net.ipv4.conf.", "net/ipv4/conf/"
	if rest, found := strings.CutPrefix(name, slashes); found {
		iface, knob, ok = strings.Cut(rest, "/")
		return iface, knob, ok
	}
	rest, found := strings.CutPrefix(name, dots)
	i := strings.LastIndex(rest, ".")
	if !found || i < 0 {
		return "", "", false
	}
	return strings.ReplaceAll(rest[:i], "/", "."), rest[i+1:], true // of the dotted form, a slash in a name is a dot
}
