package database

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Data that is too large for the disk is not tried again until the deadline.
func TestARestoreToADiskThatIsTooSmall(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		diskMB int
		addr   func(t *testing.T, g *guest) string
	}{
		"as the host knows":  {1, func(_ *testing.T, g *guest) string { return g.at }},
		"as the guest finds": {10240, func(t *testing.T, _ *guest) string { return fullGuest(t) }},
	} {
		t.Run(what, func(t *testing.T) {
			h := newHost(t)
			written(t, h)
			g := newGuest(t)
			h.boxes.put(idB, g)
			h.boxes.list[idB].DiskMB = c.diskMB
			g.at = c.addr(t, g)
			_, err := h.Put(idB, restoreOf(one, nil))
			must(t, err)
			st := h.await(t, idB, "failed", func(st *hostapi.DatabaseState) bool {
				return st.Restore != nil && st.Restore.Phase == pgapi.RestoreFailed
			})
			if want := fmt.Sprintf("do not fit the disk of its size, %d MB", c.diskMB); st.Ready || !strings.Contains(st.Restore.Error, want) {
				t.Errorf("state = %+v, restore = %+v, want %s", st, st.Restore, want)
			}
		})
	}
}

// fullGuest is a guestpg whose volume takes no base backup.
func fullGuest(t *testing.T) (addr string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case pgapi.PathRestoreBase:
			w.WriteHeader(http.StatusInsufficientStorage)
			_ = json.NewEncoder(w).Encode(pgapi.Error{Error: "write base/1/1: no space left on device", Code: pgapi.CodeNoRoom})
		case pgapi.PathStatus:
			_ = json.NewEncoder(w).Encode(pgapi.Status{State: pgapi.StateReady, Ready: true})
		default:
			_, _ = w.Write([]byte("{}"))
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
