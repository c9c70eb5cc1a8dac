package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// dbStep does one thing to a database, or to what it runs on, and repairs it.
type dbStep struct {
	name string
	do   func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error
}

const stepLoseHost = "lose-host"

// failoverTime bounds a failover, up to its first connection.
var failoverTime = timescale.Limit(10 * time.Minute)

var dbSteps = []dbStep{
	{"sleep-and-connect", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		return d.asleep(ctx, func() error { return nil }) // the next client wakes it
	}},
	{"sleep-and-wake", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		return d.asleep(ctx, func() error {
			return d.settled(ctx, "wake", func(ctx context.Context) error {
				_, err := d.client.WakeDatabase(ctx, d.id)
				return err
			})
		})
	}},
	{"kill-vmm", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		_, box, err := d.box(ctx)
		if err != nil {
			return err
		}
		if box.VMMPID == 0 {
			return errNothing
		}
		return k.killBox(box)
	}},
	{"kill-hostd", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		host, _, err := d.box(ctx)
		if err != nil {
			return err
		}
		return k.kill(ctx, host, r)
	}},
	{"freeze-hostd", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		host, _, err := d.box(ctx)
		if err != nil {
			return err
		}
		return k.freeze(ctx, k.beyondLease(r), host)
	}},
	{"kill-replica", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		return k.kill(ctx, pick(r, k.stack.Replicas), r)
	}},
	{"kill-leader", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		return k.kill(ctx, k.leader(ctx, r), r)
	}},
	{"failover-force", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		known, err := d.archived(ctx)
		if err != nil {
			return err
		}
		return d.failOver(ctx, r, known, true)
	}},
	{"failover-frozen", func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		return d.loseHost(ctx, r, func(host *stack.Process) error {
			say("freeze %s", host.ID)
			return host.Pause()
		}, (*stack.Process).Continue)
	}},
	{stepLoseHost, func(ctx context.Context, k *soak, d *managed, r *rand.Rand) error {
		return d.loseHost(ctx, r, func(host *stack.Process) error {
			say("kill -9 everything of %s", host.ID)
			return k.stack.KillHost(host.ID)
		}, (*stack.Process).Start)
	}},
}

func stepNamed(name string) dbStep {
	return dbSteps[slices.IndexFunc(dbSteps, func(s dbStep) bool { return s.name == name })]
}

// dbStepNames are those that every round has.
func dbStepNames() []string {
	var names []string
	for _, s := range dbSteps {
		if s.name != stepLoseHost {
			names = append(names, s.name)
		}
	}
	return names
}

// asleep keeps clients away until the database sleeps, and then does something.
func (d *managed) asleep(ctx context.Context, then func() error) error {
	d.gate.Lock()
	defer d.gate.Unlock()
	for _, w := range d.writers {
		w.close()
	}
	if _, err := d.becomes(ctx, settleTime, api.DatabaseHibernated); err != nil {
		return err
	}
	return then()
}

// box finds the host that has the database, and its box there.
func (d *managed) box(ctx context.Context) (*stack.Process, hostapi.Box, error) {
	var host *stack.Process
	var box hostapi.Box
	err := stack.Await(ctx, settleTime, time.Second, "a host has database "+d.id, func(ctx context.Context) error {
		id, err := d.sandbox(ctx)
		if err != nil {
			return err
		}
		all, err := d.stack.Boxes(ctx)
		if err != nil {
			return err
		}
		for hostID, list := range all {
			if at := slices.IndexFunc(list, func(b hostapi.Box) bool { return b.ID == id }); at >= 0 {
				host, box = d.stack.Process(hostID), list[at]
				return nil
			}
		}
		return fmt.Errorf("no host has %s", hostapi.ShortID(id))
	})
	return host, box, err
}

// sandbox finds the database's sandbox. Its workspace has no other.
func (d *managed) sandbox(ctx context.Context) (string, error) {
	for s, err := range d.client.Sandboxes(ctx) {
		switch {
		case err != nil:
			return "", err
		case s.Status != api.SandboxDeleting:
			return s.ID, nil
		}
	}
	return "", errors.New("it has no sandbox")
}

// killBox kills a box's VMM.
func (k *soak) killBox(b hostapi.Box) error {
	say("kill -9 the VMM of %s", hostapi.ShortID(b.ID))
	switch err := unix.Kill(b.VMMPID, unix.SIGKILL); {
	case errors.Is(err, unix.ESRCH):
		return errNothing
	case err != nil:
		return fmt.Errorf("kill VMM %d: %w", b.VMMPID, err)
	}
	return nil
}

