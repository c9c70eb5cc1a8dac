// Package template builds templates by flows: those of workspaces on request, and
// those of the hosts' operator (shared templates) when they are first needed. One
// host builds, and the others fetch the result from the snapshot store.
package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/plainjson"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// KindBuild is the kind of the flow.
const KindBuild = "template.build"

// Deadline limits a build, including the wait for its turn.
var Deadline = timescale.Limit(6 * time.Hour)

// The steps of a build.
//
//	place ──► build ──► (ready, failed)
//	  ▲         │ refused, host lost: the next host
//	  └─────────┘
const (
	stepPlace  = "place"
	stepBuild  = "build"
	stepExpire = "expire"
)

const (
	pollEvery = 500 * time.Millisecond
	// maxAttempts limits how often a build is started because the host's daemon
	// ended.
	maxAttempts = 3
	// maxUnanswered limits the attempts to call a host that sends heartbeats but
	// does not answer.
	maxUnanswered = 6
	placeAgain    = 2 * time.Second
)

// inventoryTime is how long a host may take to report a template that it has built.
var inventoryTime = timescale.Limit(15 * time.Second)

var maxPlacing = timescale.Limit(10 * time.Minute) // how long a build waits for a host

// watchTime is how long one step watches a build before it commits; pollEvery is the
// interval of its calls.
var watchTime = timescale.Limit(90 * time.Second)

var actTime = timescale.Limit(2 * time.Minute)

// Config configures Templates.
type Config struct {
	Every time.Duration // interval of the loop's passes; default 1 s
	Again time.Duration // delay before a host is asked again for a template that it still lacks; default 1 min
}

// Flows contains the steps of a build.
type Flows struct {
	*core.Core
	cfg  Config
	look chan struct{}
}

func newFlows(c *core.Core, cfg Config) *Flows {
	if cfg.Every == 0 {
		cfg.Every = time.Second
	}
	if cfg.Again == 0 {
		cfg.Again = time.Minute
	}
	return &Flows{Core: c, cfg: cfg, look: make(chan struct{}, 1)}
}

// Kinds returns the kinds of flows, for the engine.
func (s *Templates) Kinds() []flow.Kind {
	f := s.Flows
	return []flow.Kind{{
		Name: KindBuild, Expire: stepExpire, ActTimeout: actTime, Host: hostOf,
		Steps: map[string]flow.Step{stepPlace: f.place, stepBuild: f.build, stepExpire: f.expire},
	}}
}

// hostOf returns the host that a flow calls.
func hostOf(r raftstore.Reader, fl *record.Flow) string {
	var d data
	if err := flow.Decode(fl, &d); err != nil {
		return "" // the step reports the error
	}
	b, ok := raftstore.Get(r, record.Builds, d.BuildID)
	if !ok || fl.Step == stepPlace {
		return ""
	}
	return b.HostID
}

// Subject returns a template's name as a subject of flows, so that it has one build
// at a time.
func Subject(id string) string { return flow.Subject(record.Templates.Name, id) }

// Key returns the name under which hosts keep a workspace's template.
func Key(workspaceID, name string) string {
	sum := sha256.Sum256([]byte(workspaceID))
	return "t-" + hex.EncodeToString(sum[:5]) + "." + name
}

var key = regexp.MustCompile(`^t-[0-9a-f]{10}\.`)

// IsKey reports whether a name has the form of a key. Shared templates have no such
// names, and requests must not contain them.
func IsKey(name string) bool { return key.MatchString(name) }

// Postgres is the name of the template of the smallest databases. The names of the
// others are this, '-' and their size.
const Postgres = "postgres-16"

// App is the name of the template in whose guests apps are built and run.
const App = "app"

// reserved reports whether a template is the platform's own. Tenants do not see it,
// and cannot create sandboxes or templates from it, or a template of that name.
func reserved(name string) bool {
	return name == App || name == Postgres || strings.HasPrefix(name, Postgres+"-")
}

// data is the data of a build's flow.
type data struct {
	BuildID   string    `json:"build_id"`
	RequestID string    `json:"request_id,omitempty"`
	Since     time.Time `json:"since"`           // when the search for a host began
	Tried     []string  `json:"tried,omitempty"` // hosts that failed or refused
	Last      string    `json:"last,omitempty"`  // why the last one did
	Attempts  int       `json:"attempts,omitempty"`
	Abandoned []string  `json:"abandoned,omitempty"` // hosts where the build may still run
}

