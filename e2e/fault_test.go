package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// A create whose leader dies at any moment ends in a running sandbox or in
// none: never in one that stays between.
func TestLeaderKilledDuringCreate(t *testing.T) {
	c := newTenant(t)
	underWay := 0
	// The moments are spread over a create's usual time, and over what follows. All
	// but the first are counted from when a host has begun it.
	for i, after := range []time.Duration{5 * time.Millisecond, 0, 40 * time.Millisecond, 120 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		leader := theStack.Leader(t.Context())
		if leader == nil {
			t.Fatal("no leader")
		}
		follower := c.through(t, (indexOf(leader)+1)%len(theStack.Replicas))
		before := boxIDs(t)
		var made *api.Sandbox
		var createErr error
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			made, createErr = follower.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate}, "")
		}()
		if i > 0 {
			err := stack.Await(t.Context(), 30*time.Second, 5*time.Millisecond, "a host has begun the create", func(context.Context) error {
				for id := range boxIDs(t) {
					if !before[id] {
						return nil
					}
				}
				return errors.New("no host has a new box")
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		timer := time.NewTimer(after)
		<-timer.C
		select {
		case <-answered:
		default:
			if i > 0 {
				underWay++
			}
		}
		if err := leader.Kill9(); err != nil {
			t.Fatal(err)
		}
		<-answered
		if createErr != nil {
			// 502 and 503 say that the outcome is unknown, or that it was not done.
			if s := api.StatusOf(createErr); s != http.StatusBadGateway && s != http.StatusServiceUnavailable {
				t.Errorf("killed after %s: create answered %v", after, createErr)
			}
		}
		if err := leader.Start(); err != nil {
			t.Fatal(err)
		}
		healthy(t)
		c.agrees(t, 60*time.Second)
		if createErr == nil {
			c.answers(t, made.ID) // what was acknowledged is there
		}
		for s, err := range c.Sandboxes(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
				t.Errorf("delete: %v", err)
			}
		}
	}
	if underWay == 0 {
		t.Error("each create was answered before its leader was killed")
	}
}

// boxIDs are those of the boxes that the hosts have.
func boxIDs(t *testing.T) map[string]bool {
	t.Helper()
	boxes, err := theStack.Boxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, list := range boxes {
		for _, b := range list {
			ids[b.ID] = true
		}
	}
	return ids
}

