package realserver

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// codeAt is which argument of a function is a finding's code.
var codeAt = map[string]int{"find": 1, "add": 1, "refuse": 1, "left": 0}

// TestCodes: the table has each code that the source has, and no other.
func TestCodes(t *testing.T) {
	used := map[string]bool{}
	use := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, _ := strconv.Unquote(lit.Value)
			used[s] = true
		}
	}
	named := func(e ast.Expr, names ...string) bool {
		switch e := e.(type) {
		case *ast.Ident:
			return slices.Contains(names, e.Name)
		case *ast.SelectorExpr:
			return slices.Contains(names, e.Sel.Name)
		}
		return false
	}
	for _, pattern := range []string{"*.go", "../cmd/rsagent/*.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.KeyValueExpr:
					if named(n.Key, "Code") {
						use(n.Value)
					}
				case *ast.CallExpr:
					for name, i := range codeAt {
						if named(n.Fun, name) && len(n.Args) > i {
							use(n.Args[i])
						}
					}
				case *ast.AssignStmt:
					for i, l := range n.Lhs {
						if named(l, "code", "Code") && i < len(n.Rhs) {
							use(n.Rhs[i])
						}
					}
				case *ast.ValueSpec:
					for i, name := range n.Names {
						if named(name, "noARP", "unseen") && i < len(n.Values) {
							use(n.Values[i])
						}
					}
				}
				return true
			})
		}
	}
	var codes []string
	for _, c := range Codes {
		if codes = append(codes, c.Code); !used[c.Code] {
			t.Errorf("no finding has the code %s", c.Code)
		}
		if c.Meaning == "" || strings.HasSuffix(c.Meaning, ".") {
			t.Errorf("%s: meaning %q", c.Code, c.Meaning)
		}
	}
	for code := range used {
		if !slices.Contains(codes, code) {
			t.Errorf("the code %q is not in the table", code)
		}
	}
	if slices.Sort(codes); len(slices.Compact(codes)) != len(Codes) {
		t.Error("a code stands twice")
	}
}
