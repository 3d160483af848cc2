// Package docs holds what is written about rsagent to what it does. The recipes of the README are there for other test
// packages too, which run them as they are read.
package docs

import (
	"regexp"
	"strings"
)

// A Line is one of a shell block: what is typed, without sudo, and what is said about it.
type Line struct{ Command, Remark string }

// Blocks are the fenced blocks of a language in a Markdown text.
func Blocks(text, language string) (out []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	return out
}

// Recipe is the shell block of the text that has the given words; none, if there is no such block.
func Recipe(text, words string) (out []Line) {
	for _, block := range Blocks(text, "sh") {
		if !strings.Contains(block, words) {
			continue
		}
		for line := range strings.Lines(block) {
			command, remark, _ := strings.Cut(line, " # ")
			command = regexp.MustCompile(`\bsudo `).ReplaceAllString(command, "")
			out = append(out, Line{strings.TrimSpace(command), strings.TrimSpace(remark)})
		}
		return out
	}
	return nil
}

// Commands are the commands that stand in running text: code of more than one word.
func Commands(text string) (out []string) {
	text = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
		if strings.Contains(m[1], " ") {
			out = append(out, m[1])
		}
	}
	return out
}

// Command is the command in running text that begins with the given words; empty, if there is none.
func Command(text, words string) string {
	for _, c := range Commands(text) {
		if strings.HasPrefix(c, words) {
			return c
		}
	}
	return ""
}
