package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// history is what happened, of all workers together: it judges what may be, and
// counts.
type history struct {
	mu         sync.Mutex
	violations []string
	doomed     map[string]string // sandbox id → why it may be failed
	calls      map[string]*tally
	faults     map[string]int
}

// tally counts one kind of call by how it ended.
type tally struct {
	done    int
	refused map[string]int // by status, or "network"
	took    []time.Duration
}

func newHistory() *history {
	return &history{doomed: map[string]string{}, calls: map[string]*tally{}, faults: map[string]int{}}
}

// violate records what must never be.
func (h *history) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h.mu.Lock()
	h.violations = append(h.violations, time.Now().Format("15:04:05 ")+text)
	h.mu.Unlock()
	say("VIOLATION: %s", text)
}

// doom says that a sandbox may be failed from now on.
func (h *history) doom(id, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doomed[id] = why
}

func (h *history) isDoomed(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, yes := h.doomed[id]
	return yes
}

func (h *history) fault(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults[name]++
}

// call counts one call; refused is empty when it was done.
func (h *history) call(kind, refused string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.calls[kind]
	if t == nil {
		t = &tally{refused: map[string]int{}}
		h.calls[kind] = t
	}
	if refused != "" {
		t.refused[refused]++
		return
	}
	t.done++
	t.took = append(t.took, took)
}

// print writes the tables of a run.
func (h *history) print() {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Printf("\n%-12s %7s %9s %9s %9s   %s\n", "call", "done", "p50", "p99", "max", "refused, by status")
	for _, kind := range sortedKeys(h.calls) {
		t := h.calls[kind]
		slices.Sort(t.took)
		fmt.Printf("%-12s %7d %9s %9s %9s   %s\n", kind, t.done, t.quantile(50), t.quantile(99), t.quantile(100), counts(t.refused))
	}
	fmt.Printf("\nfaults: %s\n", counts(h.faults))
	if len(h.violations) == 0 {
		fmt.Println("violations: none")
		return
	}
	fmt.Printf("violations: %d\n  %s\n", len(h.violations), strings.Join(h.violations, "\n  "))
}

func (t *tally) quantile(percent int) string {
	if len(t.took) == 0 {
		return "-"
	}
	return t.took[(len(t.took)-1)*percent/100].Round(time.Millisecond).String()
}

func counts(m map[string]int) string {
	parts := make([]string, 0, len(m))
	for _, k := range sortedKeys(m) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// marks are the lines that commands appended to a file of a sandbox. A command
// whose answer came with exit code 0 has appended its line exactly once; one
// whose answer did not come, at most once.
type marks struct {
	certain map[string]bool
	maybe   map[string]bool
}

func newMarks() marks { return marks{certain: map[string]bool{}, maybe: map[string]bool{}} }

// inherited are the marks of a child that was forked from here.
func (m marks) inherited() marks {
	c := newMarks()
	for k := range m.certain {
		c.certain[k] = true
	}
	for k := range m.maybe {
		c.maybe[k] = true
	}
	return c
}

// judge compares a file's lines with the marks and returns what is wrong.
func (m marks) judge(content string) []string {
	var wrong []string
	seen := map[string]int{}
	for line := range strings.Lines(content) {
		seen[strings.TrimSpace(line)]++
	}
	for mark, n := range seen {
		switch {
		case n > 1:
			wrong = append(wrong, fmt.Sprintf("%s was done %d times", mark, n))
		case !m.certain[mark] && !m.maybe[mark]:
			wrong = append(wrong, fmt.Sprintf("%s was never asked for here", mark))
		}
	}
	for mark := range m.certain {
		if seen[mark] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s was acknowledged and is lost", mark))
		}
	}
	slices.Sort(wrong)
	return wrong
}
