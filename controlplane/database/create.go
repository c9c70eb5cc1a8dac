package database

import (
	"cmp"
	"context"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// maxLabel is the maximum length of a label, in characters.
const maxLabel = 100

// maxCPU and maxMemoryMB are the limits of cpu and memory_mb in the API document. Both
// fields have no effect.
const (
	maxCPU      = 1_000_000
	maxMemoryMB = 1_000_000_000
)

func validate(label string, size *api.DatabaseSize) error {
	if utf8.RuneCountInString(label) > maxLabel {
		return apierror.Invalid("invalid label", "a label has at most %d characters", maxLabel)
	}
	for _, r := range label {
		if !unicode.IsPrint(r) {
			return apierror.Invalid("invalid label", "the label has a character that cannot be shown")
		}
	}
	if !core.OneOf(size, api.Database1G, api.Database4G, api.Database16G) {
		return &apierror.Error{Code: apierror.EInvalid, Message: "size must be 1g, 4g or 16g"}
	}
	return nil
}

// Create begins to create a database and returns at once.
func (s *Databases) Create(ctx context.Context, c core.Caller, in api.CreateDatabase, i core.Idempotency) (api.Database, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Database{}, err
	}
	if err := validate(in.Label, in.Size); err != nil {
		return api.Database{}, err
	}
	for _, f := range []struct {
		name string
		v    *int
		most int
	}{{"cpu", in.CPU, maxCPU}, {"memory_mb", in.MemoryMB, maxMemoryMB}} {
		if v := core.OrZero(f.v); v < 0 || v > f.most {
			return api.Database{}, apierror.Invalid("invalid "+f.name, "want an integer from 0 to %d", f.most)
		}
	}
	return core.Once(ctx, s.core, c, "POST /v1/databases", i, s.replay(c), func(keyID string) (api.Database, error) {
		d := &record.Database{
			Label: in.Label, Size: string(cmp.Or(core.OrZero(in.Size), api.Database1G)), AlwaysOn: in.AlwaysOn,
			CPU: core.OrZero(in.CPU), MemoryMB: core.OrZero(in.MemoryMB),
		}
		return s.begin(ctx, c, d, provision{}, s.cfg.CreateDeadline, i, keyID, nil)
	})
}

// replay answers a request with a used idempotency key as the first request was answered,
// while the database is there.
func (s *Databases) replay(c core.Caller) func(context.Context, *raftstore.Snapshot, *record.IdempotencyKey) (api.Database, error) {
	return func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Database, error) {
		d, err := Owned(view, c, key.ResourceID)
		if err != nil {
			return api.Database{}, core.ErrKeyGone("database")
		}
		return core.Answered(s.core, key, func() (api.Database, error) { return s.show(view, d) })
	}
}

// begin writes a new database and begins the flow that creates it. check, unless nil,
// runs in the same transaction and may refuse.
func (s *Databases) begin(
	ctx context.Context, c core.Caller, d *record.Database, data provision, limit time.Duration, i core.Idempotency, keyID string, check func(tx *raftstore.Tx) error,
) (api.Database, error) {
	d.ID, d.WorkspaceID, d.Status, d.Name, d.Username = newID(), c.WorkspaceID, record.DatabaseProvisioning, DatabaseName, Username
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Database{}, err
	}
	need := limits.Need{Databases: 1, DiskMB: limits.DatabaseDiskMB(d.Size)}
	if err := s.core.Admissible(view, c, need); err != nil {
		return api.Database{}, err
	}
	if err := s.flows.placeable(view, d.Size); err != nil {
		return api.Database{}, err
	}
	data.RequestID = c.RequestID
	if data.Credentials, err = s.flows.newCredentials(d.ID); err != nil {
		return api.Database{}, apierror.As(err)
	}
	if t, known := template.Operators(view, templateOf(d.Size)); !known || t.BuildID == "" {
		limit += template.BuildWait
	}
	var answer api.Database
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := s.core.Admit(tx, c, need); err != nil {
			return err
		}
		if err := s.mayHaveAnother(tx, c); err != nil {
			return err
		}
		if check != nil {
			if err := check(tx); err != nil {
				return err
			}
		}
		row := d.Clone()
		raftstore.Put(tx, record.Databases, row)
		if answer, err = s.show(tx, row); err != nil {
			return err
		}
		if err := core.ClaimAnswer(tx, s.core, i, keyID, d.ID, answer); err != nil {
			return err
		}
		step := stepTemplate
		switch {
		case data.Copy != nil:
			step = stepCopy
		case data.Switch:
			step = stepSwitch
		}
		return flow.Begin(tx, flow.New{
			ID: flow.NewID(), Kind: KindCreate, Subject: Subject(d.ID), Step: step, Data: data, Deadline: tx.Now().Add(limit),
		})
	})
	if err != nil {
		return api.Database{}, err
	}
	return answer, nil
}

// mayHaveAnother refuses a database beyond the workspace's limit.
func (s *Databases) mayHaveAnother(r raftstore.Reader, c core.Caller) error {
	active, most := 0, *s.cfg.MaxPerWorkspace
	for _, d := range raftstore.Find(r, record.Databases, "workspace", c.WorkspaceID) {
		if d.Status != record.DatabaseDeleting {
			active++
		}
	}
	if active < most {
		return nil
	}
	return &apierror.Error{Code: apierror.ERateLimited, Message: "max databases reached", Fields: map[string]any{"max": most, "active": active}}
}

// placeable returns an error at once if no host could take a database. If its template is
// yet to be built, or to be reported by a host, the database waits for that instead.
func (f *Flows) placeable(view *raftstore.Snapshot, size string) error {
	name := templateOf(size)
	t, known := template.Operators(view, name)
	switch {
	case known && t.BuildID != "":
	case known, f.templates.Flows.Known(name), f.Hosts.Warming(view):
		return nil
	default:
		return core.NoNode(&placement.Error{Reason: placement.UnknownTemplate})
	}
	if err := f.room(view, size); err != nil && !f.Hosts.Warming(view) {
		return core.NoNode(err)
	}
	return nil
}

// roomBeside reports whether any host other than hostID can take a database now.
func (f *Flows) roomBeside(hostID string, view raftstore.Reader, size string) bool {
	req := placementOf(view, size)
	req.Exclude = []string{hostID}
	return f.Hosts.Choosable(view, req) == nil
}

// room returns why no host has room for a database. A host that has yet to get the
// template counts as having room.
func (f *Flows) room(view raftstore.Reader, size string) error {
	req := placementOf(view, size)
	err := f.Hosts.Choosable(view, req)
	if reasonFor(err) == placement.TemplateUnready {
		return nil
	}
	return err
}
