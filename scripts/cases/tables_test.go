package cases

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	caseTest = regexp.MustCompile(`(?m)^func TestCase(\d+)_`)
	caseRow  = regexp.MustCompile(`(?m)^\| (\d+(?:, \d+)*)(?:, and without number)? \|.*\| (\w+_test\.go) \|$`)
)

// TestTables: the first table of README.md names, for each case, the files of this folder that have a test of its number,
// and the second one those of scripts/lab; neither names any other.
func TestTables(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	here, lab, found := strings.Cut(string(text), "In scripts/lab")
	if !found {
		t.Fatal("README.md has no table of scripts/lab")
	}
	for dir, table := range map[string]string{".": here, "../lab": lab} {
		if diff := cmp.Diff(inFiles(t, dir), inRows(table)); diff != "" {
			t.Errorf("tests of %s and their table differ (-tests +table):\n%s", dir, diff)
		}
	}
}

// inFiles lists each "case file" that there is a test for.
func inFiles(t *testing.T, dir string) []string {
	t.Helper()
	have := map[string]bool{}
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no tests in %s: %v", dir, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range caseTest.FindAllStringSubmatch(string(text), -1) {
			have[entry(m[1], filepath.Base(path))] = true
		}
	}
	return slices.Sorted(maps.Keys(have))
}

func inRows(table string) []string {
	have := map[string]bool{}
	for _, m := range caseRow.FindAllStringSubmatch(table, -1) {
		for n := range strings.SplitSeq(m[1], ",") {
			have[entry(strings.TrimSpace(n), m[2])] = true
		}
	}
	return slices.Sorted(maps.Keys(have))
}

func entry(number, file string) string {
	return fmt.Sprintf("%02s %s", number, file)
}
