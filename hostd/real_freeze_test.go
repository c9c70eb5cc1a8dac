package hostd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// drawing draws random numbers without pause, in two processes for two CPUs, until
// each has some of another life than its first. Each value is written with the life
// that the guest was in when it was drawn, by the file that an identity changes last.
const drawing = `cat > /root/draw.py <<'X'
import os, sys
out = open('/dev/shm/draws.' + sys.argv[1], 'w', buffering=1)
first, later = None, 0
while later < 10:
    with open('/run/berth/generation') as f: life = f.read().strip()
    first = first or life
    later += life != first
    out.write(life + ' ' + os.getrandom(16).hex() + '\n')
open('/dev/shm/drawn.' + sys.argv[1], 'w').close()
X
for i in 1 2; do setsid python3 /root/draw.py $i </dev/null >/dev/null 2>&1 & done
while ! [ -s /dev/shm/draws.1 -a -s /dev/shm/draws.2 ]; do sleep 0.05; done; cat /run/berth/generation`

// draws are the values that a guest's process drew in the life in which its state
// was saved, and those after it.
func (h *host) draws(id, process, life string) (before, after []string) {
	h.t.Helper()
	for line := range strings.Lines(h.sh(id, "while ! [ -e /dev/shm/drawn."+process+" ]; do sleep 0.1; done; cat /dev/shm/draws."+process)) {
		if of, value, _ := strings.Cut(strings.TrimSpace(line), " "); of == life {
			before = append(before, value)
		} else {
			after = append(after, value)
		}
	}
	return before, after
}

// A process that draws without pause is stopped for the capture, and goes on in
// each copy when that has entropy of its own. So the copies have in common what
// was drawn before, all of it, and nothing else.
func TestRealCopiesDrawNothingInCommon(t *testing.T) {
	h := newHost(t)
	h.env = append(h.env, "BERTH_MEMORY_MB=8192")
	const template = "two-cpus"
	definition := filepath.Join(t.TempDir(), "template.yaml")
	must(t, os.WriteFile(definition, []byte("name: "+template+"\nfrom: base\ncpu: 2\n"), 0o600))
	began := time.Now()
	h.run("template", "build", definition)
	t.Logf("the template after %s", time.Since(began).Round(time.Millisecond))
	h.start()
	parent := rid('y', 0)
	h.make(parent, hostapi.BoxSpec{Template: template})
	if cpus := h.sh(parent, "nproc"); cpus != "2" {
		t.Fatalf("the guest has %s CPUs", cpus)
	}
	life := h.sh(parent, drawing)
	const name = "draws"
	c, err := h.client.PutCapture(t.Context(), name, hostapi.CaptureSpec{BoxID: parent, Generation: 1, Memory: true, Transient: true})
	must(t, err)
	t.Logf("the capture after %s; the parent stood still for %d ms", time.Since(began).Round(time.Millisecond), c.PauseMS)
	ids := []string{parent}
	const children = 2
	each(children, func(i int) {
		if _, err := h.try(rid('z', i), hostapi.BoxSpec{Capture: name}); err != nil {
			t.Errorf("child %d: %v", i, err)
		}
	})
	t.Logf("%d children after %s", children, time.Since(began).Round(time.Millisecond))
	for i := range children {
		ids = append(ids, rid('z', i))
	}
	for _, process := range []string{"1", "2"} {
		seen := map[string]string{}
		common := -1
		for _, id := range ids {
			before, after := h.draws(id, process, life)
			t.Logf("process %s of %.1s: %d values before, %d after", process, id, len(before), len(after))
			if len(after) < 3 {
				t.Errorf("process %s of %s does not draw any more", process, id)
			}
			// The one that it was about to write was drawn before, too.
			if common >= 0 && (len(before) < common-1 || len(before) > common+1) {
				t.Errorf("process %s of %s drew %d values in the life before, and in another copy %d: it was not stopped", process, id, len(before), common)
			}
			common = len(before)
			for _, value := range after[min(1, len(after)):] {
				if other, twice := seen[value]; twice {
					t.Errorf("process %s of %s and of %s both drew %s", process, id, other, value)
				}
				seen[value] = id
			}
		}
	}
	for _, id := range ids {
		must(t, h.client.DeleteBox(t.Context(), id, 1))
	}
	must(t, h.client.DeleteCapture(t.Context(), name, false))
	must(t, h.client.DeleteTemplate(t.Context(), template))
}
