package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Templates contains the use cases of templates and their builds. Shared templates,
// which the hosts' operator defines, are for everybody; the others belong to their
// workspace.
type Templates struct {
	Flows *Flows
	core  *core.Core
}

// New returns the use cases.
func New(c *core.Core, cfg Config) *Templates {
	return &Templates{Flows: newFlows(c, cfg), core: c}
}

// ownTemplate returns a template of a workspace; "" is the workspace of shared
// templates.
func ownTemplate(r raftstore.Reader, workspaceID, name string) (*record.Template, bool) {
	for _, t := range raftstore.Find(r, record.Templates, "name", workspaceID+"/"+name) {
		return t, true
	}
	return nil, false
}

// Resolve sets the template and the build from which a sandbox is to be created. A
// template of the workspace takes precedence over a shared one. A sandbox from a
// snapshot has the snapshot's.
func Resolve(r raftstore.Reader, row *record.Sandbox) error {
	if row.FromSnapshot != "" {
		return nil
	}
	t, ok := ownTemplate(r, row.WorkspaceID, row.Template)
	if IsKey(row.Template) || reserved(row.Template) || !ok && row.TemplateKey != "" {
		return Unknown(row.Template, Usable(r, row.WorkspaceID))
	}
	if ok {
		row.TemplateKey = t.Key
	} else if t, ok = Operators(r, row.Template); !ok {
		return nil // placement checks whether hosts have it
	}
	if t.BuildID == "" {
		return apierror.Invalid("template is not ready", "%s has no build that succeeded", row.Template)
	}
	row.BuildID = t.BuildID
	return nil
}

// SizeOf returns the template of a sandbox that is to be created, of which only the
// size is certain: it may be built anew before the sandbox has a host.
func SizeOf(r raftstore.Reader, row *record.Sandbox) (*record.Template, bool) {
	return usable(r, row.WorkspaceID, row.Template)
}

// usable returns a template that a workspace may use.
func usable(r raftstore.Reader, workspaceID, name string) (*record.Template, bool) {
	if t, ok := ownTemplate(r, workspaceID, name); ok {
		return t, true
	}
	return forTenants(r, name)
}

// forTenants returns a shared template that is not the platform's own.
func forTenants(r raftstore.Reader, name string) (*record.Template, bool) {
	if reserved(name) {
		return nil, false
	}
	return Operators(r, name)
}

// Usable returns the names of the templates that a workspace may use, also of those that
// are yet to be built.
func Usable(r raftstore.Reader, workspaceID string) (names []string) {
	for _, of := range []string{"", workspaceID} {
		for _, t := range raftstore.Find(r, record.Templates, "workspace", of) {
			if !reserved(t.Name) {
				names = append(names, t.Name)
			}
		}
	}
	return names
}

// show converts a row to the public type.
func show(t *record.Template) api.Template {
	return api.Template{
		Name: t.Name, Status: api.TemplateStatus(t.Status), BuildID: t.BuildID, CPU: t.CPU, MemoryMB: t.MemoryMB, DiskMB: t.DiskMB,
		CreatedAt: api.Time{Time: t.CreatedAt}, UpdatedAt: api.Time{Time: t.UpdatedAt}, SizeBytes: t.SizeBytes,
	}
}

// showBuild converts a row to the public type.
func showBuild(b *record.Build) api.Build {
	return api.Build{
		ID: b.ID, Template: b.Template, Status: api.TemplateStatus(b.Status), Error: core.OrNull(b.Error),
		CreatedAt: api.Time{Time: b.CreatedAt}, FinishedAt: api.NewTime(b.FinishedAt),
	}
}

// Get returns one template.
func (s *Templates) Get(ctx context.Context, c core.Caller, name string) (api.Template, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return api.Template{}, err
	}
	return s.template(view, c, name)
}

func (s *Templates) template(view *raftstore.Snapshot, c core.Caller, name string) (api.Template, error) {
	if t, ok := usable(view, c.WorkspaceID, name); ok {
		return show(t), nil
	}
	if s.core.Hosts.Warming(view) {
		return api.Template{}, apierror.Unavailable("the hosts are yet to be heard", nil)
	}
	return api.Template{}, &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "no such template"}
}

