package ledger_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/hostd/ledger"
)

var update = flag.Bool("update", false, "write the golden file of the current format")

func when(s int) time.Time { return time.Date(2026, 11, 20, 12, 0, s, 0, time.UTC) }

func ptr(i int) *int { return &i }

// goldenPath is the file of the current format; older ones are never written
// again.
const goldenPath = "testdata/ledger-v4"

// goldenV1 is what testdata/ledger-v1 holds, for ever.
var goldenV1 = []ledger.Record{
	{
		ID: "aaaaaaaaaaaaaaaaaaaaaaaaaa", Generation: 3, State: ledger.Running, WorkspaceID: "ws1",
		Template: "base", BuildID: "b1", Boot: ledger.BootRestore, Hostname: "one", MachineID: "00112233445566778899aabbccddeeff",
		Env: map[string]string{"KEY": "value"}, CPU: 1, MemoryMB: 512, ReservedMB: 640, DiskMB: 4096, Slot: 7,
		VMM: ledger.VMM{PID: 4242, StartTime: 123456789, Engine: "chvemu"}, CreatedAt: when(1), StartedAt: when(2),
		Stages: []ledger.Stage{{Name: "slot", Duration: time.Millisecond}, {Name: "restore", Duration: 100 * time.Millisecond, Engine: true}},
		Took:   120 * time.Millisecond, Own: 20 * time.Millisecond,
	},
	{
		ID: "bbbbbbbbbbbbbbbbbbbbbbbbbb", Generation: 1, State: ledger.Failed, WorkspaceID: "ws1", Template: "base", BuildID: "b1",
		Boot: ledger.BootCold, Slot: ledger.NoSlot, CreatedAt: when(3), FailedAt: when(4), Error: "died", ExitCode: ptr(-1), Signal: "KILL",
	},
}

// goldenV2 is what testdata/ledger-v2 holds, for ever.
var goldenV2 = []ledger.Record{
	goldenV1[0],
	goldenV1[1],
	{
		ID: "eeeeeeeeeeeeeeeeeeeeeeeeee", Generation: 2, State: ledger.Paused, Seq: 5, WorkspaceID: "ws1", Template: "base", BuildID: "b1",
		Boot: ledger.BootCold, Slot: ledger.NoSlot, CreatedAt: when(6), Stopped: true, WarmChild: "ffffffffffffffffffffffffff", ResetTCP: true,
	},
	{
		ID: "ffffffffffffffffffffffffff", Generation: 1, State: ledger.Running, Seq: 2, WorkspaceID: "ws1", Template: "base", BuildID: "b1",
		Boot: ledger.BootRestore, Slot: 3, CreatedAt: when(7), Persistent: true, SharedRAM: true, PauseMS: 40, HostKey: []byte("seed"),
		Volumes: []ledger.Volume{{ID: "vol-1", MountPath: "/data"}},
	},
}

// golden is what goldenPath holds, and testdata/ledger-v3 for ever.
var golden = append(slices.Clone(goldenV2), ledger.Record{
	ID: "gggggggggggggggggggggggggg", Generation: 1, State: ledger.Running, Seq: 2, WorkspaceID: "ws1", Template: "base", BuildID: "b1",
	Boot: ledger.BootRestore, Slot: 4, CreatedAt: when(8), Exclusive: true,
})

func TestGoldenFileOfEveryFormatIsRead(t *testing.T) {
	if *update {
		_ = os.Remove(goldenPath)
		l := open(t, goldenPath)
		for _, r := range golden[:2] {
			must(t, l.Put(r))
			must(t, l.Put(r))
		}
		must(t, l.PutAll(golden[2:]...))
		must(t, l.Bury("cccccccccccccccccccccccccc", 9, when(5)))
		must(t, l.Put(ledger.Record{ID: "dddddddddddddddddddddddddd"}))
		must(t, l.Forget("dddddddddddddddddddddddddd"))
		must(t, l.ObserveTerm("", 40))
		must(t, l.ObserveTerm("one", 3))
		must(t, l.ObserveTerm("two", 17))
		must(t, l.Close())
		must(t, os.Remove(goldenPath+".lock"))
	}
	for path, want := range map[string][]ledger.Record{"testdata/ledger-v1": goldenV1, "testdata/ledger-v2": goldenV2, "testdata/ledger-v3": golden, goldenPath: golden} {
		raw, err := os.ReadFile(path)
		must(t, err)
		l := open(t, write(t, string(raw)))
		if diff := cmp.Diff(want, l.Boxes()); diff != "" {
			t.Errorf("%s: records differ (-want +got):\n%s", path, diff)
		}
		if got := l.Tombstone("cccccccccccccccccccccccccc"); got != 9 {
			t.Errorf("%s: tombstone = %d, want 9", path, got)
		}
		wantCluster := ""
		if path == goldenPath || path == "testdata/ledger-v3" {
			wantCluster = "two"
		}
		if cluster, got := l.Term(); got != 17 || cluster != wantCluster {
			t.Errorf("%s: term = %d of %q, want 17 of %q", path, got, cluster, wantCluster)
		}
	}
}

func TestWhatWasWrittenIsThereAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	for _, r := range golden[:2] {
		must(t, l.Put(r))
	}
	must(t, l.Forget(golden[1].ID))
	must(t, l.Bury(golden[0].ID, 3, when(0)))
	must(t, l.Bury(golden[0].ID, 2, when(9))) // a late, older delete does not lower it
	must(t, l.ObserveTerm("", 4))
	must(t, l.Close())

	l = open(t, path)
	if n := len(l.Boxes()); n != 0 {
		t.Errorf("%d records, want none", n)
	}
	if got := l.Tombstone(golden[0].ID); got != 3 {
		t.Errorf("tombstone = %d, want 3", got)
	}
	if got := l.Tombstone(golden[1].ID); got != 0 {
		t.Errorf("a forgotten box has tombstone %d, want none", got)
	}
	if err := l.ObserveTerm("", 3); !errors.Is(err, ledger.ErrStaleTerm) {
		t.Errorf("lower term: %v, want ErrStaleTerm", err)
	}
	must(t, l.ObserveTerm("", 4))
}

// A cluster that was restored from a backup counts its terms anew. The one that
// it follows is over, whatever its terms.
func TestTermsAreOfACluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	must(t, l.ObserveTerm("", 57)) // of the time before clusters had names
	must(t, l.ObserveTerm("old", 9))
	must(t, l.ObserveTerm("new", 2))
	for range 2 { // also after reopening
		for _, stale := range []struct {
			cluster string
			term    uint64
		}{{"", 58}, {"old", 100}, {"new", 1}} {
			if err := l.ObserveTerm(stale.cluster, stale.term); !errors.Is(err, ledger.ErrStaleTerm) {
				t.Errorf("term %d of %q: %v, want ErrStaleTerm", stale.term, stale.cluster, err)
			}
		}
		must(t, l.ObserveTerm("new", 2))
		must(t, l.Close())
		l = open(t, path)
	}
	must(t, l.ObserveTerm("newer", 1))
	if err := l.ObserveTerm("new", 3); !errors.Is(err, ledger.ErrStaleTerm) {
		t.Errorf("a cluster that was followed: %v", err)
	}
}

func TestPruneDropsOnlyOldTombstones(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger"))
	must(t, l.Bury("old", 1, when(1)))
	must(t, l.Bury("new", 2, when(9)))
	n, err := l.Prune(when(5))
	must(t, err)
	if n != 1 || l.Tombstone("old") != 0 || l.Tombstone("new") != 2 {
		t.Errorf("pruned %d, old=%d new=%d", n, l.Tombstone("old"), l.Tombstone("new"))
	}
}

func TestRecordsAreNotSharedWithTheCaller(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger"))
	r := golden[0]
	r.Env = map[string]string{"KEY": "value"}
	must(t, l.Put(r))
	r.Env["KEY"] = "changed"
	got, _ := l.Get(r.ID)
	got.Env["KEY"] = "changed too"
	if again, _ := l.Get(r.ID); again.Env["KEY"] != "value" {
		t.Errorf("env = %q, want it untouched", again.Env["KEY"])
	}
}

func TestOpenRefuses(t *testing.T) {
	golden, err := os.ReadFile(goldenPath)
	must(t, err)
	held := filepath.Join(t.TempDir(), "held")
	open(t, held)

	for name, c := range map[string]struct {
		path, host string
		want       error
	}{
		"a file of garbage":            {write(t, strings.Repeat("not a ledger\n", 800)), "h1", ledger.ErrCorrupt},
		"a changed byte in the middle": {write(t, strings.Replace(string(golden), "ws1", "ws2", 1)), "h1", ledger.ErrCorrupt},
		"a changed byte in the header": {write(t, strings.Replace(string(golden), "h1", "h2", 1)), "h1", ledger.ErrCorrupt},
		"a missing line break":         {write(t, strings.Replace(string(golden), "\n", "", 1)), "h1", ledger.ErrCorrupt},
		"a header cut short":           {write(t, string(golden[:12])), "h1", ledger.ErrCorrupt},
		"zeros":                        {write(t, strings.Repeat("\x00", 4096)), "h1", ledger.ErrCorrupt},
		"an entry of an unknown kind":  {write(t, strings.SplitAfter(string(golden), "\n")[0]+"297bd0aa {}\n"), "h1", ledger.ErrCorrupt},
		"a newer format":               {write(t, "a1a740b2 {\"format\":5,\"host\":\"h1\"}\n"), "h1", ledger.ErrNewerFormat},
		"another daemon's file":        {held, "h1", ledger.ErrInUse},
		"another host's file":          {write(t, string(golden)), "h2", ledger.ErrOtherHost},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := ledger.Open(c.path, c.host)
			if err == nil {
				_ = l.Close()
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("Open = %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), c.path) {
				t.Errorf("%q does not name the file", err)
			}
		})
	}
}

