package app

import (
	"context"
	"net"
	"regexp"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// guestTime limits a call to guestapp that does not stream.
var guestTime = timescale.Limit(10 * time.Second)

// dialled returns a client for guestapp in a sandbox, through the sandbox's host. Its
// connections live as long as ctx.
func dialled(ctx context.Context, c *hosts.Client, boxID string) *appapi.Client {
	return appapi.NewClient(func(context.Context) (net.Conn, error) { return c.Dial(ctx, boxID, appapi.Port) })
}

// onGuest calls guestapp in a sandbox. limit is the time limit of the call; 0: only ctx
// limits it.
func (f *Flows) onGuest(ctx context.Context, requestID string, box *record.Sandbox, limit time.Duration, do func(ctx context.Context, g *appapi.Client) error) error {
	return f.onHost(ctx, requestID, box, func(ctx context.Context, c *hosts.Client) error {
		if limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		return do(ctx, dialled(ctx, c, box.ID))
	})
}

// unheard reports whether this leader has not heard the host of a sandbox yet, and may still
// hear it. Until then nobody can know how the guest is, and a time limit that a former
// leader has set says nothing. The host's lease decides how long that may last.
func (f *Flows) unheard(sandboxID string) bool {
	view := f.Store.View()
	box, ok := raftstore.Get(view, record.Sandboxes, sandboxID)
	if !ok || !hostUp(view, box.HostID) {
		return false
	}
	_, heard := f.Hosts.Session(box.HostID)
	return !heard
}

// status asks guestapp for its status.
func (f *Flows) status(ctx context.Context, requestID string, box *record.Sandbox) (st appapi.Status, err error) {
	err = f.onGuest(ctx, requestID, box, guestTime, func(ctx context.Context, g *appapi.Client) error {
		st, err = g.Status(ctx)
		return err
	})
	return st, err
}

// Limits on a guest's texts in rows, in bytes.
const (
	maxMessage = 1 << 10
	maxAuthor  = 200
	maxPlan    = 200
)

var (
	commitID   = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	phaseNames = map[string]bool{
		appapi.PhaseSource: true, appapi.PhaseDetect: true, appapi.PhaseRuntimes: true, appapi.PhaseInstall: true, appapi.PhaseBuild: true,
	}
)

// Phases of a deployment in addition to those of the guest.
const (
	phaseQueue    = "queue"
	phaseSandbox  = "sandbox"
	phaseStart    = "start"
	phaseArtifact = "artifact"
)

// maxPhase is the longest duration of a phase that is believed.
const maxPhase = 24 * time.Hour

// heardOf copies what a guest says about its build into a deployment and reports whether
// anything is new.
func heardOf(d *record.Deployment, b appapi.BuildStatus) (news bool) {
	set := func(to *string, s string) {
		if s != "" && *to != s {
			*to, news = s, true
		}
	}
	if commitID.MatchString(b.GitCommit) && !pushed(d) { // for a push, the git host has named the commit
		set(&d.GitCommit, b.GitCommit)
		set(&d.GitMessage, clean(b.GitMessage, maxMessage))
		set(&d.GitAuthor, cleanLine(b.GitAuthor, maxAuthor))
	}
	set(&d.Framework, cleanLine(b.Plan.Framework, maxPlan))
	set(&d.Runtime, cleanLine(b.Plan.Runtime, maxPlan))
	set(&d.StartCommand, clean(b.Plan.StartCommand, maxCommand))
	for _, p := range b.Phases[:min(len(b.Phases), 4*len(phaseNames))] {
		if phaseNames[p.Name] && addPhase(d, p.Name, time.Duration(min(max(p.DurationMS, 0), maxPhase.Milliseconds()))*time.Millisecond) {
			news = true
		}
	}
	return news
}

// addPhase adds a phase that has ended, unless it is there already. It reports whether it
// has added the phase.
func addPhase(d *record.Deployment, name string, took time.Duration) bool {
	for _, p := range d.Phases {
		if p.Name == name {
			return false
		}
	}
	d.Phases = append(d.Phases, record.DeployPhase{Name: name, DurationMS: max(took, 0).Milliseconds()})
	return true
}
