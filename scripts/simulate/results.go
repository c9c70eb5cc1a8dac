package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// results are the numbers of a run, in the order in which they were measured.
type results struct {
	Options string   `json:"options"`
	Rows    []result `json:"results"`
}

type result struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

func describe(o options) string {
	return fmt.Sprintf("-hosts %d -sandboxes %d -templates %d -workspaces %d -clients %d, %d processors", o.hosts, o.sandboxes, o.templates, o.workspaces, o.clients, runtime.NumCPU())
}

func (r *results) add(name string, value float64, unit string) {
	r.Rows = append(r.Rows, result{name, value, unit})
	say("%s: %s %s", name, number(value), unit)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *results) latency(name string, calls *recorder) {
	r.add(name+", p50", ms(calls.quantile(.5)), "ms")
	r.add(name+", p99", ms(calls.quantile(.99)), "ms")
}

func (r *results) times(name string, calls *recorder) {
	r.add(name+", median", ms(calls.quantile(.5)), "ms")
	r.add(name+", worst", ms(calls.quantile(1)), "ms")
}

func (r *results) memory(when string, c *cell, lead *replica) {
	now, peak := residentMB(lead.cmd.Process.Pid)
	r.add(when+": memory of the leader", now, "MB")
	r.add(when+": the most it was", peak, "MB")
	for _, other := range c.replicas {
		if other != lead {
			now, _ := residentMB(other.cmd.Process.Pid)
			r.add(when+": memory of follower "+other.id, now, "MB")
		}
	}
}

// placement reads the quantiles of a histogram between two scrapes.
func (r *results) placement(name string, before, after map[string]float64) {
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", .5}, {"p99", .99}} {
		if v, ok := histogramQuantile(q.q, before, after, `berth_create_stage_seconds_bucket{engine="false",stage="placement",le="`); ok {
			r.add(name+", "+q.name+", at most", v*1000, "ms")
		}
	}
}

// histogramQuantile is the upper bound of the bucket that has a quantile of what was
// observed between two scrapes.
func histogramQuantile(q float64, before, after map[string]float64, prefix string) (float64, bool) {
	type bucket struct{ le, n float64 }
	var buckets []bucket
	for name, n := range after {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		text := strings.TrimSuffix(rest, `"}`)
		le, err := strconv.ParseFloat(text, 64)
		if text == "+Inf" {
			le, err = math.Inf(1), nil
		}
		if err == nil {
			buckets = append(buckets, bucket{le, n - before[name]})
		}
	}
	slices.SortFunc(buckets, func(a, b bucket) int {
		switch {
		case a.le < b.le:
			return -1
		case a.le > b.le:
			return 1
		}
		return 0
	})
	if len(buckets) == 0 || buckets[len(buckets)-1].n == 0 {
		return 0, false
	}
	total := buckets[len(buckets)-1].n
	for _, b := range buckets {
		if b.n >= q*total && !math.IsInf(b.le, 1) {
			return b.le, true
		}
	}
	return 0, false
}

func number(v float64) string {
	switch {
	case v == math.Trunc(v) || v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// print writes the numbers as a table of Markdown.
func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "`simulate %s`\n\n| | |\n|---|---|\n", r.Options)
	for _, row := range r.Rows {
		fmt.Fprintf(w, "| %s | %s |\n", row.Name, strings.TrimSpace(number(row.Value)+" "+row.Unit))
	}
}

// finish prints the numbers, and writes them if that is asked for.
func (r *results) finish(o options) error {
	r.print(os.Stdout)
	if o.out != "" {
		return r.write(o.out)
	}
	return nil
}

func (r *results) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}