func TestALineThatWasBeingWrittenAtAPowerCutIsDropped(t *testing.T) {
	golden, err := os.ReadFile(goldenPath)
	must(t, err)
	for name, tail := range map[string]string{
		"half a line":         `0123abcd {"term":9`,
		"zeros":               strings.Repeat("\x00", 4096),
		"a line with a hole":  "0123abcd {\"te\x00\x00\x00\x00}\n",
		"one byte":            "0",
		"a line without end":  `c0c0c0c0 {"term":18}`,
		"nothing but the end": "",
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, string(golden)+tail)
			l := open(t, path)
			if _, got := l.Term(); got != 17 {
				t.Errorf("term = %d, want 17", got)
			}
			must(t, l.ObserveTerm("two", 18))
			must(t, l.Close())
			if _, got := open(t, path).Term(); got != 18 {
				t.Errorf("term = %d after a later write, want 18", got)
			}
		})
	}
}

func TestTheJournalStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	r := golden[0]
	for i := range 60 {
		r.Generation = uint64(i)
		r.Env = map[string]string{"BIG": strings.Repeat(string(rune('A'+i)), 100<<10)}
		must(t, l.Put(r))
	}
	fi, err := os.Stat(path)
	must(t, err)
	if fi.Size() > 2<<20 {
		t.Errorf("journal of one record is %d bytes long", fi.Size())
	}
	must(t, l.Close())
	if got, _ := open(t, path).Get(r.ID); got.Generation != 59 {
		t.Errorf("generation = %d, want the last one", got.Generation)
	}
}

// A full disk has room for thousands of changes, also of boxes with a large env.
func TestAnEnvIsWrittenOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	r := golden[0]
	r.Env = map[string]string{"BIG": strings.Repeat("x", 1<<20)}
	grown := func(most int64) {
		t.Helper()
		fi, err := os.Stat(path)
		must(t, err)
		before := fi.Size()
		for range 3 {
			r.Generation++
			must(t, l.Put(r))
		}
		fi, err = os.Stat(path)
		must(t, err)
		if n := fi.Size() - before; n > most {
			t.Errorf("three changes take %d bytes, want at most %d", n, most)
		}
	}
	grown(1<<20 + 4<<10)
	must(t, l.Close())
	l = open(t, path)
	grown(4 << 10)
	must(t, l.Close())
	l = open(t, path)
	got, _ := l.Get(r.ID)
	if diff := cmp.Diff(r, got); diff != "" {
		t.Errorf("the record differs (-want +got):\n%s", diff)
	}
	// Another of its name, or another env, has its own.
	must(t, l.Forget(r.ID))
	grown(1<<20 + 4<<10)
	r.Env = map[string]string{"BIG": strings.Repeat("y", 1<<20)}
	must(t, l.Put(r))
	must(t, l.Close())
	if got, _ := open(t, path).Get(r.ID); got.Env["BIG"] != r.Env["BIG"] {
		t.Errorf("the env has %d bytes", len(got.Env["BIG"]))
	}
}

func TestConcurrentWritersLoseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	l := open(t, path)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				id := strings.Repeat(string(rune('a'+i)), 25) + string(rune('a'+j))
				if err := l.Put(ledger.Record{ID: id, Generation: 1, State: ledger.Creating}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, l.Close())
	if n := len(open(t, path).Boxes()); n != 40 {
		t.Errorf("%d records, want 40", n)
	}
}

// FuzzOpen feeds damaged files: Open answers with an error or with a ledger
// that can be written.
func FuzzOpen(f *testing.F) {
	whole, err := os.ReadFile(goldenPath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := write(t, string(raw))
		l, err := ledger.Open(path, "h1")
		if err != nil {
			return
		}
		must(t, l.Put(golden[0]))
		must(t, l.Close())
		if _, ok := open(t, path).Get(golden[0].ID); !ok {
			t.Error("the record is gone after reopening")
		}
	})
}

func open(t *testing.T, path string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(path, "h1")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger")
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
