package limits_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTiers(t *testing.T) {
	builtin, err := limits.Load("", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(builtin.Names(), " "); got != "free pro team unlimited" {
		t.Errorf("built in: %s", got)
	}
	file := filepath.Join(t.TempDir(), "tiers.yaml")
	if err := os.WriteFile(file, []byte("small:\n  sandboxes: 2\n  keys: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tiers, err := limits.Load(file, "small")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ws   record.Workspace
		tier string
		want record.Quotas
	}{
		"no tier":       {record.Workspace{}, "small", record.Quotas{Sandboxes: new(2), Keys: new(0)}},
		"one that went": {record.Workspace{Tier: "pro"}, "small", record.Quotas{Sandboxes: new(2), Keys: new(0)}},
		"unlimited":     {record.Workspace{Tier: "unlimited"}, "unlimited", record.Quotas{}},
		"its own": {
			record.Workspace{Quotas: record.Quotas{Sandboxes: new(9), CPU: new(1)}}, "small",
			record.Quotas{Sandboxes: new(9), CPU: new(1), Keys: new(0)},
		},
	} {
		if got := tiers.Name(&c.ws); got != c.tier {
			t.Errorf("%s: tier %s", name, got)
		}
		if d := cmp.Diff(c.want, tiers.Of(&c.ws)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	// The file is read again, unless it is wrong, or lacks the default tier.
	for _, c := range []struct {
		text, want string
		good       bool
	}{
		{"small: [", "small unlimited", false},
		{"big:\n  cpu: 1\n", "small unlimited", false},
		{"big: {}\nsmall: {}\n", "big small unlimited", true},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := tiers.Reload()
		if got := strings.Join(tiers.Names(), " "); (err == nil) != c.good || got != c.want {
			t.Errorf("%q: %v, and the tiers are %s", c.text, err, got)
		}
	}
	var none *limits.Tiers
	if !none.Known("unlimited") || none.Known("free") || !reflect.DeepEqual(none.Of(&record.Workspace{}), record.Quotas{}) {
		t.Error("no table limits something")
	}
	if _, err := limits.Load(file, "pro"); err == nil {
		t.Error("a default tier that is not there")
	}
	if _, err := limits.Load(file+"x", ""); err == nil {
		t.Error("a file that is not there")
	}
	for _, bad := range []string{"[]", "x: 1", "x: {cpu: many}", "x: {gpus: 1}", "X: {}", `"": {}`, "a b: {}", "\x00", "x: {cpu: 1, cpu: 2}"} {
		if q, err := limits.Parse([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, q)
		}
	}
}

// More than one instance of an app is for workspaces that pay, as the specification has it.
func TestInstancesOfAnApp(t *testing.T) {
	builtin, err := limits.Load("", "")
	if err != nil {
		t.Fatal(err)
	}
	for tier, want := range map[string]int{"free": 1, "pro": 3, "team": 3, "": 3} {
		if got := builtin.AppInstances(&record.Workspace{Tier: tier}, 3); got != want {
			t.Errorf("%s: %d of 3, want %d", tier, got, want)
		}
		if got := builtin.AppInstances(&record.Workspace{Tier: tier}, 1); got != 1 {
			t.Errorf("%s: %d of 1", tier, got)
		}
	}
}

// Each refusal is the specification's, with its fields.
func TestRefusals(t *testing.T) {
	c := testcluster.New(t, 1)
	tiers, _ := limits.Load("", "")
	ws := &record.Workspace{Meta: record.Meta{ID: "ws"}}
	rows := map[string]record.SandboxStatus{
		"a": record.SandboxRunning, "b": record.SandboxPaused, "c": record.SandboxHibernated, "d": record.SandboxFailed, "e": record.SandboxDeleting,
	}
	c.Update(func(tx *raftstore.Tx) error {
		for id, status := range rows {
			testcluster.PutSandbox(tx, &record.Sandbox{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Status: status, CPU: 2, MemoryMB: 100, DiskMB: 1000})
		}
		testcluster.PutSandbox(tx, &record.Sandbox{
			Meta: record.Meta{ID: "managed"}, WorkspaceID: "ws", Status: record.SandboxRunning, CPU: 8, MemoryMB: 4096, DiskMB: 10240, Owner: &record.Owner{Type: "app", ID: "x"},
		})
		testcluster.PutSandbox(tx, &record.Sandbox{Meta: record.Meta{ID: "theirs"}, WorkspaceID: "other", Status: record.SandboxRunning, CPU: 2, MemoryMB: 100})
		testcluster.PutSnapshot(tx, &record.Snapshot{Meta: record.Meta{ID: "s"}, WorkspaceID: "ws", Status: record.ResourceReady, MemoryMB: 512, DiskMB: 1000, MemoryBytes: 2 << 20, DiskBytes: 1})
		testcluster.PutSnapshot(tx, &record.Snapshot{
			Meta: record.Meta{ID: "artifact"}, WorkspaceID: "ws", Status: record.ResourceReady, MemoryBytes: 1 << 30, Owner: &record.Owner{Type: "app", ID: "x"},
		})
		for _, id := range []string{"v", "w", "x"} {
			v := &record.Volume{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Name: id, Status: record.ResourceReady, SizeMB: 50}
			if id == "x" {
				v.Status = record.ResourceDeleting
			}
			testcluster.PutVolume(tx, v)
		}
		raftstore.Put(tx, record.Databases, &record.Database{Meta: record.Meta{ID: "db"}, WorkspaceID: "ws", Status: record.DatabaseProvisioning, Size: "1g"})
		now := time.Now()
		hour := limits.Hour{}.Add(now.Add(-2*time.Hour), 100).Add(now.Add(-30*time.Minute), 3).Add(now, 2)
		raftstore.Put(tx, record.WorkspaceCreates, &record.Creates{Meta: record.Meta{ID: "ws"}, Seconds: hour.Bytes()})
		return nil
	})
	one := limits.Need{Sandboxes: 1, CPU: 2, MemoryMB: 100}
	for name, test := range map[string]struct {
		quotas  record.Quotas
		need    limits.Need
		message string
		fields  map[string]any
	}{
		"sandboxes":        {record.Quotas{Sandboxes: new(4)}, one, "max sandboxes reached", map[string]any{"max": 4, "active": 4}},
		"room for one":     {record.Quotas{Sandboxes: new(5)}, one, "", nil},
		"a fork of two":    {record.Quotas{Sandboxes: new(5)}, limits.Need{Sandboxes: 2}, "max sandboxes reached", map[string]any{"max": 5, "active": 4}},
		"none at all":      {record.Quotas{Sandboxes: new(0)}, one, "max sandboxes reached", map[string]any{"max": 0, "active": 4}},
		"without a limit":  {record.Quotas{Sandboxes: new(-1)}, one, "", nil},
		"CPU":              {record.Quotas{CPU: new(5)}, one, "workspace resource quota exceeded", map[string]any{"cpu_used": 4, "cpu_max": 5, "memory_mb_used": 200, "memory_mb_max": nil}},
		"CPU to the last":  {record.Quotas{CPU: new(6)}, one, "", nil},
		"memory":           {record.Quotas{CPU: new(100), MemoryMB: new(299)}, one, "workspace resource quota exceeded", map[string]any{"cpu_used": 4, "cpu_max": 100, "memory_mb_used": 200, "memory_mb_max": 299}},
		"the hour":         {record.Quotas{CreatesPerHour: new(5)}, one, "hourly create limit exceeded", map[string]any{"limit_per_hr": 5, "used_last_hr": 5}},
		"room in the hour": {record.Quotas{CreatesPerHour: new(6)}, one, "", nil},
		"snapshots":        {record.Quotas{Snapshots: new(1)}, limits.Need{Snapshots: 1}, "max snapshots reached", map[string]any{"max": 1, "active": 1}},
		"apps":             {record.Quotas{Apps: new(0)}, limits.Need{Apps: 1}, "max apps reached", map[string]any{"max": 0, "active": 0}},
		"databases":        {record.Quotas{Databases: new(1)}, limits.Need{Databases: 1}, "max databases reached", map[string]any{"max": 1, "active": 1}},
		"keys":             {record.Quotas{Keys: new(0)}, limits.Need{Keys: 1}, "max keys reached", map[string]any{"max": 0, "active": 0}},
		"another quota":    {record.Quotas{Keys: new(0)}, one, "", nil},
		// Four sandboxes of 1000, a snapshot of 3 (and an app's), two volumes of 50, a database.
		"disk": {record.Quotas{DiskMB: new(14_344), CPU: new(100)}, limits.Need{DiskMB: 2}, "workspace resource quota exceeded", map[string]any{
			"cpu_used": 4, "cpu_max": 100, "memory_mb_used": 200, "memory_mb_max": nil, "disk_mb_used": 14_343, "disk_mb_max": 14_344,
		}},
		"disk to the last":        {record.Quotas{DiskMB: new(14_345)}, limits.Need{DiskMB: 2}, "", nil},
		"disk of what needs none": {record.Quotas{DiskMB: new(0)}, limits.Need{Keys: 1}, "", nil},
		"no disk at all": {record.Quotas{DiskMB: new(0)}, limits.Need{Sandboxes: 1, DiskMB: 1}, "workspace resource quota exceeded", map[string]any{
			"cpu_used": 4, "cpu_max": nil, "memory_mb_used": 200, "memory_mb_max": nil, "disk_mb_used": 14_343, "disk_mb_max": 0,
		}},
	} {
		w := ws.Clone()
		w.Quotas = test.quotas
		err := tiers.Check(c.Leader().Store.View(), w, test.need, time.Now())
		if test.message == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		e := apierror.As(err)
		if err == nil || e.Code != apierror.ERateLimited || e.Message != test.message {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(test.fields, e.Fields); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestRate(t *testing.T) {
	builtin, err := limits.Load("", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		quotas  record.Quotas
		want    limits.Rate
		message string
	}{
		"the specification's": {record.Quotas{}, limits.DefaultRate, "rate limit: 50 req/burst, 25/sec sustained per workspace"},
		"its own":             {record.Quotas{RequestsPerSecond: new(100), RequestsBurst: new(300)}, limits.Rate{Burst: 300, PerSecond: 100}, "rate limit: 300 req/burst, 100/sec sustained per workspace"},
		"another burst":       {record.Quotas{RequestsBurst: new(5)}, limits.Rate{Burst: 5, PerSecond: 25}, "rate limit: 5 req/burst, 25/sec sustained per workspace"},
		"none":                {record.Quotas{RequestsPerSecond: new(-1), RequestsBurst: new(5)}, limits.Rate{None: true}, ""},
	} {
		got := builtin.Rate(&record.Workspace{Quotas: c.quotas})
		if got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
		if e := got.Exceeded(); !got.None && (e.Message != c.message || e.Code != apierror.ERateLimited || e.RetryAfter != time.Second || len(e.Fields) != 0) {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// An operator edits the file while the replica runs. What cannot be used changes nothing.
func TestTheFileOfTiersIsFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tiers.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("small: {sandboxes: 2}")
	tiers, err := limits.Load(file, "small")
	if err != nil {
		t.Fatal(err)
	}
	var logged atomic.Int64
	log := slog.New(errorCounter{slog.DiscardHandler, &logged})
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { tiers.Follow(ctx, time.Millisecond, log) })
	sandboxes := func(tier string) int {
		if q := tiers.Of(&record.Workspace{Tier: tier}).Sandboxes; q != nil {
			return *q
		}
		return -1
	}
	write("small: {sandboxes: 3}\nlarge: {sandboxes: 70}")
	testcluster.Await(t, "the new tiers", func() bool { return sandboxes("") == 3 && sandboxes("large") == 70 })
	for i, bad := range []string{"large: {sandboxes: 9}", "small: {sandboxes: many}", "\x00"} { // the first lacks the default tier
		write(bad)
		testcluster.Await(t, "a complaint", func() bool { return logged.Load() == int64(i+1) })
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "a complaint", func() bool { return logged.Load() == 4 })
	if got := sandboxes("large"); got != 70 {
		t.Errorf("a bad file left %d", got)
	}
	write("small: {sandboxes: 4}")
	testcluster.Await(t, "the file again", func() bool { return sandboxes("") == 4 && !tiers.Known("large") })
	stop()
	following.Wait()
	if got := sandboxes("large"); got != 4 {
		t.Errorf("a tier that went: %d", got)
	}
}

// errorCounter counts errors.
type errorCounter struct {
	slog.Handler
	n *atomic.Int64
}

func (errorCounter) Enabled(context.Context, slog.Level) bool { return true }

func (c errorCounter) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		c.n.Add(1)
	}
	return nil
}

// A workspace is warned at 80 percent of its credit, or where the operator says.
func TestWhenAWorkspaceIsWarned(t *testing.T) {
	c := testcluster.New(t, 1)
	ws := &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: record.Quotas{CreditCents: new(100)}}
	now := time.Now()
	month := record.MonthOf(now)
	for percent, at := range map[int]int64{0: 800_000, 50: 500_000, 100: 1_000_000} {
		for used, warned := range map[int64]bool{at - 1: false, at: true} {
			c.Update(func(tx *raftstore.Tx) error {
				u := &record.Usage{Meta: record.Meta{ID: record.UsageID("ws", month)}, WorkspaceID: "ws", Month: month}
				u.Line(record.ProductSandbox, record.ResourceMemory).MicroUSD = used
				raftstore.Put(tx, record.Usages, u)
				return nil
			})
			tiers, err := limits.Load("", "")
			if err != nil {
				t.Fatal(err)
			}
			tiers.WarnPercent = percent
			if got := tiers.Month(c.Leader().Store.View(), ws, now).Nearly(); got != warned {
				t.Errorf("%d of a million at %d percent: %t", used, percent, got)
			}
		}
	}
}

func TestHour(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	h := limits.Hour{}
	for i := range 5000 {
		h = limits.ReadHour(h.Bytes()).Since(start.Add(time.Duration(i)*time.Second)).Add(start.Add(time.Duration(i)*time.Second), 1)
	}
	if n := h.Total(); n != 3601 { // the second that is partly an hour ago counts
		t.Errorf("one each second: %d in an hour", n)
	}
	if n := len(h.Bytes()); n > 8000 {
		t.Errorf("%d bytes", n)
	}
	back := h.Add(start, 7)
	if n := back.Total(); n != 3608 || h.Total() != 3601 {
		t.Errorf("a clock that was set back: %d", n)
	}
	if n := h.Since(start.Add(3 * time.Hour)).Total(); n != 0 {
		t.Errorf("after an hour: %d", n)
	}
}

// A leader's clock that was a day ahead must not keep a workspace from creating for a day
// after it was set right. One that differs by less than an hour forgives nothing.
func TestAnHourOfAWrongClock(t *testing.T) {
	right := time.Unix(1_700_000_000, 0)
	ahead := limits.Hour{}.Add(right, 3).Add(right.Add(24*time.Hour), 7)
	now := right.Add(time.Minute)
	h := ahead.Since(now)
	if n := h.Total(); n != 3 {
		t.Errorf("after the clock was set right: %d", n)
	}
	if n := h.Add(now, 2).Since(now.Add(time.Hour)).Total(); n != 2 {
		t.Errorf("an hour later: %d", n)
	}
	if n := (limits.Hour{}).Add(right.Add(59*time.Minute), 7).Since(right).Total(); n != 7 {
		t.Errorf("a clock that was an hour ahead at most: %d", n)
	}
}

func FuzzReadHour(f *testing.F) {
	f.Add(limits.Hour{}.Add(time.Unix(1_700_000_000, 0), 3).Bytes())
	f.Add([]byte{0x80})
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := limits.ReadHour(raw)
		if again := limits.ReadHour(h.Bytes()); again.Total() != h.Total() {
			t.Fatalf("%v, %v", h, again)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("free:\n  sandboxes: 10\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if tiers, err := limits.Parse(raw); err == nil && len(tiers) == 0 {
			t.Fatal("no tier")
		}
	})
}
