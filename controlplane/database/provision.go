package database

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The steps that give a database a sandbox, its data and its credentials. A failover has
// further steps before these, and a clone of a running database has one (switch). If the
// host is lost meanwhile, provisioning starts again on another one.
//
//	template ──► sandbox ──► tell ──► ready ──► login ──► (ready)
//	    ▲                     └────────┴─────────┤ its host is lost
//	    └──── fenced ◄──── fence ◄───────────────┘
//
// A clone that starts with a copy of its source's disk has the step copy in place of the
// first two; see stepCopy.
//
// Any other failure, and the deadline (expire), ends with a failed row that says why, and
// without a sandbox.
const (
	stepTemplate = "template" // have its template built
	stepSandbox  = "sandbox"  // create a sandbox from it, as a child flow
	stepTell     = "tell"     // tell the host to make it a database
	stepReady    = "ready"    // wait until PostgreSQL serves the restored data
	stepLogin    = "login"    // set the credentials and verify them by a login
	stepExpire   = "expire"
)

// provision is the data of a create, a clone and a failover.
type provision struct {
	RequestID string `json:"request_id,omitempty"`
	ChildID   string `json:"child_id,omitempty"` // the flow that creates the sandbox
	Asked     bool   `json:"asked,omitempty"`    // the build of the template was requested

	// Source is where the data comes from; nil for an empty database.
	Source *source `json:"source,omitempty"`
	// Credentials are the ones to set; nil for those in force.
	Credentials *record.DatabaseCredentials `json:"credentials,omitempty"`

	Switch bool `json:"switch,omitempty"` // the source runs, and can archive its latest WAL first
	Lost   bool `json:"lost,omitempty"`   // a host was lost during provisioning

	Hint string `json:"hint,omitempty"` // which writes are not in the archive: a failover loses them, a clone lacks them

	Before string `json:"before,omitempty"` // the host that it was on; any other host with room is preferred

	// Copy is set while a clone is on its fast path.
	Copy *diskCopy `json:"copy,omitempty"`
}

// source is an archive and a moment in it.
type source struct {
	DatabaseID string     `json:"database_id"`
	Archive    string     `json:"archive"`
	TargetTime *time.Time `json:"target_time,omitempty"` // nil for the archive's end
}

// making finds the database that a flow is provisioning or restoring. It returns false
// once the database has another status.
func making(r raftstore.Reader, fl *record.Flow) (*record.Database, bool) {
	d, ok := of(r, fl)
	return d, ok && (d.Status == record.DatabaseProvisioning || d.Status == record.DatabaseRestoring)
}

// step loads the flow's data and database at the start of a step. It returns false if
// there is nothing left to provision.
func step(run flow.Run, data *provision) (*record.Database, bool, error) {
	if err := run.Data(data); err != nil {
		return nil, false, err
	}
	d, ok := making(run.View, run.Flow)
	return d, ok, nil
}

// going returns the commit of a step that changes no record.
func going(next flow.Next) flow.Commit {
	return func(*raftstore.Tx) (flow.Next, error) { return next, nil }
}

// awaitTemplate waits until the template is built, and requests the build.
func (f *Flows) awaitTemplate(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	name := templateOf(d.Size)
	t, known := template.Operators(run.View, name)
	switch {
	case known && t.BuildID != "":
		return going(flow.Goto(stepSandbox, data)), nil
	case !known && !f.templates.Flows.Known(name) && !f.Hosts.Warming(run.View):
		return f.fail(run, core.NoNode(&placement.Error{Reason: placement.UnknownTemplate})), nil
	case known && data.Asked && t.Status == record.TemplateFailed:
		return f.fail(run, template.Unbuildable(name, t.Error)), nil
	}
	progress := data.progress("its template, " + name + ", is being built")
	data.Asked = data.Asked || known
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if known {
			if _, err := f.templates.Flows.Ask(tx, name, data.RequestID); errors.Is(err, template.ErrNoSource) {
				return f.fail(run, core.NoNode(&placement.Error{Reason: placement.UnknownTemplate}))(tx)
			} else if err != nil && !errors.Is(err, template.ErrUnknown) {
				return flow.Next{}, err
			}
		}
		return saying(run, data, progress, flow.Wait(stepTemplate, time.Second, data, record.Templates.Name))(tx)
	}, nil
}