// Begin adds a build, its template's row if it is new, and the flow to a
// transaction. It fails with raftstore.ErrConflict while another build of the
// template runs.
func Begin(tx *raftstore.Tx, flowID string, t *record.Template, b *record.Build, requestID string) error {
	raftstore.Put(tx, record.Templates, t)
	raftstore.Put(tx, record.Builds, b)
	return flow.Begin(tx, flow.New{
		ID: flowID, Kind: KindBuild, Subject: Subject(t.ID), Step: stepPlace, Deadline: tx.Now().Add(Deadline),
		Data: data{BuildID: b.ID, RequestID: requestID, Since: tx.Now()},
	})
}

// Seal seals a specification for its build's row.
func (f *Flows) Seal(buildID string, spec hostapi.BuildSpec) ([]byte, error) {
	raw, err := plainjson.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode build: %w", err)
	}
	sealed, err := f.Sealer.Seal(raw, record.BuildContext(buildID))
	if err != nil {
		return nil, fmt.Errorf("seal build: %w", err)
	}
	return sealed, nil
}

func (f *Flows) open(b *record.Build) (hostapi.BuildSpec, error) {
	var spec hostapi.BuildSpec
	if b.WorkspaceID == "" {
		return hostapi.BuildSpec{Template: b.Key, From: b.From, Source: b.Recipe}, nil
	}
	raw, err := f.Sealer.Open(b.SpecSealed, record.BuildContext(b.ID))
	if err != nil {
		return spec, fmt.Errorf("open build: %w", err)
	}
	if err := json.Unmarshal(raw, &spec); err != nil {
		return spec, fmt.Errorf("decode build: %w", err)
	}
	spec.WorkspaceID = b.WorkspaceID // older versions sealed it without
	return spec, nil
}

// goingOn returns a flow's build, and whether it has not ended.
func goingOn(r raftstore.Reader, d data) (*record.Build, bool) {
	b, ok := raftstore.Get(r, record.Builds, d.BuildID)
	return b, ok && b.FinishedAt.IsZero()
}

// change returns a commit that edits a running build and continues with next.
func change(d data, next flow.Next, edit func(b *record.Build)) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		b, ok := goingOn(tx, d)
		if !ok {
			return flow.Done(), nil
		}
		c := b.Clone()
		edit(c)
		raftstore.Put(tx, record.Builds, c)
		return next, nil
	}
}

// place is the step that chooses a host that has the build's base.
func (f *Flows) place(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var d data
	if err := run.Data(&d); err != nil {
		return nil, err
	}
	b, ok := goingOn(run.View, d)
	if !ok {
		return resource.Finish, nil
	}
	spec, err := f.open(b)
	if err != nil {
		return nil, err
	}
	parent, state := f.parent(run.View, b, spec)
	switch state {
	case parentFailed:
		return f.giveUp(ctx, d, parent+", which it is made from, could not be built"), nil
	case parentBuilds:
		d.Since = f.Clock()
		return change(d, flow.Sleep(stepPlace, placeAgain, d), func(*record.Build) {}), nil
	}
	hostID := f.choose(run.View, b, spec, d.Tried)
	if hostID != "" {
		// If the build still runs there, it is joined.
		d.Abandoned = slices.DeleteFunc(slices.Clone(d.Abandoned), func(id string) bool { return id == hostID })
		return change(d, flow.Goto(stepBuild, d), func(b *record.Build) { b.HostID = hostID }), nil
	}
	if f.Clock().Sub(d.Since) < maxPlacing || f.Hosts.Warming(run.View) {
		// Hosts may be full or restarting, or may not have been heard yet, for which the
		// time in which nobody led does not count.
		d.Tried = nil
		return change(d, flow.Sleep(stepPlace, placeAgain, d), func(b *record.Build) { b.HostID = "" }), nil
	}
	why := "no available compute node"
	if d.Last != "" {
		why += ": " + d.Last
	}
	return f.giveUp(ctx, d, why), nil
}

// choose returns the host with the most free memory among those that can build.
func (f *Flows) choose(view raftstore.Reader, b *record.Build, spec hostapi.BuildSpec, tried []string) string {
	best, most := "", -1
	sessions := f.Hosts.Sessions()
	for id, s := range sessions {
		agent, ok := raftstore.Get(view, record.Hosts, id)
		hb := s.Heartbeat
		if !ok || agent.Draining || !hb.Ready || hb.Draining || slices.Contains(tried, id) || !can(view, hb, b, spec) {
			continue
		}
		free := hb.Capacity.MemoryMB - hb.Capacity.ReservedMB - s.ReservedMB
		if free > most || free == most && id < best {
			best, most = id, free
		}
	}
	return best
}

