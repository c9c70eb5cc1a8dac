package pgarchive

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
)

func BenchmarkArchive(b *testing.B) {
	content := segment(1)
	f := walFile(seg(1), content)
	b.Run("put WAL", func(b *testing.B) {
		s := New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b")))
		a := open(b, s, first, key)
		b.SetBytes(pgapi.SegmentBytes)
		n := uint64(0)
		for b.Loop() {
			n++
			f.Name = seg(n)
			if _, err := a.PutWAL(b.Context(), f, bytes.NewReader(content)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get WAL", func(b *testing.B) {
		a := open(b, New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b"))), first, key)
		putWAL(b, a, seg(1), content)
		b.SetBytes(pgapi.SegmentBytes)
		for b.Loop() {
			if _, _, err := a.WAL(b.Context(), seg(1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get a base backup", func(b *testing.B) {
		a := open(b, New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b"))), first, key)
		stream := long()
		backup(b, a, "a", 1, 1, time.Now(), stream)
		b.SetBytes(int64(len(stream)))
		for b.Loop() {
			if err := a.Backup(b.Context(), "a", io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("info of a week", func(b *testing.B) {
		a := open(b, New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b"))), first, key)
		const segments = 7 * 24 * 60
		for n := range uint64(segments) {
			stub(b, a, n+1, at(int(n)))
		}
		for day := range 7 {
			backup(b, a, string(rune('a'+day)), uint64(day*1440+2), uint64(day*1440+2), at(day*1440+3), []byte("x"))
		}
		for b.Loop() {
			if _, err := a.Info(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkTPCB runs pgbench's TPC-B at a database that is archived and at one that is not,
// in turns. Archiving takes its part of the same processors here.
func BenchmarkTPCB(b *testing.B) {
	pgbench, err := exec.LookPath("pgbench")
	if err != nil {
		b.Skip("no pgbench: scripts/install-deps bench")
	}
	const turn = 10 // seconds
	s := New(openBucket(b, "file://"+filepath.Join(b.TempDir(), "b")))
	type path struct {
		metric string
		guest  *guest
	}
	paths := []path{{"tps", startGuest(b)}, {"unarchived-tps", startGuest(b)}}
	archives(b, paths[0].guest, open(b, s, first, key))
	run := func(g *guest, args ...string) float64 {
		cfg := g.cfg.Postgres
		cmd := exec.CommandContext(b.Context(), pgbench, append(args, "-h", cfg.Listen.String(), "-p", strconv.Itoa(int(cfg.Port)), "-U", "app", "app")...)
		cmd.Env = append(os.Environ(), "PGPASSWORD=some-password-1", "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		var tps float64
		if _, after, ok := strings.Cut(string(out), "tps = "); ok {
			_, _ = fmt.Sscanf(after, "%g", &tps)
		}
		return tps
	}
	for _, p := range paths {
		p.guest.await(b, "ready", func(st pgapi.Status) bool { return st.Ready })
		p.guest.credentials(b)
		run(p.guest, "-i", "-s", "10", "-q")
	}
	paths[0].guest.switchWAL(b) // nothing waits from before
	rates := map[string]float64{}
	for n := 0; b.Loop(); n++ {
		for i := range paths {
			p := paths[(n+i)%len(paths)]
			rates[p.metric] += run(p.guest, "-n", "-T", strconv.Itoa(turn), "-c", "8", "-j", "2")
		}
	}
	for _, p := range paths {
		b.ReportMetric(rates[p.metric]/float64(b.N), p.metric)
	}
}
