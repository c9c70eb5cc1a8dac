package database

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	guestpg "github.com/berth-cloud/berth/guest/pg/agent"
	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pg/wal"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// PostgreSQL runs this test as its archive_command and restore_command.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "archive" || os.Args[1] == "restore") {
		os.Exit(wal.Command(os.Args[1:], os.Stderr))
	}
	code := pgtest.Main(m)
	if source.dir != "" {
		_ = os.RemoveAll(source.dir)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"

	one = "0b0e7a52-6a0c-4b5e-9d3c-2f8f6f1a7c11/1"
	two = "1b0e7a52-6a0c-4b5e-9d3c-2f8f6f1a7c11/1"
)

var errAway = errors.New("the bucket is away")

// faulty is a bucket that can be away.
type faulty struct {
	bucket.Bucket
	mu   sync.Mutex
	away bool
	full bool // it takes nothing
}

func (f *faulty) set(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

func (f *faulty) try() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return errAway
	}
	return nil
}

func (f *faulty) Passing(error) bool { return false }

func (f *faulty) Create(ctx context.Context, key string, content []byte) error {
	f.mu.Lock()
	full := f.full
	f.mu.Unlock()
	if err := f.try(); err != nil || full {
		return cmp.Or(err, errAway)
	}
	return f.Bucket.Create(ctx, key, content)
}

func (f *faulty) Get(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if err := f.try(); err != nil {
		return nil, 0, err
	}
	return f.Bucket.Get(ctx, key)
}

func (f *faulty) Walk(ctx context.Context, prefix string, visit func(bucket.Object) error) error {
	if err := f.try(); err != nil {
		return err
	}
	return f.Bucket.Walk(ctx, prefix, visit)
}

func (f *faulty) List(ctx context.Context, prefix, after string, visit func(bucket.Object) error) error {
	if err := f.try(); err != nil {
		return err
	}
	return f.Bucket.List(ctx, prefix, after, visit)
}

func (f *faulty) Stat(ctx context.Context, key string) (bucket.Object, error) {
	if err := f.try(); err != nil {
		return bucket.Object{}, err
	}
	return f.Bucket.Stat(ctx, key)
}

// host is one with boxes that are real guestpgs.
type host struct {
	*Databases
	bucket  *faulty
	dir     string // of the bucket
	store   *pgarchive.Store
	boxes   *boxes
	metrics *prometheus.Registry
	quota   Quota
	stop    func()
}

func newHost(t *testing.T) *host {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bucket")
	u, err := url.Parse("file://" + dir)
	must(t, err)
	b, err := bucket.Open(t.Context(), u)
	must(t, err)
	h := &host{bucket: &faulty{Bucket: b}, dir: dir, boxes: &boxes{list: map[string]*fakeBox{}, watch: make(chan struct{}, 1)}}
	h.store = pgarchive.New(h.bucket)
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

// start begins a daemon over what is there; stop ends it.
func (h *host) start() {
	h.metrics = prometheus.NewRegistry()
	h.Databases = New(Config{
		Boxes: h.boxes, Dial: h.boxes.dial, Store: h.store, Quota: h.quota, Metrics: NewMetrics(h.metrics), Log: slog.New(slog.DiscardHandler),
	})
	h.metrics.MustRegister(h.Collect())
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	d := h.Databases
	ended.Go(func() { d.Run(ctx) })
	h.stop = sync.OnceFunc(func() { cancel(); ended.Wait() })
}

// boxes are what a box.Host would be.
type boxes struct {
	watch chan struct{}

	mu   sync.Mutex
	list map[string]*fakeBox
	told int
}

type fakeBox struct {
	box.DatabaseBox
	guest   *guest
	tunnels int
	ended   time.Time
}

func (b *boxes) changed() {
	select {
	case b.watch <- struct{}{}:
	default:
	}
}

func (b *boxes) put(id string, g *guest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list[id] = &fakeBox{DatabaseBox: box.DatabaseBox{ID: id, CPU: 2, MemoryMB: 320, DiskMB: 10240, Run: make(chan struct{})}, guest: g}
}

// run has a box run with a new VMM, or stand still.
func (b *boxes) run(id string, runs bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list[id].Run = nil
	if runs {
		b.list[id].Run = make(chan struct{})
	}
	b.changed()
}

func (b *boxes) remove(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.list, id)
	b.changed()
}

func (b *boxes) SetDatabase(id string, spec *hostapi.DatabaseSpec) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.list[id] == nil {
		return hosterr.ErrNotFound
	}
	b.list[id].Spec = spec.Clone()
	b.changed()
	return nil
}

