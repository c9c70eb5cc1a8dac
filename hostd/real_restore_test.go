package hostd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// busy keeps a guest's processor, memory, disk, timers and random numbers at
// work, so that it is captured in the midst of something.
const busy = `for i in 1 2 3; do
setsid python3 -c '
import os, time, hashlib
n = 0
while True:
    n += 1
    hashlib.sha256(os.urandom(4096)).digest()
    if n % 50 == 0:
        with open("/root/busy.%d" % os.getpid(), "wb") as f: f.write(os.urandom(65536))
        os.system("true")
        time.sleep(0.001)
' </dev/null >/dev/null 2>&1 &
done; sleep 1`

// TestRealRestores restores guests until 32 have come, or as many as
// BERTH_TEST_RESTORES says, by forks of 16 of a parent that is busy and, one round
// in three, from the template. A long run is
//
//	BERTH_TEST_GUESTS=1 BERTH_TEST_RESTORES=5000 go test ./hostd -run TestRealRestores -v -timeout 4h
func TestRealRestores(t *testing.T) {
	h := newHost(t)
	want, err := strconv.Atoi(envOr("BERTH_TEST_RESTORES", "32"))
	must(t, err)
	h.env = append(h.env, "BERTH_MEMORY_MB=14336", "BERTH_SLOT_POOL=20", "BERTH_LOG_LEVEL=info")
	h.start()
	parent := rid('q', 0)
	h.make(parent, hostapi.BoxSpec{Template: "base"})
	h.sh(parent, busy)
	const children = 16
	began := time.Now()
	for done, round := 0, 0; done < want; done += children {
		round++
		capture := fmt.Sprint("restores-", round)
		_, err := h.client.PutCapture(t.Context(), capture, hostapi.CaptureSpec{BoxID: parent, Generation: 1, Memory: true, Transient: true})
		must(t, err)
		spec := hostapi.BoxSpec{Capture: capture, Generation: uint64(round), WorkspaceID: "ws"}
		if round%3 == 0 { // those of the template are restored from an idle guest
			spec.Capture, spec.Template = "", "base"
		}
		each(children, func(i int) {
			id := rid('r', i)
			if _, err := h.client.PutBox(t.Context(), id, spec); err != nil {
				t.Errorf("restore %d of round %d: %v", i, round, err)
				return
			}
			if _, err := h.client.Exec(t.Context(), id, hostapi.ExecRequest{Argv: []string{"true"}, Timeout: time.Minute}); err != nil {
				t.Errorf("exec in child %d of round %d: %v", i, round, err)
			}
			if b, err := h.client.GetBox(t.Context(), id); err != nil || b.Status != hostapi.StatusRunning {
				t.Errorf("child %d of round %d: %+v, %v", i, round, b, err)
			}
		})
		each(children, func(i int) { must(t, h.client.DeleteBox(t.Context(), rid('r', i), 0)) })
		must(t, h.client.DeleteCapture(t.Context(), capture, false))
		t.Logf("%d restores in %s", done+children, time.Since(began).Round(time.Second))
	}
	if raw, err := os.ReadFile(h.log); err == nil {
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, "level=ERROR") || strings.Contains(line, "create failed") {
				t.Errorf("%s says: %s", filepath.Base(h.log), line)
			}
		}
	}
}

// each runs f for every i below n at once.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}
