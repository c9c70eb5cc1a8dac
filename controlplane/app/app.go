// Package app manages apps: programs that are built from a repository or from an uploaded
// source, in sandboxes of their own, and served from these sandboxes. Flows deploy, wake
// and remove apps. Loops put idle apps to sleep, replace lost instances, add and drain
// instances, and delete what nothing points to. In the guest, guestapp builds and starts
// the program. DESIGN.md has the diagrams.
package app

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Config holds what apps need in addition to the core. A nil field or a zero duration means
// the default.
type Config struct {
	Sandboxes *sandbox.Sandboxes
	Templates *template.Templates

	// URL is the address of an app, for its clients. nil: apps have no addresses.
	URL func(id string) string

	// CloneToken returns the credentials with which a workspace clones a repository; all
	// empty: none. installationID may be empty or out of date. nil: repositories are
	// public.
	CloneToken func(ctx context.Context, workspaceID, installationID, repoURL string) (username, token string, err error)
	// InstallationFor finds the installation of a git host through which a workspace
	// reaches a repository. nil: there are no installations.
	InstallationFor func(r raftstore.Reader, workspaceID, repoURL string) (installationID string, ok bool)

	Databases Databases // databases that previews get clones of; nil: there are none

	Budget          time.Duration  // limit of a deployment, from the start of its build; default 12 minutes
	Sweep           time.Duration  // interval between two checks for idle apps; default 30 s
	MinIdle         *time.Duration // smallest allowed idle_timeout_seconds; default a minute
	Idle            *time.Duration // idle_timeout_seconds of an app that sets none; default 15 minutes, and never less than MinIdle
	Drain           time.Duration  // how long an instance may drain; default 5 minutes
	FunctionIdle    *time.Duration // how long a function stays awake without a request; default a minute
	MaxPerWorkspace *int           // maximum number of apps, and of functions; default 100
	CacheMB         *int           // limit of a build's caches kept for the next one; default 1024, 0: none are kept
	CacheTime       time.Duration  // limit for moving caches to or from a guest; default 2 minutes
	AllowHTTP       bool           // allows clone URLs with http:// and private hosts, for development

	Health        time.Duration // how long a started app may take to answer; default a minute
	HealthPause   time.Duration // between the two answers that a health check wants; default 1 s
	GuestSilent   time.Duration // how long a guest may fail to answer during a build; default 90 s
	Capture       time.Duration // how long the capture of an artifact may take; default 2 minutes
	DrainAtLeast  time.Duration // before an instance without requests is deleted; default 5 s
	WriteRequests time.Duration // between two writes of an app's last request; default a minute
	Patience      time.Duration // how long a step waits before it records that it waits; default 10 s
	Look          time.Duration // between two passes of the loops other than the sweep; default 1 s
	WakePause     time.Duration // after the first failed wake; default 5 s
	ReportKept    time.Duration // how long the open requests of a silent replica count; default 15 s
	ScaleUp       time.Duration // how long there are too many requests before an instance is added; default 10 s
	ScaleDown     time.Duration // how long there are few requests before an instance drains; default 2 minutes

	ClonePatience time.Duration // how long to wait for a database that cannot be cloned yet; default 5 minutes
}

func (c *Config) defaults() {
	c.Budget = cmp.Or(c.Budget, 12*time.Minute)
	c.Sweep = cmp.Or(c.Sweep, 30*time.Second)
	c.MinIdle = cmp.Or(c.MinIdle, new(time.Minute))
	c.Idle = cmp.Or(c.Idle, new(15*time.Minute))
	c.Drain = cmp.Or(c.Drain, 5*time.Minute)
	c.FunctionIdle = cmp.Or(c.FunctionIdle, new(time.Minute))
	c.MaxPerWorkspace = cmp.Or(c.MaxPerWorkspace, new(100))
	c.CacheMB = cmp.Or(c.CacheMB, new(1024))
	c.CacheTime = cmp.Or(c.CacheTime, timescale.Limit(cacheTime))
	c.Health = cmp.Or(c.Health, timescale.Limit(time.Minute))
	c.HealthPause = cmp.Or(c.HealthPause, time.Second)
	c.GuestSilent = cmp.Or(c.GuestSilent, timescale.Limit(90*time.Second))
	c.Capture = cmp.Or(c.Capture, timescale.Limit(2*time.Minute))
	c.DrainAtLeast = cmp.Or(c.DrainAtLeast, 5*time.Second)
	c.WriteRequests = cmp.Or(c.WriteRequests, time.Minute)
	c.Patience = cmp.Or(c.Patience, timescale.Limit(10*time.Second))
	c.Look = cmp.Or(c.Look, time.Second)
	c.WakePause = cmp.Or(c.WakePause, 5*time.Second)
	c.ReportKept = cmp.Or(c.ReportKept, timescale.Limit(15*time.Second))
	c.ScaleUp = cmp.Or(c.ScaleUp, 10*time.Second)
	c.ScaleDown = cmp.Or(c.ScaleDown, 2*time.Minute)
	c.ClonePatience = cmp.Or(c.ClonePatience, timescale.Limit(5*time.Minute))
}

// Apps implements the use cases of apps.
type Apps struct {
	core  *core.Core
	cfg   Config
	kind  record.AppKind // the kind of apps that they see
	flows *Flows
	heard *heard

	streams *streams

	logs, uploads *core.Open
}

// Limits on what a workspace may have open at once. Each log may have a connection to a
// guest. Each upload fills a host's disk before its size is known.
const (
	maxLogs    = 100
	maxUploads = 4
)