func (b *boxes) Databases() (out []box.DatabaseBox) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.list {
		if f.Spec != nil {
			out = append(out, f.DatabaseBox)
		}
	}
	return out
}

func (b *boxes) Database(id string) (box.DatabaseBox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.list[id]; f != nil && f.Spec != nil {
		return f.DatabaseBox, nil
	}
	return box.DatabaseBox{}, hosterr.ErrNotFound
}

func (b *boxes) Watch() <-chan struct{} { return b.watch }

func (b *boxes) Notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told++
}

func (b *boxes) Tunnels(id string) (int, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.list[id]
	if f == nil {
		return 0, time.Time{}
	}
	return f.tunnels, f.ended
}

func (b *boxes) Sleep(ctx context.Context, id string, prepare func(context.Context) error) (hostapi.Box, error) {
	if err := prepare(ctx); err != nil {
		return hostapi.Box{}, err
	}
	b.run(id, false)
	return hostapi.Box{ID: id, Status: hostapi.StatusHibernated}, nil
}

func (b *boxes) dial(ctx context.Context, id string, _ int) (net.Conn, error) {
	b.mu.Lock()
	f := b.list[id]
	runs := f != nil && f.Run != nil && f.guest != nil
	b.mu.Unlock()
	if !runs {
		return nil, hosterr.ErrNotRunning
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", f.guest.addr())
}

// guest is guestpg with PostgreSQL, without a VM around them.
type guest struct {
	cfg  guestpg.Config
	stop func()

	mu sync.Mutex
	at string
}

func newGuest(t *testing.T) *guest {
	t.Helper()
	cfg := guestpg.Config{Version: "test", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Peer: netip.MustParseAddr("127.0.0.1"), Postgres: pgtest.Config(t), Settings: pgtest.Settings()}
	cfg.Log = cfg.Postgres.Log
	cfg.Reserve = guestpg.Reserve{Limit: 1, Stop: 1, Ballast: 1} // the machine's own disk
	cfg.Postgres.Program = filepath.Join(cfg.Postgres.Dir, "guestpg")
	self, err := os.Executable()
	must(t, err)
	raw, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(cfg.Postgres.Program, raw, 0o755))
	pgtest.Init(t, cfg.Postgres)
	g := &guest{cfg: cfg}
	g.run(t)
	t.Cleanup(func() { g.stop() })
	return g
}

// run starts guestpg over what is there.
func (g *guest) run(t *testing.T) {
	t.Helper()
	a, err := guestpg.New(g.cfg)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = a.Addr().String()
}

func (g *guest) addr() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

var app = pgapi.Credentials{Database: "app", Username: "app", Password: "some-password-1"}

// sql runs statements as the tenant and returns the first value of the last.
func (g *guest) sql(t *testing.T, sql string) string {
	t.Helper()
	ctx := pgtest.Context(t)
	conn, err := g.cfg.Postgres.LogIn(ctx, app.Username, app.Database, app.Password)
	must(t, err)
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, sql).ReadAll()
	must(t, err)
	if n := len(results); n > 0 && len(results[n-1].Rows) > 0 {
		return string(results[n-1].Rows[0][0])
	}
	return ""
}

func archive(name string) hostapi.Archive {
	return hostapi.Archive{Name: name, Key: bytes.Repeat([]byte{name[0]}, 32)}
}

// spec archives often, and makes a base backup at once.
func spec(name string) hostapi.DatabaseSpec {
	return hostapi.DatabaseSpec{Archive: archive(name), ArchiveIntervalSeconds: 3, BackupIntervalSeconds: 3600}
}

// database makes a box a database, and waits until it serves.
func (h *host) database(t *testing.T, id string, s hostapi.DatabaseSpec) *guest {
	t.Helper()
	g := newGuest(t)
	h.boxes.put(id, g)
	_, err := h.Put(id, s)
	must(t, err)
	return g
}

func (h *host) await(t *testing.T, id, what string, ok func(*hostapi.DatabaseState) bool) hostapi.DatabaseState {
	t.Helper()
	ctx := pgtest.Context(t)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		st := h.State(id)
		if st != nil && ok(st) {
			return *st
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not %s: %+v", what, st)
		}
	}
}

func ready(st *hostapi.DatabaseState) bool { return st.Ready }

func restorable(st *hostapi.DatabaseState) bool { return !st.Archive.FirstRestorable.IsZero() }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blocking holds reads of some objects up until proceed is closed, or they are cut off.
type blocking struct {
	*faulty
	at      string // part of the key
	reached func()
	proceed <-chan struct{}
}

func (b *blocking) Get(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if strings.Contains(key, b.at) {
		b.reached()
		select {
		case <-b.proceed:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
	return b.faulty.Get(ctx, key)
}