// makeSandbox gives the database a sandbox, and an archive for what it will write.
func (f *Flows) makeSandbox(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	t, known := template.Operators(run.View, templateOf(d.Size))
	if !known || t.BuildID == "" {
		return going(flow.Goto(stepTemplate, data)), nil
	}
	req := placementOf(run.View, d.Size)
	switch err := f.Hosts.Choosable(run.View, req); {
	case reasonFor(err) == placement.TemplateUnready:
		return saying(run, data, "hosts are yet to get its template", flow.Sleep(stepSandbox, time.Second, data)), nil
	case err != nil && data.Lost && d.Status == record.DatabaseProvisioning: // the lost host may come back
		return saying(run, data, "its host was lost, and no other has room for it", flow.Sleep(stepSandbox, time.Second, data)), nil
	}
	return f.beginSandbox(run, d, data, &record.Sandbox{Template: t.Name, BuildID: t.BuildID}, nil)
}

// beginSandbox begins to create a database's sandbox, either from the build that box
// names or with a copy of another sandbox's disk. The database gets a new archive along
// with it.
func (f *Flows) beginSandbox(run flow.Run, d *record.Database, data provision, box *record.Sandbox, disk *sandbox.Copy) (flow.Commit, error) {
	archive, err := f.newArchive(d)
	if err != nil {
		return nil, err
	}
	box.ID, box.WorkspaceID, box.Status = core.RandomText(hostapi.IDLength), d.WorkspaceID, record.SandboxStarting
	box.Owner = &record.Owner{Type: sandbox.OwnerDatabase, ID: d.ID}
	box.Exclusive, box.Persistent, box.Preview = true, true, record.PreviewToken
	data.ChildID = flow.NewID()
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		d = d.Clone()
		closeArchive(tx, d)
		archive.CreatedAt = tx.Now()
		d.Archives = append(d.Archives, archive)
		d.SandboxID = box.ID
		d.Error = data.text(d, data.progress("its virtual machine is being started"))
		raftstore.Put(tx, record.Databases, d)
		create := sandbox.Create{Data: resource.Data{RequestID: data.RequestID}, Copy: disk}
		if data.Before != "" && f.roomBeside(data.Before, tx, d.Size) {
			create.Tried = []string{data.Before}
		}
		if err := f.sandboxes.Flows.BeginFor(tx, run.Flow.ID, data.ChildID, box.Clone(), create); err != nil {
			return flow.Next{}, err
		}
		return flow.Join(stepTell, data), nil
	}, nil
}

// reasonFor returns the reason of a placement error, -1 for any other error.
func reasonFor(err error) placement.Reason {
	var none *placement.Error
	if errors.As(err, &none) {
		return none.Reason
	}
	return -1
}

// tell makes the host turn the sandbox into a database.
func (f *Flows) tell(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, err := f.box(run, d, data)
	if err != nil {
		return f.boxless(run, d, data, err), nil
	}
	spec, err := f.spec(run.View, d, data)
	var own *apierror.Error
	switch {
	case errors.As(err, &own):
		return f.fail(run, err), nil
	case err != nil:
		return nil, err
	}
	err = f.call(ctx, data.RequestID, box, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.PutDatabase(ctx, box.ID, spec)
		return err
	})
	switch {
	case err == nil:
		return going(flow.Goto(stepReady, data)), nil
	case hosts.Superseded(ctx, err), f.Hosts.Passing(run.View, box.HostID, run.Flow.Attempt, err):
		return nil, err
	case hosts.Unreachable(err): // if it stays silent, its lease decides
		return saying(run, data, data.progressOf(d, hostapi.DatabaseState{Error: reasonOf(err)}), flow.Sleep(stepTell, time.Second, data)), nil
	}
	return f.failWith(ctx, run, err), nil
}

// box finds the sandbox that a flow has created. It fails if the sandbox is gone or has
// failed.
func (f *Flows) box(run flow.Run, d *record.Database, data provision) (*record.Sandbox, error) {
	box, ok := raftstore.Get(run.View, record.Sandboxes, d.SandboxID)
	switch {
	case !ok:
		if err := flow.Ended(run.View, data.ChildID, nil); err != nil && !errors.Is(err, flow.ErrOutcomeUnknown) && !errors.Is(err, flow.ErrPreempted) {
			return nil, err
		}
		return nil, &apierror.Error{Code: apierror.EConflict, Message: errBoxGone}
	case box.Status == record.SandboxFailed:
		return nil, &apierror.Error{Code: apierror.EConflict, Message: boxFault(box.Error)}
	}
	return box, nil
}

