package main

import (
	"fmt"
	"io"
	"time"
)

// table collects how long each operation took, as Markdown for
// docs/benchmarks.md.
type table struct{ rows []row }

type row struct {
	what, detail string
	took         time.Duration
}

func (t *table) add(what string, took time.Duration, detail string) {
	t.rows = append(t.rows, row{what: what, took: took, detail: detail})
	fmt.Printf("ok %s (%s) %s\n", what, took.Round(time.Millisecond), detail)
}

func (t *table) print(w io.Writer) {
	fmt.Fprint(w, "\n| operation | s | of which |\n|---|---|---|\n")
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s | %.1f | %s |\n", r.what, r.took.Seconds(), r.detail)
	}
}
