package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the build: -ldflags "-X main.version=1.2.3 -X main.commit=0123abc".
var version, commit string

// version falls back to what the Go toolchain noted.
func (c *call) version() (int, error) {
	v := struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Go      string `json:"go"`
	}{version, commit, runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && v.Commit == "" {
				v.Commit = s.Value[:min(len(s.Value), 12)]
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	if v.Commit == "" {
		v.Commit = "unknown"
	}
	text := fmt.Sprintf("rsagent %s (%s, %s)\n", v.Version, v.Commit, v.Go)
	if c.output == "json" {
		b, err := json.Marshal(v)
		if err != nil {
			return 0, err
		}
		text = string(b) + "\n"
	}
	return c.env.show([]byte(text)), nil
}