// New returns the use cases of apps.
func New(c *core.Core, cfg Config) *Apps {
	cfg.defaults()
	h := newHeard(c.Clock, cfg)
	return &Apps{
		core: c, cfg: cfg, heard: h, flows: &Flows{Core: c, cfg: cfg, heard: h},
		streams: &streams{ids: map[string]bool{}}, logs: core.NewOpen("logs of apps", maxLogs), uploads: core.NewOpen("uploads", maxUploads),
	}
}

// Prefixes of ids. An app's id is the first label of its host name.
const (
	appPrefix        = "app-"
	functionPrefix   = "fn-"
	deploymentPrefix = "dep-"
	sourcePrefix     = "src-"
	logPrefix        = "log-"
	cachePrefix      = "cache-" // followed by a deployment's id
)

// Lengths of the random part of ids, in characters of five random bits each.
const (
	appRandom = 16
	idRandom  = 20
)

// Subject returns the subject of flows that work on an app.
func Subject(id string) string { return flow.Subject(record.Apps.Name, id) }

// DeploymentSubject returns the subject of flows that work on a deployment.
func DeploymentSubject(id string) string { return flow.Subject(record.Deployments.Name, id) }

// of finds the app that a flow is about.
func of(r raftstore.Reader, fl *record.Flow) (*record.App, bool) {
	return raftstore.Get(r, record.Apps, strings.TrimPrefix(fl.Subject, record.Apps.Name+"/"))
}

// owned finds an app of the caller's workspace. Apps of other workspaces, apps of another
// kind and apps that are being deleted are not found.
func (s *Apps) owned(r raftstore.Reader, c core.Caller, id string) (*record.App, error) {
	a, ok := raftstore.Get(r, record.Apps, id)
	if !ok || a.WorkspaceID != c.WorkspaceID || a.Kind != s.kind || a.Status == record.AppDeleting {
		return nil, apierror.NotFound()
	}
	return a, nil
}

// Owned finds an app of the caller's workspace that is not a function. It is for code that
// deals only with apps.
func Owned(r raftstore.Reader, c core.Caller, id string) (*record.App, error) {
	return (&Apps{}).owned(r, c, id)
}

// find returns an app of the caller's workspace, and the current view that it is from.
func (s *Apps) find(ctx context.Context, c core.Caller, id string) (*raftstore.Snapshot, *record.App, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	a, err := s.owned(view, c, id)
	return view, a, err
}

// Get returns one app of the caller's workspace.
func (s *Apps) Get(ctx context.Context, c core.Caller, id string) (api.App, error) {
	return get(ctx, s, c, id, s.show)
}

func get[T any](ctx context.Context, s *Apps, c core.Caller, id string, show func(*record.App) (T, error)) (out T, err error) {
	_, a, err := s.find(ctx, c, id)
	if err != nil {
		return out, err
	}
	return show(a)
}

// List returns a page of the workspace's apps, newest first, and the cursor of the next
// page ("" after the last).
func (s *Apps) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.App, next string, err error) {
	return list(ctx, s, c, o, s.show)
}

func list[T any](ctx context.Context, s *Apps, c core.Caller, o core.ListOptions, show func(*record.App) (T, error)) (page []T, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	rows, next, err := core.Paginate(appsOf(view, c.WorkspaceID, s.kind), o)
	if err != nil {
		return nil, "", err
	}
	page = make([]T, len(rows))
	for i, a := range rows {
		if page[i], err = show(a); err != nil {
			return nil, "", err
		}
	}
	return page, next, nil
}

// appsOf returns the apps of a kind in a workspace, except those that are being deleted.
func appsOf(r raftstore.Reader, workspace string, kind record.AppKind) (rows []*record.App) {
	for _, a := range raftstore.Find(r, record.Apps, "workspace", workspace) {
		if a.Kind == kind && a.Status != record.AppDeleting {
			rows = append(rows, a)
		}
	}
	return rows
}

// show returns an app as its workspace sees it.
func (s *Apps) show(a *record.App) (api.App, error) {
	env, err := s.flows.shownEnv(a)
	if err != nil {
		return api.App{}, err
	}
	out := api.App{
		ID: a.ID, Name: a.Name, Status: api.AppStatus(a.Status), Error: a.Error, GitURL: a.GitURL, GitBranch: a.GitBranch,
		Framework: a.Framework, Runtime: a.Runtime, InstallCommand: a.InstallCommand, BuildCommand: a.BuildCommand,
		StartCommand: a.StartCommand, RootDirectory: a.RootDirectory, Port: a.Port, CPU: a.CPU, MemoryMB: a.MemoryMB,
		MaxInstances: a.MaxInstances, Instances: len(a.Instances), AutoHibernate: a.AutoHibernate,
		IdleTimeoutSeconds: a.IdleTimeoutSeconds, AutoDeploy: a.AutoDeploy, Previews: a.HasPreviews(), ForkPreviews: a.ForkPreviews, Env: env, DeploymentID: a.DeploymentID,
		LastRequestAt: api.NewTime(a.LastRequestAt), CreatedAt: api.Time{Time: a.CreatedAt}, UpdatedAt: api.Time{Time: a.UpdatedAt},
	}
	if len(a.Instances) > 0 {
		out.SandboxID = a.Instances[0].SandboxID
	}
	if s.cfg.URL != nil {
		out.URL = s.cfg.URL(a.ID)
	}
	return out, nil
}

// written returns an app that the caller has changed. It reads the local store, which has
// everything that was committed here, whoever leads by now.
func written[T any](s *Apps, c core.Caller, id string, show func(*record.App) (T, error)) (out T, err error) {
	a, err := s.owned(s.core.Store.View(), c, id)
	if err != nil {
		return out, err
	}
	return show(a)
}
