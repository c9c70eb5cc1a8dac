package database

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The kinds of flow. A clone is a create with data from an archive.
const (
	KindCreate   = "database.create"
	KindFailover = "database.failover"
	KindRotate   = "database.rotate"
	KindDelete   = "database.delete"
)

// actTimeout bounds one step, which may wait a while for events elsewhere.
var actTimeout = timescale.Limit(time.Minute)

// patience is how long a step waits in memory for a condition before it commits that it
// is waiting.
var patience = timescale.Limit(10 * time.Second)

// Flows implements the steps of all kinds of flow.
type Flows struct {
	*core.Core
	cfg       Config
	sandboxes *sandbox.Sandboxes
	templates *template.Templates
	heard     *heard
}

// Kinds returns the kinds of flow, for the flow engine.
func (s *Databases) Kinds() []flow.Kind {
	f := s.flows
	provision := map[string]flow.Step{
		stepTemplate: f.awaitTemplate, stepSandbox: f.makeSandbox, stepTell: f.inTime(f.tell), stepReady: f.inTime(f.awaitReady), stepLogin: f.inTime(f.login),
		stepExpire: f.expire, stepSwitch: f.switchWAL, stepFence: f.fence, stepFenced: f.awaitFenced, stepCopy: f.copyDisk, stepCleared: f.awaitCleared,
	}
	return []flow.Kind{
		{Name: KindCreate, Expire: stepExpire, ActTimeout: actTimeout, Host: hostOf, Workspace: workspaceOf, Steps: provision},
		{Name: KindFailover, Expire: stepExpire, ActTimeout: actTimeout, Host: hostOf, Workspace: workspaceOf, Steps: provision},
		{Name: KindRotate, Expire: stepRevert, ActTimeout: actTimeout, Host: hostOf, Workspace: workspaceOf, Steps: map[string]flow.Step{stepSet: f.set, stepRevert: f.revert}},
		{Name: KindDelete, ActTimeout: actTimeout, Steps: map[string]flow.Step{stepSandboxes: f.removeSandboxes, stepArchives: f.removeArchives}},
	}
}

// Subject returns a database's name as the subject of flows.
func Subject(id string) string { return flow.Subject(record.Databases.Name, id) }

// of finds the database that a flow works on.
func of(r raftstore.Reader, fl *record.Flow) (*record.Database, bool) {
	return raftstore.Get(r, record.Databases, strings.TrimPrefix(fl.Subject, record.Databases.Name+"/"))
}

// hostOf returns the host that a flow's step calls, or "" if the step calls no host, or
// any host.
func hostOf(r raftstore.Reader, fl *record.Flow) string {
	switch fl.Step {
	case stepTell, stepReady, stepLogin, stepSwitch, stepSet, stepRevert:
	default:
		return ""
	}
	d, ok := of(r, fl)
	if !ok {
		return ""
	}
	box, ok := raftstore.Get(r, record.Sandboxes, d.SandboxID)
	if !ok {
		return ""
	}
	return box.HostID
}

// workspaceOf returns the workspace of the database that a flow works on.
func workspaceOf(r raftstore.Reader, fl *record.Flow) string {
	d, ok := of(r, fl)
	if !ok {
		return ""
	}
	return d.WorkspaceID
}

// placementOf returns what a database asks of placement. It names no builds while its
// template has none.
func placementOf(r raftstore.Reader, size string) placement.Request {
	req := placement.Request{Template: templateOf(size)}
	t, ok := template.Operators(r, req.Template)
	if !ok || t.BuildID == "" {
		return req
	}
	if b, ok := raftstore.Get(r, record.Builds, t.BuildID); ok {
		req.Builds = b.Digests()
	}
	return req
}

// errNoBucket means that no host that could ask the bucket answers, or that the bucket
// does not answer the hosts.
var errNoBucket = errors.New("no host answers that reaches the archives")

// anyHost performs an operation that concerns only the bucket on any host: it tries one
// host after the other until one answers.
func (f *Flows) anyHost(ctx context.Context, do func(ctx context.Context, c *hosts.Client) error) error {
	ids := f.ready()
	return f.oneOf(ctx, ids, len(ids), do)
}

// oneOf tries hosts until one answers, or until atMost of them got no answer from the
// bucket.
func (f *Flows) oneOf(ctx context.Context, ids []string, atMost int, do func(ctx context.Context, c *hosts.Client) error) error {
	var last error
	for _, id := range ids {
		if last = f.Hosts.Call(ctx, id, do); last == nil || !elsewhere(last) {
			return last
		}
		if hostapi.HasCode(last, hostapi.CodeNoStore) || hostapi.HasCode(last, hostapi.CodeDraining) {
			continue // it did not ask the bucket
		}
		if atMost--; atMost == 0 {
			break
		}
	}
	if last == nil {
		return errNoBucket
	}
	return fmt.Errorf("%w: %w", errNoBucket, last)
}

// elsewhere reports whether another host may succeed where one failed. An internal error
// of a host is, as a rule, a failure at the bucket.
func elsewhere(err error) bool {
	return hosts.Unreachable(err) || hostapi.HasCode(err, hostapi.CodeDraining) || hostapi.HasCode(err, hostapi.CodeNoStore) ||
		hostapi.HasCode(err, hostapi.CodeInternal)
}

// ready returns the ids of the hosts that are ready, sorted.
func (f *Flows) ready() []string {
	var ids []string
	for id, s := range f.Hosts.Sessions() {
		if s.Heartbeat.Ready {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// info returns what the bucket has of an archive, as one host finds out within limit. It
// returns the zero value for an archive that does not exist.
func (f *Flows) info(ctx context.Context, a *record.DatabaseArchive, limit time.Duration) (hostapi.ArchiveInfo, error) {
	named, err := f.archive(a)
	if err != nil {
		return hostapi.ArchiveInfo{}, err
	}
	var out hostapi.ArchiveInfo
	err = f.oneOf(ctx, inOrderFor(a.Name, f.ready()), askedHosts, func(ctx context.Context, c *hosts.Client) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		var err error
		out, err = c.ArchiveInfo(ctx, named)
		return err
	})
	if hostapi.HasCode(err, hostapi.CodeNoArchive) {
		return hostapi.ArchiveInfo{}, nil
	}
	if err != nil {
		return out, fmt.Errorf("read archive %s: %w", a.Name, err)
	}
	return out, nil
}

// inOrderFor rotates the hosts so that the archive's name decides which is asked first. A
// host serves only so many such requests at once, and one slow archive must not take
// those turns on every host. An archive always starts with the same host, which may be
// working on it already.
func inOrderFor(archive string, ids []string) []string {
	if len(ids) == 0 {
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(archive))
	first := int(h.Sum32() % uint32(len(ids)))
	return slices.Concat(ids[first:], ids[:first])
}

// askedHosts is how many hosts are asked about an archive: if two get no answer from the
// bucket, no other does.
const askedHosts = 2

// asking bounds everything that one caller asks about archives, given the limit for one
// host.
func asking(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, askedHosts*limit)
}
