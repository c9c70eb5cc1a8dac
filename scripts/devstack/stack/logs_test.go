package stack

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRenderEvent(t *testing.T) {
	cases := []struct {
		name, line string
		want       string // without the clock; "" means left out
	}{
		{"an event with attributes",
			`{"time":"2026-11-20T12:00:00.5Z","level":"WARN","msg":"lease is late","agent_id":"h1","missed":3}`,
			"WRN r1  lease is late  agent_id=h1  missed=3"},
		{"below the level", `{"time":"2026-11-20T12:00:00Z","level":"INFO","msg":"hello"}`, ""},
		{"a large number is not rounded", `{"level":"ERROR","msg":"m","pid":4194304}`, "ERR r1  m  pid=4194304"},
		{"control characters stay quoted", `{"level":"ERROR","msg":"m","cmd":"a\u001b[2Jb c"}`, `ERR r1  m  cmd="a\u001b[2Jb c"`},
		{"a panic's trace", "goroutine 1 [running]:\x1b[2J", "    r1  goroutine 1 [running]:[2J"},
		{"half a JSON object", `{"level":`, `    r1  {"level":`},
		{"an empty line", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := renderEvent("r1", c.line, slog.LevelWarn)
			if ok != (c.want != "") || !strings.HasSuffix(got, c.want) {
				t.Errorf("got %q, want …%q", got, c.want)
			}
		})
	}
}

func FuzzRenderEvent(f *testing.F) {
	f.Add(`{"time":"x","level":3,"msg":[1],"k":{"a":null}}`)
	f.Add(`{"msg":"\u001b[2J","\u001b":1,"level":"\u001b"}`)
	f.Add("{\x00\x1b[31m")
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := renderEvent("r1", line, slog.LevelDebug-8)
		if ok && strings.ContainsAny(got, "\x00\x1b\r\x7f") {
			t.Errorf("%q reaches the terminal", got)
		}
	})
}

// Daemons have priority over guests, and a memory limit.
func TestTheUnitsBoundAndPreferTheDaemons(t *testing.T) {
	for unit, want := range map[string][]string{
		"berth-controlplane": {"CPUWeight=1000", "IOWeight=1000", "Environment=GOMEMLIMIT=3GiB", "MemoryMax=4G"},
		"berth-hostd":        {"Environment=GOMEMLIMIT=1GiB", "MemoryMax=95%"},
	} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "systemd", unit+".service"))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !slices.Contains(strings.Split(string(raw), "\n"), line) {
				t.Errorf("%s.service lacks %s", unit, line)
			}
		}
	}
}
