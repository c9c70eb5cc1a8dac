package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// The host's daemon is killed in the middle of each operation: at some moment of
// it, or right after one of the entries that it makes in the host's ledger, which
// are its steps. Whatever was answered, the API then tells the truth: each
// sandbox that it lists does what its status says, and nothing is left that it
// does not list.
//
// A run takes some moment of each operation, and one of its entries: the operations
// in turn a later one, from a beginning by chance. With BERTH_TEST_EVERY_STEP=1 it
// takes every entry of each.
func TestDaemonKilledInTheMiddleOf(t *testing.T) {
	host := theStack.HostProc[0]
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	turn := random.IntN(1000)
	onlyOn(t, host.ID)
	for _, tc := range []struct {
		name  string
		most  time.Duration // in which the kill comes, at some moment
		makes int           // entries
		begin func(t *testing.T, c *tenant, s *api.Sandbox)
		do    func(ctx context.Context, c *tenant, s *api.Sandbox) error
	}{
		{"create", 400 * time.Millisecond, 2, nil, func(ctx context.Context, c *tenant, _ *api.Sandbox) error {
			_, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "")
			return err
		}},
		{"pause", 20 * time.Millisecond, 1, nil, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.PauseSandbox(ctx, s.ID)
			return err
		}},
		{"resume", 20 * time.Millisecond, 1, func(t *testing.T, c *tenant, s *api.Sandbox) {
			moved(t, api.SandboxPaused)(c.PauseSandbox(t.Context(), s.ID))
		}, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.ResumeSandbox(ctx, s.ID)
			return err
		}},
		{"hibernate", 300 * time.Millisecond, 1, nil, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.HibernateSandbox(ctx, s.ID)
			return err
		}},
		{"wake", 300 * time.Millisecond, 2, func(t *testing.T, c *tenant, s *api.Sandbox) {
			moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
		}, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.WakeSandbox(ctx, s.ID)
			return err
		}},
		{"snapshot", 600 * time.Millisecond, 0, nil, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.CreateSnapshot(ctx, s.ID, api.CreateSnapshot{}, "")
			return err
		}},
		{"fork-tree", 900 * time.Millisecond, 6, nil, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.ForkTree(ctx, s.ID, api.ForkTree{Count: new(3)}, "")
			return err
		}},
		{"cold fork", 2 * time.Second, 2, nil, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.Fork(ctx, s.ID, api.Fork{}, "")
			return err
		}},
		{"warm fork", 600 * time.Millisecond, 2, nil, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			_, err := c.Fork(ctx, s.ID, api.Fork{Mode: new(api.ForkWarm)}, "")
			return err
		}},
		{"volume create", 40 * time.Millisecond, 0, nil, func(ctx context.Context, c *tenant, _ *api.Sandbox) error {
			_, err := c.CreateVolume(ctx, api.CreateVolume{Name: "made"}, "")
			return err
		}},
		{"create with a volume", 400 * time.Millisecond, 2, func(t *testing.T, c *tenant, _ *api.Sandbox) {
			if _, err := c.CreateVolume(t.Context(), api.CreateVolume{Name: "there", SizeMB: new(64)}, ""); err != nil {
				t.Fatal(err) // clear deletes it, once nothing has it
			}
		}, func(ctx context.Context, c *tenant, _ *api.Sandbox) error {
			_, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate, Volumes: at("there", "/mnt/v")}, "")
			return err
		}},
		{"delete", 100 * time.Millisecond, 2, func(t *testing.T, c *tenant, _ *api.Sandbox) {
			c.create(t)
		}, func(ctx context.Context, c *tenant, s *api.Sandbox) error {
			for other, err := range c.Sandboxes(ctx) {
				if err != nil {
					return err
				}
				if other.ID != s.ID {
					return c.DeleteSandbox(ctx, other.ID)
				}
			}
			return errors.New("there is no other sandbox")
		}},
	} {
		once := func(t *testing.T, entry int) (reached bool) {
			c := newTenant(t)
			restartAtEnd(t, host)
			s := c.create(t)
			t.Cleanup(func() { c.clear(t) })
			c.exec(t, s.ID, "echo kept > /root/kept; sync")
			if tc.begin != nil {
				tc.begin(t, c, s)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			ledger := watchLedger(t, host.ID)
			answered, over := make(chan error, 1), make(chan struct{})
			began := time.Now()
			go func() {
				answered <- tc.do(ctx, c, s)
				close(over)
			}()
			if entry == 0 {
				moment := time.NewTimer(time.Duration(random.Int64N(int64(tc.most))))
				<-moment.C
			} else if reached = ledger.entries(entry, over); !reached && entry <= tc.makes {
				t.Errorf("it was over before entry %d of %d", entry, tc.makes)
			}
			after := time.Since(began)
			if err := errors.Join(host.Kill9(), host.Start()); err != nil {
				t.Fatal(err)
			}
			err := <-answered
			t.Logf("killed after %s, at entry %d, reached: %t; answered with %v", after.Round(time.Millisecond), entry, reached, err)
			if status := api.StatusOf(err); status >= 400 && status < 500 {
				t.Errorf("the fault is the host's, and the answer blames the caller: %v", err)
			}
			healthy(t)
			c.truthful(t)
			if got := c.run(t, s.ID, "cat /root/kept"); got != "kept" {
				t.Errorf("it reads %q", got)
			}
			// An orphan has a few seconds of grace.
			c.agrees(t, 40*time.Second)
			return reached
		}
		if os.Getenv("BERTH_TEST_EVERY_STEP") == "" {
			t.Run(tc.name+"/some moment", func(t *testing.T) { once(t, 0) })
			if tc.makes > 0 {
				entry := 1 + turn%tc.makes
				t.Run(fmt.Sprintf("%s/entry %d", tc.name, entry), func(t *testing.T) { once(t, entry) })
				turn++
			}
			continue
		}
		for entry, more := 1, true; more && !t.Failed(); entry++ {
			t.Run(fmt.Sprintf("%s/entry %d", tc.name, entry), func(t *testing.T) {
				if more = once(t, entry); more && entry > tc.makes {
					t.Errorf("it made more than %d entries", tc.makes)
				}
			})
		}
	}
}

