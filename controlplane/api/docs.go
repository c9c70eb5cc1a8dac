package api

import (
	"embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

//go:embed admin.go api.go app.go audit.go broker.go commands.go database.go domain.go errors.go files.go function.go githost.go identity.go lifecycle.go metrics.go org.go patch.go resourceusage.go sandbox.go template.go traffic.go usage.go webhook.go
var source embed.FS

// Docs returns the comments on this package's types, under "Type", and on their
// fields, under "Type.Field". They become descriptions in the OpenAPI document.
func Docs() (map[string]string, error) {
	files, err := source.ReadDir(".")
	if err != nil {
		return nil, err
	}
	docs := map[string]string{}
	for _, f := range files {
		text, err := source.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("read comments: %w", err)
		}
		for _, d := range parsed.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
				addDocs(docs, g)
			}
		}
	}
	return docs, nil
}

func addDocs(docs map[string]string, g *ast.GenDecl) {
	for _, s := range g.Specs {
		t, ok := s.(*ast.TypeSpec)
		if !ok {
			continue
		}
		docs[t.Name.Name] = sentence(g.Doc)
		st, ok := t.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range st.Fields.List {
			for _, name := range f.Names {
				docs[t.Name.Name+"."+name.Name] = sentence(f.Comment)
			}
		}
	}
}

// sentence returns a comment as one line.
func sentence(g *ast.CommentGroup) string { return strings.Join(strings.Fields(g.Text()), " ") }
