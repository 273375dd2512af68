package wire

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// B21, B23, B11: the codes that are used are those of the specification (1.1.0 section 5) that fit, or from 100 up. Never 3,
// which tells a runtime that there is nothing to clean up, nor 2, as there is no field that is refused for being unsupported.
// Codes are named: no number stands anywhere else.
func TestCodes(t *testing.T) {
	specified := map[uint64]bool{1: true, 4: true, 5: true, 6: true, 7: true, 11: true, 50: true, 51: true}
	seen := make(map[uint64]string)
	files := token.NewFileSet()
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, name := range n.Names {
					if !strings.HasPrefix(name.Name, "Code") || i >= len(n.Values) {
						continue
					}
					if lit, ok := n.Values[i].(*ast.BasicLit); ok && lit.Kind == token.INT {
						code, err := strconv.ParseUint(lit.Value, 10, 32)
						if err != nil || code < 100 && !specified[code] {
							t.Errorf("%s is %s, which is not for us (%v)", name.Name, lit.Value, err)
						}
						if other, ok := seen[code]; ok {
							t.Errorf("%s and %s are both %d", name.Name, other, code)
						}
						seen[code] = name.Name
					}
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Code" {
					if lit, ok := n.Value.(*ast.BasicLit); ok {
						t.Errorf("%s: code %s has no name", files.Position(n.Pos()), lit.Value)
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 15 {
		t.Errorf("found %d codes only: %v", len(seen), seen)
	}
}
