package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestQuantileIsTheNearestRank(t *testing.T) {
	var samples []time.Duration
	for i := 20; i >= 1; i-- {
		samples = append(samples, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 10, 0.95: 19, 1: 20} {
		if got := quantile(samples, q); got != want {
			t.Errorf("quantile %v of 1…20 is %d, want %d", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %d", got)
	}
}

func TestResults(t *testing.T) {
	r := &results{}
	r.add("plain", 1234.4, "1/s")
	r.want("good", 5.25, "times", atLeast, 5)
	if err := r.verdict(); err != nil {
		t.Errorf("all met, and yet %v", err)
	}
	r.want("bad", 61, "ms", atMost, 60)
	if err := r.verdict(); err == nil || !strings.Contains(err.Error(), "bad is 61 ms, wanted ≤ 60") {
		t.Errorf("verdict: %v", err)
	}
	path := filepath.Join(t.TempDir(), "bench.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]struct {
		Value float64
		Unit  string
	}
	if err := json.Unmarshal(b, &got); err != nil || len(got) != 3 || got["good"].Value != 5.25 || got["plain"].Unit != "1/s" {
		t.Errorf("%s: %v, %v", b, got, err)
	}
	var table strings.Builder
	r.print(&table)
	for _, line := range []string{"plain", "≥ 5", "met", "missed"} {
		if !strings.Contains(table.String(), line) {
			t.Errorf("the table lacks %q:\n%s", line, table.String())
		}
	}
}

func TestSharesOfACreate(t *testing.T) {
	create := made{took: 150 * time.Millisecond, stages: []hostapi.Stage{
		{Name: "files", Duration: 5 * time.Millisecond}, // concurrent with the engine's start
		{Name: "vmm_start", Duration: 20 * time.Millisecond, Engine: true},
		{Name: "restore", Duration: 50 * time.Millisecond, Engine: true},
		{Name: "identity", Duration: 60 * time.Millisecond},
	}}
	r := &results{}
	addShares(r, []made{create})
	if _, ok := r.value("create_share_ours_over_raft_commits"); ok {
		t.Error("a ratio to commits that were not measured")
	}
	r = &results{}
	r.add(singleCommit, 2, "ms")
	addShares(r, []made{create})
	for name, want := range map[string]float64{
		"create_share_ours_p50": 20, "create_share_engine_p50": 70, "create_share_guest_p50": 60, "create_share_ours_over_raft_commits": 5,
	} {
		if got, _ := r.value(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if err := r.verdict(); err == nil || !strings.Contains(err.Error(), "create_share_ours_over_raft_commits is 5 times, wanted ≤ 3") {
		t.Errorf("verdict: %v", err)
	}
}

func TestBenchmarksOfPackagesAreRead(t *testing.T) {
	out := "goos: linux\nBenchmarkPgbench/64_clients-2  \t 3\t6399758408 ns/op\t     26690 direct-tps\t     19814 tps\nBenchmarkTPCB-2   \t 2\t 1.5 tps\nPASS\nok  \tpkg\t58.202s\n"
	got := parseBenchmarks(out)
	if len(got) != 2 || got[0].name != "BenchmarkPgbench/64_clients" || got[0].values["tps"] != 19814 || got[0].values["direct-tps"] != 26690 || got[1].name != "BenchmarkTPCB" || got[1].values["tps"] != 1.5 {
		t.Errorf("%+v", got)
	}
}
