package main

import (
	"context"
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

// operation is one that is tried, with what is worth telling of it.
type operation struct {
	name string
	do   func(context.Context) (detail string, err error)
}

// perform runs operations in sequence and stops at the first failure: each depends on
// those before it.
func (t *table) perform(ctx context.Context, operations []operation) error {
	for _, op := range operations {
		began := time.Now()
		detail, err := op.do(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		t.add(op.name, time.Since(began), detail)
	}
	return nil
}

func (t *table) print(w io.Writer) {
	fmt.Fprint(w, "\n| operation | s | of which |\n|---|---|---|\n")
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s | %.1f | %s |\n", r.what, r.took.Seconds(), r.detail)
	}
}