// build is the step that starts the build on its host and watches it until it ends.
func (f *Flows) build(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var d data
	if err := run.Data(&d); err != nil {
		return nil, err
	}
	row, ok := goingOn(run.View, d)
	if !ok {
		return resource.Finish, nil
	}
	spec, err := f.open(row)
	if err != nil {
		return nil, err
	}
	var got hostapi.Build
	err = f.Hosts.Call(hosts.WithRequestID(ctx, d.RequestID), row.HostID, func(ctx context.Context, c *hosts.Client) error {
		var err error
		if got, err = c.PutBuild(ctx, row.ID, spec); err != nil {
			return err
		}
		got, err = watch(ctx, c, row, got)
		return err
	})
	switch {
	case err == nil:
	case hosts.Superseded(ctx, err):
		return nil, err
	case hosts.Unreachable(err):
		// A host that returns within its lease continues the build.
		agent, known := raftstore.Get(run.View, record.Hosts, row.HostID)
		if known && agent.State == record.HostUp && run.Flow.Attempt < maxUnanswered {
			return nil, err
		}
		return f.elsewhere(ctx, row, d, "its host does not answer"), nil
	case hostapi.HasCode(err, hostapi.CodeInvalid):
		return f.giveUp(ctx, d, err.Error()), nil
	default:
		f.Logger.WarnContext(ctx, "host does not build the template", "build_id", row.ID, "agent_id", row.HostID, "error", err)
		return f.elsewhere(ctx, row, d, err.Error()), nil
	}
	made := record.Product{Digest: got.BuildID, CreatedAt: f.Clock()}
	if got.Status == hostapi.BuildSucceeded {
		made.Engine = f.awaitInventory(ctx, row.HostID, spec.Template, got.BuildID)
	}
	f.end(ctx, &d)
	return f.conclude(ctx, row, d, spec, got, made)
}

// awaitInventory waits until a host's heartbeat reports the template that it has
// built, so that a create right after the build finds it. It returns the host's
// engine.
func (f *Flows) awaitInventory(ctx context.Context, hostID, name, buildID string) string {
	ctx, cancel := context.WithTimeout(ctx, inventoryTime)
	defer cancel()
	for {
		changed := f.Hosts.Changed()
		session, _ := f.Hosts.Session(hostID)
		hb := session.Heartbeat
		if slices.ContainsFunc(hb.Templates, func(t hostapi.TemplateState) bool {
			return t.Name == name && t.BuildID == buildID && t.Status == stateReady
		}) {
			return hb.Versions.Engine
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return hb.Versions.Engine
		}
	}
}

// watch polls a build until it ends, its row must change, or watchTime has passed.
func watch(ctx context.Context, c *hosts.Client, row *record.Build, b hostapi.Build) (hostapi.Build, error) {
	end := time.NewTimer(watchTime)
	defer end.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for b.FinishedAt.IsZero() && record.TemplateStatus(b.Status) == row.Status {
		select {
		case <-end.C:
			return b, nil
		case <-ctx.Done():
			return b, ctx.Err()
		case <-tick.C:
		}
		var err error
		if b, err = c.Build(ctx, row.ID); err != nil {
			return b, err
		}
	}
	return b, nil
}

// conclude returns the commit that follows from the build's state on its host.
func (f *Flows) conclude(ctx context.Context, row *record.Build, d data, spec hostapi.BuildSpec, got hostapi.Build, made record.Product) (flow.Commit, error) {
	switch {
	case got.Status == hostapi.BuildSucceeded:
		// Keep the digest that was built from, not a tag, which may change.
		if spec.FromOCI && got.From != "" {
			spec.From = got.From
		}
		return f.ready(row, d, spec, got, made)
	case got.Status == hostapi.BuildFailed && got.Interrupted:
		if d.Attempts++; d.Attempts >= maxAttempts {
			return fail(d, got.Error), nil
		}
		return change(d, flow.Goto(stepBuild, d), func(b *record.Build) { b.Status = record.TemplateQueued }), nil
	case got.Status == hostapi.BuildFailed && got.Refused:
		return f.elsewhere(ctx, row, d, got.Error), nil
	case got.Status == hostapi.BuildFailed:
		return fail(d, got.Error), nil
	}
	return change(d, flow.Goto(stepBuild, d), func(b *record.Build) { b.Status = record.TemplateStatus(got.Status) }), nil
}

