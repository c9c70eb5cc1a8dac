package hostd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// rid makes box ids.
func rid(c byte, i int) string { return strings.Repeat(string(c), 25) + string(rune('a'+i)) }

func (h *host) try(id string, spec hostapi.BoxSpec) (hostapi.Box, error) {
	spec.Generation, spec.WorkspaceID = 1, "ws"
	return h.client.PutBox(h.t.Context(), id, spec)
}

func (h *host) make(id string, spec hostapi.BoxSpec) hostapi.Box {
	h.t.Helper()
	b, err := h.try(id, spec)
	if err != nil {
		h.t.Fatalf("put %+v: %v", spec, err)
	}
	return b
}

// witness is a process that holds what a guest has in memory: an open file that
// has no name any more, a counter that counts, a tmpfs.
const witness = `mkdir -p /mnt/t && mount -t tmpfs none /mnt/t && echo on-tmpfs > /mnt/t/f && sync
cat > /root/witness.py <<'X'
import os, time
f = open('/root/gone', 'w+'); f.write('unlinked'); f.flush(); os.unlink('/root/gone')
big = bytearray(os.urandom(1 << 20)) * 32
n = 0
while True:
    n += 1
    f.seek(0)
    with open('/dev/shm/witness.tmp', 'w') as o:
        o.write('%d %s %d %d' % (os.getpid(), f.read(), n, len(big)))
    os.rename('/dev/shm/witness.tmp', '/dev/shm/witness')
    time.sleep(0.05)
X
setsid python3 /root/witness.py </dev/null >/dev/null 2>&1 &
while ! [ -s /dev/shm/witness ]; do sleep 0.05; done`

// killVM ends the VMM of a box, whose daemon is gone.
func (h *host) killVM(id string) {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join("/run/berth", hostID, id, "vmm.json"))
	must(h.t, err)
	var pid int
	_, after, _ := strings.Cut(string(raw), `"pid":`)
	if _, err := fmt.Sscan(strings.TrimRight(strings.SplitN(after, ",", 2)[0], "}"), &pid); err != nil || pid <= 1 {
		h.t.Fatalf("%s: no pid", raw)
	}
	must(h.t, syscall.Kill(pid, syscall.SIGKILL))
}

// loseNetwork removes what a reboot does not bring back.
func (h *host) loseNetwork() {
	h.t.Helper()
	found, err := filepath.Glob("/run/netns/berth-" + hostID + "-*")
	must(h.t, err)
	for _, path := range found {
		must(h.t, errors.Join(syscall.Unmount(path, syscall.MNT_DETACH), os.Remove(path)))
	}
}
