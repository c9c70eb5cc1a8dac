package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// results are the measured numbers, in the order in which they were added.
type results struct {
	rows []row
}

type row struct {
	name   string
	value  float64
	unit   string
	goal   string // as shown; "" where there is none
	missed bool
	note   string // instead of a value: why there is none
}

// comparison says on which side of its bound a number should be.
type comparison string

const (
	atLeast comparison = "≥"
	atMost  comparison = "≤"
)

func (r *results) add(name string, value float64, unit string) {
	r.rows = append(r.rows, row{name: name, value: value, unit: unit})
}

// want adds a number that has a goal.
func (r *results) want(name string, value float64, unit string, c comparison, bound float64) {
	missed := value > bound
	if c == atLeast {
		missed = value < bound
	}
	r.rows = append(r.rows, row{name: name, value: value, unit: unit, goal: fmt.Sprintf("%s %s", c, number(bound)), missed: missed})
}

// value returns a number that was added before, and whether there is one.
func (r *results) value(name string) (float64, bool) {
	for _, row := range r.rows {
		if row.name == name && row.note == "" {
			return row.value, true
		}
	}
	return 0, false
}

// note says why something was not measured. It is shown, and not written.
func (r *results) note(name, text string) { r.rows = append(r.rows, row{name: name, note: text}) }

func (r *results) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "measure\tvalue\tunit\tgoal\t")
	for _, row := range r.rows {
		if row.note != "" {
			fmt.Fprintf(t, "%s\t-\t\t\t%s\n", row.name, row.note)
			continue
		}
		mark := ""
		switch {
		case row.missed:
			mark = "missed"
		case row.goal != "":
			mark = "met"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", row.name, number(row.value), row.unit, row.goal, mark)
	}
	_ = t.Flush() // a terminal that fails has nobody to tell
}

// number shows three significant digits of small numbers and all of large ones.
func number(v float64) string {
	switch {
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// entry is one number in the file.
type entry struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// write puts the numbers into a file, in their order.
func (r *results) write(path string) error {
	var b bytes.Buffer
	b.WriteString("{")
	for _, row := range r.rows {
		if row.note != "" {
			continue
		}
		v, err := json.Marshal(entry{row.value, row.unit})
		if err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		if b.Len() > 1 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n  %q: %s", row.name, v)
	}
	b.WriteString("\n}\n")
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// verdict is an error that names the goals that were missed.
func (r *results) verdict() error {
	var missed []string
	for _, row := range r.rows {
		if row.missed {
			missed = append(missed, fmt.Sprintf("%s is %s %s, wanted %s", row.name, number(row.value), row.unit, row.goal))
		}
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("goals missed: %s", strings.Join(missed, "; "))
}

// quantile returns the value below which the share q of the samples lies, by
// the nearest rank.
func quantile(samples []time.Duration, q float64) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	at := int(q*float64(len(sorted))+0.5) - 1
	return sorted[min(max(at, 0), len(sorted)-1)]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// addLatency adds the median and the 95th percentile.
func (r *results) addLatency(name string, samples []time.Duration) {
	r.add(name+"_p50", ms(quantile(samples, 0.5)), "ms")
	r.add(name+"_p95", ms(quantile(samples, 0.95)), "ms")
}
