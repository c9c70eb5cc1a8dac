// Package telemetrytest is for tests: it compares metrics with their documentation, and
// is a collector of traces.
package telemetrytest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// Metric is what a document says of one.
type Metric struct {
	Type   string
	Labels []string // in order
}

var (
	row   = regexp.MustCompile("^\\| `(berth_[a-z0-9_]+)` \\| (counter|gauge|histogram) \\|([^|]*)\\| \\S")
	label = regexp.MustCompile("`([a-z_]+)`")
)

// Document reads the tables of metrics below some headings ("### Hosts") of a document;
// below none: all.
func Document(t testing.TB, file string, headings ...string) map[string]Metric {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Metric{}
	heading := ""
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			heading = line
		}
		if len(headings) > 0 && !slices.Contains(headings, heading) {
			continue
		}
		if strings.HasPrefix(line, "| `berth_") && !row.MatchString(line) {
			t.Errorf("%s: a row without name, type, labels and meaning: %s", file, line)
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if _, twice := out[m[1]]; twice {
			t.Errorf("%s: %s has two rows", file, m[1])
		}
		var labels []string
		for _, l := range label.FindAllStringSubmatch(m[3], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		out[m[1]] = Metric{Type: m[2], Labels: labels}
	}
	if len(out) == 0 {
		t.Fatalf("%s: no metric below %q", file, headings)
	}
	return out
}

var desc = regexp.MustCompile(`(?s)^Desc\{fqName: "([^"]+)", .*constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// Exported fails the test unless a registry exports exactly the metrics that a document
// has below some headings, with those labels. It compares the types of those that have a
// value.
func Exported(t testing.TB, r *prometheus.Registry, file string, headings ...string) {
	t.Helper()
	want, got := Document(t, file, headings...), map[string]Metric{}
	ch := make(chan *prometheus.Desc)
	go func() {
		defer close(ch)
		r.Describe(ch)
	}()
	for d := range ch {
		m := desc.FindStringSubmatch(d.String())
		if m == nil {
			t.Errorf("a description in another form: %s", d)
			continue
		}
		if !strings.HasPrefix(m[1], "berth_") {
			continue // Go's and the process's
		}
		var labels []string
		for part := range strings.SplitSeq(m[2]+","+m[3], ",") {
			if name, _, _ := strings.Cut(part, "="); name != "" {
				labels = append(labels, name)
			}
		}
		slices.Sort(labels)
		got[m[1]] = Metric{Type: want[m[1]].Type, Labels: labels}
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if m, ok := got[f.GetName()]; ok {
			m.Type = strings.ToLower(f.GetType().String())
			got[f.GetName()] = m
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-) and what is exported (+): %s", file, diff)
	}
}
