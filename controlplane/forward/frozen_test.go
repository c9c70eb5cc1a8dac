package forward

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
)

// A leader that is frozen keeps its connections, and never answers.
func TestFrozenLeaderIsReplaced(t *testing.T) {
	tier.Slow(t)
	for _, tc := range []struct {
		name, method, path string
		status             int
		by                 string
	}{
		{"what may be done twice is repeated", "POST", "/twice/sandboxes", http.StatusTeapot, "b"},
		{"what may be done once is not", "POST", "/v1/sandboxes", http.StatusBadGateway, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t)
			var a *replica
			a = c.add(t, "a", func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				a.frozen.Store(true)
				c.lead("b")
				<-r.Context().Done()
			})
			c.add(t, "b", echo)
			third := c.add(t, "c", echo)
			c.lead("a")
			began := time.Now()
			resp, body := do(t, third, tc.method, tc.path, "{}", nil)
			if resp.StatusCode != tc.status || resp.Header.Get("Served-By") != tc.by {
				t.Errorf("%d by %q: %s", resp.StatusCode, resp.Header.Get("Served-By"), body)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// One that only leads no longer finishes what it has begun.
func TestDeposedLeaderFinishes(t *testing.T) {
	c := newCluster(t)
	var a *replica
	a = c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
		c.lead("b")
		late := time.After(time.Minute)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for a.probed.Load() < 2 {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			case <-late:
				t.Error("nobody has asked whether it is there")
				return
			}
		}
		echo(w, r)
	})
	c.add(t, "b", echo)
	third := c.add(t, "c", echo)
	c.lead("a")
	if resp, body := do(t, third, "POST", "/v1/sandboxes", "{}", nil); resp.StatusCode != http.StatusTeapot || resp.Header.Get("Served-By") != "a" {
		t.Errorf("%d by %q: %s", resp.StatusCode, resp.Header.Get("Served-By"), body)
	}
}
