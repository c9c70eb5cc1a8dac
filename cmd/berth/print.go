package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// printJSON prints a value as JSON.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table prints rows, the first one as the heading.
func (a *app) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = onLine.Replace(plain(cell))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// onLine keeps a cell in its line and column.
var onLine = strings.NewReplacer("\n", " ", "\t", " ")

// plain leaves out what a terminal would obey: names, messages of commits and errors are
// whoever's made them.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, s)
}

// fields prints names and values, one pair per line.
func (a *app) fields(pairs ...string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(w, "%s:\t%s\n", pairs[i], plain(pairs[i+1]))
	}
	return w.Flush()
}

// note prints a message to stderr, except with --json.
func (a *app) note(format string, args ...any) {
	if !a.json {
		fmt.Fprintln(a.stderr, plain(fmt.Sprintf(format, args...)))
	}
}

// age returns the time since t in its largest unit.
func age(t time.Time) string {
	switch d := time.Since(t); {
	case t.IsZero():
		return "never"
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// span is a flag for whole seconds: "90", "90s", "1h30m".
type span struct {
	seconds *int64
}

// String implements pflag.Value.
func (s *span) String() string {
	if s.seconds == nil {
		return ""
	}
	return (time.Duration(*s.seconds) * time.Second).String()
}

// Type implements pflag.Value.
func (s *span) Type() string { return "duration" }

// Set implements pflag.Value.
func (s *span) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			return fmt.Errorf("want seconds or a duration such as 90s or 1h30m")
		case d%time.Second != 0:
			return fmt.Errorf("want whole seconds")
		}
		n = int64(d / time.Second)
	}
	s.seconds = &n
	return nil
}

// assignments parses k=v pairs. With an environment, a k alone takes its value from
// it.
func assignments(pairs []string, env func(string) string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		k, v, ok := strings.Cut(p, "=")
		switch {
		case k == "":
			return nil, fmt.Errorf("%q: want NAME=VALUE", p)
		case !ok && env == nil:
			return nil, fmt.Errorf("%q: want NAME=VALUE", p)
		case !ok:
			v = env(k)
		}
		out[k] = v
	}
	return out, nil
}

// printLine prints one value of a stream as JSON on one line.
func (a *app) printLine(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
