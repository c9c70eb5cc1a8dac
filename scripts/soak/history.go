package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// history records what all workers did. It decides what is a violation, and
// counts.
type history struct {
	mu         sync.Mutex
	violations []string
	doomed     map[string]string // sandbox id → why it may be failed
	calls      map[string]*tally
	faults     map[string]int
	broken     bool      // something is broken now
	repaired   time.Time // when the last fault was repaired
}

// tally counts one kind of call by its outcome.
type tally struct {
	done    int
	refused map[string]int // by status, or "network"
	took    []time.Duration
}

// kinds are the kinds of calls. A complete run makes each.
var kinds = []string{
	"create", "create again", "delete", "exec", "fork-tree", "get", "get file", "hibernate", "pause", "put file",
	"rm snapshot", "snapshot", "wake",
}

func newHistory() *history {
	return &history{doomed: map[string]string{}, calls: map[string]*tally{}, faults: map[string]int{}}
}

// violate records a violation.
func (h *history) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h.mu.Lock()
	h.violations = append(h.violations, time.Now().Format("15:04:05 ")+text)
	h.mu.Unlock()
	say("VIOLATION: %s", text)
}

// doom allows a sandbox to be failed from now on.
func (h *history) doom(id, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doomed[id] = reason
}

func (h *history) isDoomed(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, yes := h.doomed[id]
	return yes
}

// breaks and mends record when something is broken, and when it is repaired.
func (h *history) breaks() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = true
}

func (h *history) mends() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken, h.repaired = false, time.Now()
}

// calmSince reports whether nothing has been broken since then.
func (h *history) calmSince(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.broken && h.repaired.Before(t)
}

// fault counts an injected fault.
func (h *history) fault(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults[name]++
}

// call counts a call; refused is empty if it succeeded.
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

// never returns the kinds of calls, and of the given faults, that never happened.
func (h *history) never(faults []string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for _, kind := range kinds {
		if t := h.calls[kind]; t == nil || t.done == 0 {
			all = append(all, "call "+kind)
		}
	}
	for _, name := range faults {
		if h.faults[name] == 0 {
			all = append(all, "fault "+name)
		}
	}
	return all
}

// deaths returns the lines of a host's log about VMMs or guests that ended by
// themselves, also during a create that another host then completed, except those
// of doomed sandboxes.
func (h *history) deaths(log io.Reader) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	doomed := map[string]bool{} // shortened, as in logs
	for id := range h.doomed {
		doomed[hostapi.ShortID(id)] = true
	}
	var all []string
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Msg     string `json:"msg"`
			Sandbox string `json:"sandbox_id"`
			Error   string `json:"error"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Sandbox == "" || doomed[hostapi.ShortID(line.Sandbox)] {
			continue
		}
		if text := line.Msg + " " + line.Error; strings.Contains(text, "VMM died") || strings.Contains(text, "the guest rebooted") {
			all = append(all, lines.Text())
		}
	}
	return all, lines.Err()
}

// print prints the tables of a run.
func (h *history) print() {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Printf("\n%-18s %7s %9s %9s %9s   %s\n", "call", "done", "p50", "p99", "max", "refused, by status")
	for _, kind := range sortedKeys(h.calls) {
		t := h.calls[kind]
		slices.Sort(t.took)
		fmt.Printf("%-18s %7d %9s %9s %9s   %s\n", kind, t.done, t.quantile(50), t.quantile(99), t.quantile(100), counts(t.refused))
	}
	fmt.Printf("\nfaults: %s\n", counts(h.faults))
	if len(h.violations) == 0 {
		fmt.Println("violations: none")
		return
	}
	fmt.Printf("violations: %d\n  %s\n", len(h.violations), strings.Join(h.violations, "\n  "))
}

// write writes the numbers of a run as JSON, times in milliseconds.
func (h *history) write(path string, seed uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	type call struct {
		Done    int            `json:"done"`
		P50     int64          `json:"p50_ms"`
		P99     int64          `json:"p99_ms"`
		Max     int64          `json:"max_ms"`
		Refused map[string]int `json:"refused"`
	}
	calls := map[string]call{}
	for kind, t := range h.calls {
		slices.Sort(t.took)
		calls[kind] = call{t.done, t.at(50).Milliseconds(), t.at(99).Milliseconds(), t.at(100).Milliseconds(), t.refused}
	}
	raw, err := json.MarshalIndent(map[string]any{"seed": seed, "calls": calls, "faults": h.faults, "violations": h.violations}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

// at is a quantile of the durations, which are in order; 0 if there are none.
func (t *tally) at(percent int) time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	return t.took[(len(t.took)-1)*percent/100]
}

func (t *tally) quantile(percent int) string {
	if len(t.took) == 0 {
		return "-"
	}
	return t.at(percent).Round(time.Millisecond).String()
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
// that was answered with exit code 0 has appended its line exactly once; one
// whose answer was lost, at most once.
type marks struct {
	certain map[string]bool
	maybe   map[string]bool
}

func newMarks() marks { return marks{certain: map[string]bool{}, maybe: map[string]bool{}} }

// inherited returns the marks of a child that is forked now.
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

// judge compares a file's lines with the marks and returns the differences.
func (m marks) judge(content string) []string {
	var wrong []string
	seen := map[string]int{}
	for line := range strings.Lines(content) {
		seen[strings.TrimSpace(line)]++
	}
	for mark, n := range seen {
		switch {
		case n > 1:
			wrong = append(wrong, fmt.Sprintf("%s is there %d times", mark, n))
		case !m.certain[mark] && !m.maybe[mark]:
			wrong = append(wrong, fmt.Sprintf("%s is from another sandbox", mark))
		}
	}
	for mark := range m.certain {
		if seen[mark] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s was acknowledged but is lost", mark))
		}
	}
	slices.Sort(wrong)
	return wrong
}