// archived waits until the newest timeline can be restored, and returns what the API
// then says a failover would lose.
func (d *managed) archived(ctx context.Context) (*loss, error) {
	var known *loss
	err := stack.Await(ctx, settleTime, time.Second, "the archive of database "+d.id+" can be restored", func(ctx context.Context) error {
		timeline, since := d.commits.timeline()
		asked := time.Now()
		var a *api.DatabaseArchive
		err := d.once(ctx, "get", func(ctx context.Context) error {
			var err error
			a, err = d.client.GetDatabaseArchive(ctx, d.id)
			return err
		})
		switch {
		case err != nil:
			return err
		case timeline == 0 || len(a.BaseBackups) == 0 || a.LastRestorable == nil || a.LastArchivedLSN == nil:
			return fmt.Errorf("it has %+v", a)
		case !a.BaseBackups[len(a.BaseBackups)-1].StartedAt.After(d.failoverBegan), !a.LastRestorable.After(since):
			// (A timeline may be backed up before its first commit.)
			return fmt.Errorf("of timeline %d, served since %s, it does not have enough: %+v", timeline, since, a)
		}
		known = &loss{timeline: timeline, after: asked.Add(-time.Duration(a.LagSeconds*float64(time.Second)) - heartbeatTime)}
		known.lsn, err = pgapi.ParseLSN(*a.LastArchivedLSN)
		return err
	})
	return known, err
}

// heartbeatTime is by how much what a host tells of a lag may be old when it is read.
const heartbeatTime = 3 * time.Second

// loseHost breaks the host of a database until the leader has given it up, fails that
// database over, and mends the host: its other databases come back with it.
func (d *managed) loseHost(ctx context.Context, r *rand.Rand, lose, mend func(*stack.Process) error) error {
	known, err := d.archived(ctx)
	if err != nil {
		return err
	}
	host, box, err := d.box(ctx)
	if err != nil {
		return err
	}
	if err := lose(host); err != nil {
		return errors.Join(err, mend(host))
	}
	err = d.failedOver(ctx, r, box, known)
	return errors.Join(err, mend(host))
}

// failedOver waits until the database has failed with its host, and fails it over. Its
// VMM must have ended by then, whatever has become of the daemon.
func (d *managed) failedOver(ctx context.Context, r *rand.Rand, box hostapi.Box, known *loss) error {
	if _, err := d.becomes(ctx, settleTime, api.DatabaseFailed); err != nil {
		return err
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", box.VMMPID))
	if err == nil && strings.Contains(string(cmdline), box.ID) {
		d.history.violate("database %s has failed with its host, and its VMM %d still runs", d.id, box.VMMPID)
	}
	return d.failOver(ctx, r, known, false)
}

// endsAt finds in the answer to a failover up to which write the archive goes.
var endsAt = regexp.MustCompile(`ends at LSN ([0-9A-F]+/[0-9A-F]+)`)

// failOver has the database restored elsewhere. Everything must be there that was
// archived, by what the API said before and by its answer.
func (d *managed) failOver(ctx context.Context, r *rand.Rand, known *loss, force bool) error {
	var answer *api.DatabaseFailover
	err := d.settled(ctx, "failover", func(ctx context.Context) error {
		started, err := d.client.FailoverDatabase(ctx, d.id, api.FailoverDatabase{Force: force})
		if err == nil {
			answer = started
		}
		if api.StatusOf(err) == http.StatusConflict { // an answer was lost
			now, nerr := d.client.GetDatabase(ctx, d.id)
			if nerr == nil && now.Status == api.DatabaseRestoring {
				answer = &api.DatabaseFailover{Error: now.Error}
				return nil
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	d.failoverBegan = time.Now()
	say("database %s: %s", d.id, answer.Error)
	said := endsAt.FindStringSubmatch(answer.Error)
	if said == nil {
		return fmt.Errorf("the answer does not say where the archive ends: %q", answer.Error)
	}
	lsn, err := pgapi.ParseLSN(said[1])
	if err != nil {
		return err
	}
	known.lsn = max(known.lsn, lsn)
	if _, err := d.becomes(ctx, failoverTime, api.DatabaseRunning); err != nil {
		return err
	}
	if err := d.verifyRows(ctx, r, known); err != nil {
		return err
	}
	return d.servesAnew(ctx, known.timeline)
}

// servesAnew waits for the first commit on the timeline that a failover began.
func (d *managed) servesAnew(ctx context.Context, old uint32) error {
	return stack.Await(ctx, settleTime, 250*time.Millisecond, "a commit on a new timeline of database "+d.id, func(context.Context) error {
		if now, _ := d.commits.timeline(); now == old {
			return fmt.Errorf("the newest is %d", now)
		}
		return nil
	})
}