// ledgerOf watches the file of a host's ledger grow: each of its changes is
// appended, as a line, before it is acted upon.
type ledgerOf struct {
	t    *testing.T
	path string
	size int64
}

func watchLedger(t *testing.T, host string) *ledgerOf {
	t.Helper()
	l := &ledgerOf{t: t, path: filepath.Join(theStack.DataDir(host), "ledger")}
	l.grown()
	return l
}

// grown is how many entries there are that were not there when it was last asked.
func (l *ledgerOf) grown() int {
	l.t.Helper()
	st, err := os.Stat(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	if st.Size() == l.size {
		return 0
	}
	f, err := os.Open(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	added, err := io.ReadAll(io.NewSectionReader(f, l.size, st.Size()-l.size))
	if err != nil {
		l.t.Fatal(err)
	}
	l.size = st.Size()
	return bytes.Count(added, []byte{'\n'})
}

// entries waits until so many were made, or the operation is over.
func (l *ledgerOf) entries(n int, over <-chan struct{}) bool {
	l.t.Helper()
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		ended := false
		select {
		case <-over:
			ended = true
		case <-tick.C:
		}
		if n -= l.grown(); n <= 0 || ended {
			return n <= 0
		}
	}
}

// truthful brings each sandbox that the API lists to run a command, by the moves
// that its status allows.
func (c *tenant) truthful(t *testing.T) {
	t.Helper()
	eventually(t, 60*time.Second, "no sandbox is between two states", func(ctx context.Context) error {
		for s, err := range c.Sandboxes(ctx) {
			if err != nil {
				return err
			}
			if s.Status == api.SandboxStarting || s.Status == api.SandboxDeleting {
				return fmt.Errorf("one is %s", s.Status)
			}
		}
		return nil
	})
	for s, err := range c.Sandboxes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if s.Status == api.SandboxFailed {
			if s.Error == nil || *s.Error == "" {
				t.Errorf("a sandbox has failed and does not say why")
			}
			continue
		}
		// The status follows the host by its heartbeats: a pause whose answer was
		// lost may show only after the list was read.
		eventually(t, 60*time.Second, "a sandbox runs a command, if need be after a resume", func(ctx context.Context) error {
			now, err := c.GetSandbox(ctx, s.ID)
			if err != nil {
				return err
			}
			if now.Status == api.SandboxPaused {
				if _, err := c.ResumeSandbox(ctx, s.ID); err != nil {
					return err
				}
			}
			got, err := c.Exec(ctx, s.ID, api.Exec{Cmd: api.Argv("true")}) // which wakes one that hibernates
			if err == nil && got.ExitCode != 0 {
				err = errors.New("true ended with an error")
			}
			return err
		})
	}
}

// clear deletes all that a tenant has.
func (c *tenant) clear(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	eventually(t, time.Minute, "everything is deleted", func(context.Context) error {
		left := 0
		for s, err := range c.Sandboxes(ctx) {
			if err != nil {
				return err
			}
			left++
			if err := c.DeleteSandbox(ctx, s.ID); err != nil && api.StatusOf(err) != 404 {
				return err
			}
		}
		for s, err := range c.Snapshots(ctx, "") {
			if err != nil {
				return err
			}
			left++
			if err := c.DeleteSnapshot(ctx, s.ID); err != nil && api.StatusOf(err) != 404 {
				return err
			}
		}
		for v, err := range c.Volumes(ctx) {
			if err != nil {
				return err
			}
			left++
			if err := c.DeleteVolume(ctx, v.Name); err != nil && api.StatusOf(err) != 404 {
				return err
			}
		}
		if left > 0 {
			return errors.New(strconv.Itoa(left) + " were there a moment ago")
		}
		return nil
	})
}