// List returns a page of the workspace's own templates and the shared ones, newest
// first.
func (s *Templates) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Template, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	merged := map[string]*record.Template{}
	for _, workspaceID := range []string{"", c.WorkspaceID} { // the workspace's own takes precedence
		for _, t := range raftstore.Find(view, record.Templates, "workspace", workspaceID) {
			if !reserved(t.Name) {
				merged[t.Name] = t
			}
		}
	}
	rows, next, err := core.Paginate(slices.Collect(maps.Values(merged)), o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, show), next, nil
}

// Build begins a build of a template of the caller's workspace.
func (s *Templates) Build(ctx context.Context, c core.Caller, in api.BuildTemplate, i core.Idempotency) (api.Build, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Build{}, err
	}
	if err := validateBuild(in); err != nil {
		return api.Build{}, err
	}
	return core.Once(ctx, s.core, c, "POST /v1/templates/build", i,
		func(_ context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (api.Build, error) {
			b, err := ownedBuild(view, c, key.ResourceID)
			if err != nil {
				return api.Build{}, core.ErrKeyGone("build")
			}
			return showBuild(b), nil
		},
		func(keyID string) (api.Build, error) { return s.build(ctx, c, in, i, keyID) })
}

func (s *Templates) build(ctx context.Context, c core.Caller, in api.BuildTemplate, i core.Idempotency, keyID string) (api.Build, error) {
	if !isImage(in.From) {
		if err := s.awaitKnown(ctx, c, in.From); err != nil {
			return api.Build{}, err
		}
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Build{}, err
	}
	from, err := s.resolveFrom(view, c, in)
	if err != nil {
		return api.Build{}, err
	}
	key := Key(c.WorkspaceID, in.Name)
	build := &record.Build{
		Meta: record.Meta{ID: "bld-" + core.RandomText(20)}, WorkspaceID: c.WorkspaceID, Template: in.Name, Key: key, From: in.From, Status: record.TemplateQueued,
	}
	if build.SpecSealed, err = s.Flows.Seal(build.ID, specOf(in, key, from)); err != nil {
		return api.Build{}, apierror.As(err)
	}
	if len(build.SpecSealed) > maxSealedSpec {
		return api.Build{}, &apierror.Error{Code: apierror.ETooLarge, Message: "request too large", Detail: "as JSON, in which a quote or a newline has two bytes, the build has more than 360 KiB; fetch what is large in a run step"}
	}
	templateID, flowID := "tpl-"+core.RandomText(20), flow.NewID()
	var out api.Build
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := s.core.MayUse(tx, c); err != nil {
			return err
		}
		if err := s.askFor(tx, c, from); err != nil {
			return err
		}
		if err := s.mayBuild(tx, c, in.Name); err != nil {
			return err
		}
		row, ok := ownTemplate(tx, c.WorkspaceID, in.Name)
		switch {
		case !ok:
			row = &record.Template{Meta: record.Meta{ID: templateID}, WorkspaceID: c.WorkspaceID, Name: in.Name, Key: key, Status: record.TemplateBuilding}
		case row.BuildID == "":
			row = row.Clone()
			row.Status, row.Error = record.TemplateBuilding, ""
		}
		b := build.Clone()
		if err := Begin(tx, flowID, row.Clone(), b, c.RequestID); err != nil {
			return err
		}
		out = showBuild(b)
		return core.ClaimAnswer(tx, s.core, i, keyID, b.ID, out)
	})
	if errors.Is(err, raftstore.ErrConflict) {
		return api.Build{}, errBuilding(in.Name)
	}
	if err != nil {
		return api.Build{}, err
	}
	return out, nil
}

func errBuilding(name string) *apierror.Error {
	return &apierror.Error{Code: apierror.EConflict, Message: "template is being built", Detail: "wait for the end of the build of " + name + " that is under way"}
}

