// Command generate writes the generated parts of the clients: their types and one
// function per operation of the OpenAPI document, and the synchronous half of the
// Python package, which is the asynchronous half without waiting. Run it with
// `make clients`; its test fails if the committed files are outdated.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/controlplane/httpapi"
)

func main() {
	root := flag.String("root", "clients", "directory of the clients")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	files, err := generate(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns every generated file's text by its name.
func generate(root string) (map[string]string, error) {
	doc, err := httpapi.Document()
	if err != nil {
		return nil, err
	}
	a, err := read(doc)
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		filepath.Join(root, "python/src/berth_client/models.py"):     pythonModels(a),
		filepath.Join(root, "python/src/berth_client/operations.py"): pythonOperations(a),
		filepath.Join(root, "typescript/src/models.ts"):              typescriptModels(a),
		filepath.Join(root, "typescript/src/operations.ts"):          typescriptOperations(a),
	}
	if err := addSync(files, filepath.Join(root, "python/src/berth_client")); err != nil {
		return nil, err
	}
	return files, nil
}