// elsewhere returns to place, excluding the host.
func (f *Flows) elsewhere(ctx context.Context, row *record.Build, d data, why string) flow.Commit {
	d.Tried, d.Last = append(slices.Clone(d.Tried), row.HostID), why
	d.Abandoned = append(slices.Clone(d.Abandoned), row.HostID)
	f.end(ctx, &d)
	return change(d, flow.Goto(stepPlace, d), func(b *record.Build) { b.HostID, b.Status = "", record.TemplateQueued })
}

// end ends the build on the hosts where it was given up. Hosts that could not be
// told stay in d.Abandoned for the next attempt.
func (f *Flows) end(ctx context.Context, d *data) {
	ctx, cancel := context.WithTimeout(hosts.WithRequestID(ctx, d.RequestID), followTime)
	defer cancel()
	failed := make([]bool, len(d.Abandoned))
	var calls errgroup.Group
	for i, hostID := range d.Abandoned {
		calls.Go(func() error {
			err := f.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteBuild(ctx, d.BuildID) })
			if failed[i] = err != nil; err != nil {
				f.Logger.InfoContext(ctx, "build may go on where it was given up", "build_id", d.BuildID, "agent_id", hostID, "error", err)
			}
			return nil
		})
	}
	_ = calls.Wait() // what fails is logged
	var left []string
	for i, hostID := range d.Abandoned {
		if failed[i] {
			left = append(left, hostID)
		}
	}
	d.Abandoned = left
}

// ready commits a build as its template's current one.
func (f *Flows) ready(row *record.Build, d data, spec hostapi.BuildSpec, got hostapi.Build, made record.Product) (flow.Commit, error) {
	sealed := row.SpecSealed
	if spec.FromOCI {
		var err error
		if sealed, err = f.Seal(row.ID, spec); err != nil {
			return nil, err
		}
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		b, ok := goingOn(tx, d)
		t, known := ownTemplate(tx, row.WorkspaceID, row.Template)
		if !ok || !known {
			return flow.Done(), nil
		}
		b, t = b.Clone(), t.Clone()
		b.Status, b.FinishedAt, b.SpecSealed, b.Error = record.TemplateReady, tx.Now(), sealed, ""
		b.Products = append(b.Products, made)
		t.Status, t.BuildID, t.Error = record.TemplateReady, b.ID, ""
		t.CPU, t.MemoryMB, t.DiskMB, t.SizeBytes = got.CPU, got.MemoryMB, got.DiskMB, got.SizeBytes
		raftstore.Put(tx, record.Builds, b)
		raftstore.Put(tx, record.Templates, t)
		return flow.Done(), nil
	}, nil
}

// giveUp ends a build, also on the hosts where it was given up before.
func (f *Flows) giveUp(ctx context.Context, d data, why string) flow.Commit {
	f.end(ctx, &d)
	return fail(d, why)
}

// BuildWait is how long what needs a template waits for it to be built.
var BuildWait = timescale.Limit(30 * time.Minute)

// Unbuildable is the error for a template whose build has failed.
func Unbuildable(name, why string) *apierror.Error {
	return &apierror.Error{Code: apierror.EUnprocessable, Message: "template could not be built", Detail: name + ": " + why}
}

// fail ends a build with an error. Its template keeps its earlier build, if it has
// one.
func fail(d data, why string) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		b, ok := goingOn(tx, d)
		if !ok {
			return flow.Done(), nil
		}
		b = b.Clone()
		b.Status, b.Error, b.FinishedAt, b.SpecSealed = record.TemplateFailed, why, tx.Now(), nil
		raftstore.Put(tx, record.Builds, b)
		if t, known := ownTemplate(tx, b.WorkspaceID, b.Template); known && t.BuildID == "" {
			t = t.Clone()
			t.Status, t.Error = record.TemplateFailed, why
			raftstore.Put(tx, record.Templates, t)
		}
		return flow.Fail(Unbuildable(b.Template, why)), nil
	}
}

// expire is the step that ends a build past its deadline.
func (f *Flows) expire(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var d data
	if err := run.Data(&d); err != nil {
		return nil, err
	}
	if row, ok := goingOn(run.View, d); ok && row.HostID != "" {
		d.Abandoned = append(d.Abandoned, row.HostID)
	}
	return f.giveUp(ctx, d, fmt.Sprintf("not done within %s", Deadline)), nil
}