// mayBuild refuses a second build of the same template, and more builds or templates
// than a workspace may have.
func (s *Templates) mayBuild(tx *raftstore.Tx, c core.Caller, name string) error {
	ws, _ := raftstore.Get(tx, record.Workspaces, c.WorkspaceID) // MayUse found it
	mostTemplates, mostBuilds := s.core.Tiers.Templates(ws, maxTemplates, maxTemplateBuild)
	own := raftstore.Find(tx, record.Templates, "workspace", c.WorkspaceID)
	building := 0
	for _, t := range own {
		if _, live := flow.Live(tx, Subject(t.ID)); !live {
			continue
		}
		if t.Name == name {
			return errBuilding(name)
		}
		building++
	}
	known := slices.ContainsFunc(own, func(t *record.Template) bool { return t.Name == name })
	switch {
	case !known && len(own) >= mostTemplates:
		return &apierror.Error{Code: apierror.ERateLimited, Message: "template quota exceeded", Fields: map[string]any{"templates_used": len(own), "templates_max": mostTemplates}}
	case building >= mostBuilds:
		return &apierror.Error{Code: apierror.ERateLimited, Message: "too many builds at once", RetryAfter: 30 * time.Second}
	}
	return nil
}

// resolveFrom returns the name under which hosts have a template's base, and refuses
// names of shared templates.
func (s *Templates) resolveFrom(view *raftstore.Snapshot, c core.Caller, in api.BuildTemplate) (from string, err error) {
	if _, taken := Operators(view, in.Name); taken || reserved(in.Name) {
		return "", &apierror.Error{Code: apierror.EConflict, Message: "template name is taken", Detail: in.Name + " is one of everybody's templates"}
	}
	switch {
	case in.From == in.Name: // a shared one cannot be meant: its name was refused above
		return "", apierror.Invalid("invalid from", "a template is not made from itself")
	case isImage(in.From):
		return in.From, nil
	}
	if t, ok := ownTemplate(view, c.WorkspaceID, in.From); ok {
		if t.BuildID == "" {
			return "", apierror.Invalid("template is not ready", "%s has no build that succeeded", in.From)
		}
		return t.Key, nil
	}
	_, ok := forTenants(view, in.From)
	switch {
	case ok:
		return in.From, nil
	case s.core.Hosts.Warming(view):
		return "", apierror.Unavailable("the hosts are yet to be heard", nil)
	}
	e := Unknown(in.From, Usable(view, c.WorkspaceID))
	return "", e.With(fmt.Sprintf("%s; an image is written with its registry or its tag: docker.io/library/%s, %s:latest", e.Detail, in.From, in.From), nil)
}

// Delete removes a template of the caller's workspace that nothing uses.
func (s *Templates) Delete(ctx context.Context, c core.Caller, name string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		t, ok := usable(tx, c.WorkspaceID, name)
		if !ok {
			return apierror.NotFound()
		}
		if why := usedBy(tx, c.WorkspaceID, t); why != "" {
			return &apierror.Error{Code: apierror.EConflict, Message: "template in use", Detail: why}
		}
		if t.WorkspaceID == "" {
			return &apierror.Error{Code: apierror.EForbidden, Message: "template is not yours", Detail: name + " is one of everybody's templates: the hosts' operator removes it"}
		}
		Drop(tx, t) // hosts remove it later
		return nil
	})
}

// usedBy returns what in a workspace uses a template, or "".
func usedBy(r raftstore.Reader, workspaceID string, t *record.Template) string {
	uses := func(name, key string) bool {
		return key == t.Key || t.WorkspaceID == "" && key == "" && name == t.Name
	}
	for _, s := range raftstore.Find(r, record.Sandboxes, "workspace", workspaceID) {
		if uses(s.Template, s.TemplateKey) {
			return "a sandbox is made from it"
		}
	}
	for _, s := range raftstore.Find(r, record.Snapshots, "workspace", workspaceID) {
		if uses(s.Template, s.TemplateKey) {
			return "a snapshot is made from it"
		}
	}
	for _, o := range raftstore.Find(r, record.Templates, "workspace", workspaceID) {
		if _, live := flow.Live(r, Subject(o.ID)); !live {
			continue
		}
		if o.ID == t.ID {
			return "it is being built"
		}
		for _, b := range raftstore.Find(r, record.Builds, "template", o.WorkspaceID+"/"+o.Name) {
			if b.FinishedAt.IsZero() && b.From == t.Name {
				return o.Name + ", which is being built, is made from it"
			}
		}
	}
	return ""
}