// boxless continues without the sandbox. If its host is lost, another host is used. If
// the sandbox is gone because every other host refused it, the database's previous host
// becomes eligible again. A disk copy is given up instead.
func (f *Flows) boxless(run flow.Run, d *record.Database, data provision, why error) flow.Commit {
	box, ok := raftstore.Get(run.View, record.Sandboxes, d.SandboxID)
	if !ok && data.Before != "" {
		data.Before, data.ChildID = "", ""
		return going(flow.Goto(stepTemplate, data))
	}
	if !ok || data.Copy != nil || hostUp(run.View, box.HostID) {
		return f.fail(run, why)
	}
	f.Logger.Warn("host was lost while a database was made on it", "database_id", d.ID, "agent_id", box.HostID, "kind", run.Flow.Kind)
	data.Lost, data.ChildID = true, ""
	return saying(run, data, "its host was lost, another one is waited for", flow.Goto(stepFence, data))
}

// call calls the host of a database's sandbox.
func (f *Flows) call(ctx context.Context, requestID string, box *record.Sandbox, do func(ctx context.Context, c *hosts.Client) error) error {
	return f.Hosts.Call(hosts.WithRequestID(ctx, requestID), box.HostID, do)
}

// spec returns the specification of a database for its host.
func (f *Flows) spec(r raftstore.Reader, d *record.Database, data provision) (hostapi.DatabaseSpec, error) {
	spec := hostapi.DatabaseSpec{
		ArchiveIntervalSeconds: seconds(f.cfg.ArchiveInterval), FirstBackupSeconds: int(*f.cfg.FirstBackup / time.Second),
		BackupIntervalSeconds: seconds(f.cfg.BackupInterval),
	}
	var err error
	if spec.Archive, err = f.archive(d.Archive()); err != nil {
		return spec, err
	}
	if data.Source == nil {
		return spec, nil
	}
	if d.Status == record.DatabaseRestoring {
		// Until there is a base backup, another loss would take everything written since.
		spec.FirstBackupSeconds = 0
	}
	from, ok := raftstore.Get(r, record.Databases, data.Source.DatabaseID)
	if !ok {
		return spec, &apierror.Error{Code: apierror.EConflict, Message: "the database that it is a clone of has been deleted"}
	}
	if data.Copy != nil {
		spec.Restore = &hostapi.DatabaseRestore{WithDisk: true}
		return spec, nil
	}
	for i := range from.Archives {
		if a := &from.Archives[i]; a.Name == data.Source.Archive {
			spec.Restore = &hostapi.DatabaseRestore{TargetTime: data.Source.TargetTime}
			spec.Restore.From, err = f.archive(a)
			return spec, err
		}
	}
	return spec, &apierror.Error{Code: apierror.ENoArchive, Message: "no restorable archive", Detail: "the archive that it was to be restored from is gone"}
}

// seconds returns a duration in whole seconds, at least one.
func seconds(d time.Duration) int { return max(1, int(d/time.Second)) }

// pollEvery is how often a step asks a host for a database's progress.
const pollEvery = 250 * time.Millisecond

