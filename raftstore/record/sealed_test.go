package record

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"slices"
	"strings"
	"testing"
)

// A row that has a sealed field, or holds something that has one, names its values: what
// it does not name cannot be sealed again. Fields are found by their names.
func TestEverySealedFieldIsNamed(t *testing.T) {
	packages, err := parser.ParseDir(token.NewFileSet(), ".", func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0) //nolint:staticcheck // no build constraints here
	if err != nil {
		t.Fatal(err)
	}
	var rows, named []string
	holds := map[string][]string{} // a struct's fields: "sealed", "Meta", or names of types
	for _, file := range packages["record"].Files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				s, ok := n.Type.(*ast.StructType)
				if !ok {
					return true
				}
				for _, f := range s.Fields.List {
					if len(f.Names) == 1 && strings.HasSuffix(f.Names[0].Name, "Sealed") {
						holds[n.Name.Name] = append(holds[n.Name.Name], "sealed")
					}
					ast.Inspect(f.Type, func(t ast.Node) bool {
						if id, ok := t.(*ast.Ident); ok {
							holds[n.Name.Name] = append(holds[n.Name.Name], id.Name)
						}
						return true
					})
					if id, ok := f.Type.(*ast.Ident); ok && len(f.Names) == 0 && id.Name == "Meta" {
						rows = append(rows, n.Name.Name)
					}
				}
			case *ast.FuncDecl:
				if n.Name.Name == "SealedValues" && n.Recv != nil {
					named = append(named, n.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name)
				}
			}
			return true
		})
	}
	var has func(name string, above []string) bool
	has = func(name string, above []string) bool {
		return name == "sealed" || !slices.Contains(above, name) &&
			slices.ContainsFunc(holds[name], func(in string) bool { return has(in, append(above, name)) })
	}
	for _, row := range rows {
		if want := has(row, nil); slices.Contains(named, row) != want {
			t.Errorf("%s: has sealed fields %t, names sealed values %t", row, want, !want)
		}
	}
	if len(rows) < 20 || len(named) < 8 {
		t.Errorf("found only the rows %q, of which %q name sealed values", rows, named)
	}
}