// The time from a leader's death to the next write that is accepted.
func TestNextWriteAfterTheLeaderIsKilled(t *testing.T) {
	leader := theStack.Leader(t.Context())
	if leader == nil {
		t.Fatal("no leader")
	}
	restartAtEnd(t, leader)
	jwt, err := theStack.MintJWT("write-after-kill", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	client, err := api.NewClient(nil, jwt, theStack.URLs...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := leader.Kill9(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	err = stack.Await(t.Context(), time.Minute, 10*time.Millisecond, "a write is accepted", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.CreateToken(ctx, api.CreateToken{Name: "after"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the next write was accepted after %s", time.Since(killed)) // make bench holds the median against a goal
}

// Fifty sandboxes come and go while daemons, VMMs and replicas are killed at
// random moments. Afterwards the API, the hosts and the kernel agree.
func TestFiftyCreatesAndDeletesUnderFire(t *testing.T) {
	atLength(t)
	const (
		sandboxes = 50
		workers   = 5
	)
	c := newTenant(t)
	// Between two kills, on average: where a create takes longer, they come as much later,
	// or none would ever end.
	began := time.Now()
	first := c.create(t)
	quiet := max(400*time.Millisecond, time.Since(began))
	if err := c.DeleteSandbox(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, a kill every %s", seed, quiet)
	random := rand.New(rand.NewPCG(seed, 0))

	work, stop := context.WithCancel(t.Context())
	defer stop()
	var killer sync.WaitGroup
	kills := map[string]int{}
	killer.Go(func() {
		var kinds []string // that are next: each comes as often as the others
		for work.Err() == nil {
			if len(kinds) == 0 {
				kinds = append(kinds, killable...)
				random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			}
			pause := time.NewTimer(quiet/2 + time.Duration(random.Int64N(int64(quiet))))
			select {
			case <-work.Done():
				pause.Stop()
				return
			case <-pause.C:
			}
			killed, err := killOne(random, kinds[0])
			if err != nil {
				t.Error(err)
				return
			}
			if killed {
				kills[kinds[0]]++
				kinds = kinds[1:]
			}
		}
	})

	var tally struct {
		sync.Mutex
		created, refused, deleted int
	}
	var g errgroup.Group
	g.SetLimit(workers)
	for i := range sandboxes {
		g.Go(func() error {
			s, err := createUnderFire(work, c, fmt.Sprintf("%d-%d", seed, i))
			tally.Lock()
			if err != nil {
				tally.refused++
			} else {
				tally.created++
			}
			tally.Unlock()
			if err != nil {
				return fmt.Errorf("create %d: %w", i, err)
			}
			// Its VMM or its host's daemon may be dead: the answer does not matter.
			ctx, cancel := context.WithTimeout(work, 10*time.Second)
			_, _ = c.Exec(ctx, s.ID, api.Exec{Cmd: api.Argv("true")})
			cancel()
			err = stack.Await(work, time.Minute, 200*time.Millisecond, "a sandbox is deleted", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
				defer cancel()
				err := c.DeleteSandbox(ctx, s.ID)
				if api.StatusOf(err) == http.StatusNotFound {
					return nil
				}
				return err
			})
			if err != nil {
				return fmt.Errorf("delete %d: %w", i, err)
			}
			tally.Lock()
			tally.deleted++
			tally.Unlock()
			return nil
		})
	}
	err := g.Wait()
	stop()
	killer.Wait()
	for _, p := range append(append([]*stack.Process(nil), theStack.Replicas...), theStack.HostProc...) {
		if !p.Running() {
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
		}
	}
	healthy(t)
	t.Logf("created %d, not created %d, deleted %d; kills %v", tally.created, tally.refused, tally.deleted, kills)
	for _, kind := range killable {
		if kills[kind] == 0 {
			t.Errorf("no %s was killed", kind)
		}
	}
	if err != nil {
		t.Error(err)
	}
	// Creates whose answer was lost may have left sandboxes, which are listed;
	// all the three agree on them, and then on their end.
	c.agrees(t, 90*time.Second)
	for s, err := range c.Sandboxes(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
			t.Errorf("delete what is left: %v", err)
		}
	}
	c.agrees(t, 30*time.Second)
	// A box that failed while its row was being deleted is an orphan, and has a
	// few seconds of grace.
	eventually(t, 30*time.Second, "no host has a box", func(ctx context.Context) error {
		boxes, err := theStack.Boxes(ctx)
		if err != nil {
			return err
		}
		for host, list := range boxes {
			if len(list) != 0 {
				return fmt.Errorf("host %s has %d, the first is %s: %s", host, len(list), list[0].Status, list[0].Error)
			}
		}
		return nil
	})
}

// createUnderFire repeats a create under one idempotency key until it is
// answered, as a careful client does.
func createUnderFire(ctx context.Context, c *tenant, key string) (*api.Sandbox, error) {
	var s *api.Sandbox
	err := stack.Await(ctx, 90*time.Second, 300*time.Millisecond, "a create is answered", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		var err error
		s, err = c.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, key)
		return err
	})
	return s, err
}

// killable is what killOne kills: a host's daemon or a replica, which come back
// after a moment, or a VMM, which nothing brings back.
var killable = []string{"hostd", "replica", "vmm"}

// killOne kills one process of a kind at random, and reports whether there was one.
func killOne(random *rand.Rand, kind string) (killed bool, err error) {
	down := time.Duration(random.Int64N(int64(800 * time.Millisecond)))
	switch kind {
	case "hostd":
		return true, killAndRestart(theStack.HostProc[random.IntN(len(theStack.HostProc))], down)
	case "replica":
		return true, killAndRestart(theStack.Replicas[random.IntN(len(theStack.Replicas))], down)
	}
	vmms, err := theStack.VMMs()
	if err != nil || len(vmms) == 0 {
		return false, err
	}
	err = unix.Kill(vmms[random.IntN(len(vmms))], unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	return true, err
}

func killAndRestart(p *stack.Process, down time.Duration) error {
	if err := p.Kill9(); err != nil {
		return err
	}
	timer := time.NewTimer(down)
	<-timer.C
	return p.Start()
}