// awaitReady waits until PostgreSQL serves with its data.
func (f *Flows) awaitReady(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, err := f.box(run, d, data)
	if err != nil {
		return f.boxless(run, d, data, err), nil
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var progress string
	for {
		var state hostapi.DatabaseState
		err := f.call(ctx, data.RequestID, box, func(ctx context.Context, c *hosts.Client) error {
			var err error
			state, err = c.GetDatabase(ctx, box.ID)
			return err
		})
		switch {
		case err == nil && restoreFailed(state):
			return f.fail(run, &apierror.Error{Code: apierror.EUnprocessable, Message: "its data could not be restored", Detail: state.Restore.Error}), nil
		case err == nil && state.Ready && (data.Source == nil || state.Restore != nil && state.Restore.Phase == pgapi.RestoreDone):
			return going(flow.Goto(stepLogin, data)), nil
		case err == nil:
			progress = data.progressOf(d, state)
		case hosts.Superseded(ctx, err):
			return nil, err
		case hostapi.HasCode(err, hostapi.CodeNotFound):
			return f.failWith(ctx, run, err), nil
		default:
			progress = data.progressOf(d, hostapi.DatabaseState{Error: reasonOf(err)})
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return saying(run, data, progress, flow.Goto(stepReady, data)), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func restoreFailed(s hostapi.DatabaseState) bool {
	return s.Restore != nil && s.Restore.Phase == pgapi.RestoreFailed
}

// loginPause is the time between two attempts to set credentials.
const loginPause = time.Second

// login sets the credentials. The guest verifies them by logging in.
func (f *Flows) login(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	box, err := f.box(run, d, data)
	if err != nil {
		return f.boxless(run, d, data, err), nil
	}
	creds := data.Credentials
	if creds == nil {
		creds = d.Credentials
	}
	err = f.setCredentials(ctx, data.RequestID, d, box, creds)
	switch {
	case hostapi.HasCode(err, hostapi.CodeNotFound), hostapi.HasCode(err, hostapi.CodeInvalid):
		return f.failWith(ctx, run, err), nil
	case err != nil && hosts.Superseded(ctx, err):
		return nil, err
	case err != nil: // retry until the deadline
		return saying(run, data, "its credentials are not proven yet: "+reasonOf(err), flow.Sleep(stepLogin, loginPause, data)), nil
	}
	f.Logger.InfoContext(ctx, "database is ready", "database_id", d.ID, "agent_id", box.HostID, "sandbox_id", hostapi.ShortID(box.ID), "kind", run.Flow.Kind)
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		d = d.Clone()
		d.Status, d.Error, d.Credentials = record.DatabaseReady, "", creds
		raftstore.Put(tx, record.Databases, d)
		if run.Flow.Kind != KindFailover {
			return flow.Done(), nil
		}
		return flow.Done(), tell(tx, api.WebhookFailoverCompleted, d, api.WebhookFailover{Status: api.DatabaseRunning, Forced: data.Switch, AgentID: box.HostID})
	}, nil
}

// setCredentials sets credentials in a database's guest.
func (f *Flows) setCredentials(ctx context.Context, requestID string, d *record.Database, box *record.Sandbox, creds *record.DatabaseCredentials) error {
	password, _, err := f.open(d.ID, creds)
	if err != nil {
		return err
	}
	return f.call(ctx, requestID, box, func(ctx context.Context, c *hosts.Client) error {
		_, err := c.SetCredentials(ctx, box.ID, pgapi.Credentials{
			Database: d.Name, Username: d.Username, Password: password, Verifier: creds.Verifier,
		})
		return err
	})
}

// expire fails a database that took too long.
func (f *Flows) expire(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data provision
	d, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	why := d.Error
	if cause, ok := strings.CutPrefix(d.Error, data.Hint+hintEnd); ok && data.Hint != "" {
		why = cause
	}
	return f.end(run, &apierror.Error{Code: apierror.EInternal, Message: "it took too long", Detail: why}), nil
}

// failWith fails a database because of its host's error.
func (f *Flows) failWith(ctx context.Context, run flow.Run, err error) flow.Commit {
	f.Logger.WarnContext(ctx, "host refuses a database", "flow_id", run.Flow.ID, "step", run.Flow.Step, "error", err)
	return f.fail(run, &apierror.Error{Code: apierror.EInternal, Message: reasonOf(err), Err: err})
}

// fail ends a flow with an error, unless it can still fall back from a disk copy to the
// archive.
func (f *Flows) fail(run flow.Run, why error) flow.Commit {
	var data provision
	if err := run.Data(&data); err == nil && data.Copy != nil {
		return f.giveUpCopy(run, data, why)
	}
	return f.end(run, why)
}

// end ends a flow with a failed database and no sandbox.
func (f *Flows) end(run flow.Run, why error) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		d, ok := making(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		if err := removeBoxes(tx, d); err != nil {
			return flow.Next{}, err
		}
		d = d.Clone()
		d.Status, d.Error, d.SandboxID = record.DatabaseFailed, reasonOf(why), ""
		closeArchive(tx, d)
		raftstore.Put(tx, record.Databases, d)
		return flow.Fail(why), nil
	}
}

// closeArchive records that the database's current incarnation is over, so that its
// archive may be pruned away.
func closeArchive(tx *raftstore.Tx, d *record.Database) {
	if last := d.Archive(); last != nil && last.ClosedAt.IsZero() {
		last.ClosedAt = tx.Now()
	}
}

// removeBoxes begins to delete a database's sandboxes: its current one, and any that are
// left of earlier ones.
func removeBoxes(tx *raftstore.Tx, d *record.Database) error {
	for _, box := range boxesOf(tx, d) {
		if _, err := sandbox.Resource.BeginDelete(tx, flow.NewID(), box, ""); err != nil {
			return err
		}
	}
	return nil
}

// boxesOf returns all sandboxes of a database. Those that it no longer names are being
// removed, and may write to their archives until they are gone.
func boxesOf(r raftstore.Reader, d *record.Database) (boxes []*record.Sandbox) {
	for _, box := range raftstore.Find(r, record.Sandboxes, "workspace", d.WorkspaceID) {
		if box.Owner != nil && *box.Owner == (record.Owner{Type: sandbox.OwnerDatabase, ID: d.ID}) {
			boxes = append(boxes, box)
		}
	}
	return boxes
}
