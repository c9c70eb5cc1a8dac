package database

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/timescale"
)

// offering is a guest that has one file to archive, of a few bytes, until it is stored.
type offering struct {
	name   string
	body   func() io.Reader // nil: its content
	deaf   bool             // it does not answer that its file is stored
	stored chan struct{}
}

var offered = []byte("1\t0/3000000\tno recovery target specified\n")

func newOffering() *offering {
	return &offering{name: "00000002.history", stored: make(chan struct{})}
}

// dial serves one request.
func (o *offering) dial(context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		req, err := http.ReadRequest(bufio.NewReader(server))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		resp := o.answer(req)
		resp.ProtoMajor, resp.ProtoMinor, resp.ContentLength, resp.Close = 1, 1, -1, true
		_ = resp.Write(server) // the host may have hung up
	}()
	return client, nil
}

func (o *offering) answer(req *http.Request) *http.Response {
	sum := sha256.Sum256(offered)
	file, _ := json.Marshal(pgapi.WALFile{Name: o.name, Size: int64(len(offered)), SHA256: hex.EncodeToString(sum[:]), WrittenAt: time.Now()})
	reply := func(r io.Reader) *http.Response {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(r)}
	}
	switch {
	case req.URL.Path == pgapi.PathWALNext:
		select {
		case <-o.stored:
			after(pollWait)
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}
		default:
			return reply(bytes.NewReader(file))
		}
	case o.deaf && req.Method == http.MethodPost:
		after(storeLimit)
		return &http.Response{StatusCode: http.StatusInternalServerError, Body: http.NoBody}
	case req.Method == http.MethodPost:
		close(o.stored)
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}
	case o.body != nil:
		return reply(o.body())
	}
	return reply(bytes.NewReader(offered))
}

// archiver is an agent that archives what a guest offers.
func archiver(t *testing.T, b bucket.Bucket, wal turns, name string, o *offering) *agent {
	t.Helper()
	a, err := pgarchive.New(b).Open(archive(name))
	must(t, err)
	return &agent{
		cfg: &Config{Boxes: &boxes{}, Now: time.Now, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry())},
		id:  idA, wal: wal, db: &database{archive: a, facts: newFacts(a, time.Now)}, spec: &hostapi.DatabaseSpec{}, tuned: make(chan struct{}),
		client: pgapi.NewClient(o.dial),
	}
}

// mute is a bucket that never answers.
type mute struct{ bucket.Bucket }

func (mute) Passing(error) bool { return true }

func (mute) Create(ctx context.Context, _ string, _ []byte) error { <-ctx.Done(); return ctx.Err() }
func (mute) Stat(ctx context.Context, _ string) (bucket.Object, error) {
	<-ctx.Done()
	return bucket.Object{}, ctx.Err()
}

func (mute) Get(ctx context.Context, _ string) (io.ReadCloser, int64, error) {
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

func (mute) Walk(ctx context.Context, _ string, _ func(bucket.Object) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// A bucket that takes connections and says nothing is said to be silent, and nothing
// piles up behind it.
func TestAnHourOfABucketThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := newOffering()
		a := archiver(t, mute{}, make(turns, walAtOnce), one, o)
		var all sync.WaitGroup
		all.Go(func() { a.archiveWAL(ctx) })
		all.Go(func() { a.db.facts.keep(ctx, a.cfg) })
		archives := NewArchives(pgarchive.New(mute{}))
		var ended atomic.Int32
		// Others ask once a minute, and wait for as long as they get no answer.
		ask := func() {
			for _, call := range []func() error{
				func() error { return second(archives.Info(context.Background(), archive(one))) },
				func() error {
					return second(archives.Prune(context.Background(), hostapi.ArchivePrune{Archive: archive(one)}))
				},
				func() error { return archives.Fence(context.Background(), archive(one)) },
				func() error { return archives.Delete(context.Background(), archive(one)) },
			} {
				all.Go(func() {
					if call() == nil {
						t.Error("a call succeeded")
					}
					ended.Add(1)
				})
			}
		}
		early, minutes := 0, int(timescale.Limit(time.Hour)/time.Minute)
		for minute := range minutes {
			ask()
			after(time.Minute)
			synctest.Wait()
			if minute == minutes/3 {
				early = runtime.NumGoroutine()
			}
		}
		// The count is the whole process's, and a goroutine of another test may have
		// come or gone. Were the calls to pile up, 160 more would wait.
		if n := runtime.NumGoroutine(); n > early+20 {
			t.Errorf("%d goroutines, and %d after a third of the time", n, early)
		}
		if st := a.db.facts.state(); st.Error != hostapi.ArchiveCauseSilent || time.Since(st.FailingSince) < 50*time.Minute {
			t.Errorf("state = %+v", st)
		}
		after(pruneLimit)
		synctest.Wait()
		if n := ended.Load(); int(n) != 4*minutes {
			t.Errorf("%d calls ended, want %d", n, 4*minutes)
		}
		cancel()
		all.Wait()
	})
}

// crowded is a bucket that counts how many write to it at once.
type crowded struct {
	bucket.Bucket
	now, most atomic.Int32
}

func (c *crowded) Create(ctx context.Context, key string, content []byte) error {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	after(time.Second)
	return c.Bucket.Create(ctx, key, content)
}

// All databases of a host begin another segment in the same second: each is archived
// well within the minute, and few of them are in memory at once. Guests that send
// nothing do not keep the turns, nor do those that do not hear that theirs is stored.
func TestManyDatabasesAreArchivedInTurns(t *testing.T) {
	warm(t)
	synctest.Test(t, func(t *testing.T) {
		b, err := bucket.Open(t.Context(), &url.URL{Scheme: "file", Path: t.TempDir()})
		must(t, err)
		c := &crowded{Bucket: b}
		wal := make(turns, walAtOnce)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		add := func(name string, o *offering) *agent {
			a := archiver(t, c, wal, name, o)
			all.Go(func() { a.archiveWAL(ctx) })
			return a
		}
		name := func(n int) string { return one[:37] + strconv.Itoa(n+1) }
		var bad *agent
		for n := range walAtOnce {
			o := newOffering()
			o.body = func() io.Reader { return slow{} }
			bad = add(name(n), o)
			deaf := newOffering()
			deaf.deaf = true
			add(name(50+n), deaf)
		}
		synctest.Wait()
		began := time.Now()
		var good []*offering
		for n := range 200 {
			o := newOffering()
			good = append(good, o)
			add(name(100+n), o)
		}
		for _, o := range good {
			<-o.stored
		}
		if took := time.Since(began); took > 30*time.Second+handLimit {
			t.Errorf("it took %s", took)
		}
		if most := c.most.Load(); most > walAtOnce {
			t.Errorf("%d at once, want %d", most, walAtOnce)
		}
		if st := bad.db.facts.state(); st.Error != hostapi.ArchiveCauseUnread {
			t.Errorf("of a guest that sends nothing: %+v", st)
		}
		cancel()
		all.Wait()
		after(max(pollWait, storeLimit)) // the guests' questions end
	})
}

// slow sends a byte now and then.
type slow struct{}

func (slow) Read(b []byte) (int, error) {
	after(time.Second)
	b[0] = 'x'
	return 1, nil
}
