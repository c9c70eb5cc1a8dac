package database

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// standing is everything that a database's status depends on.
type standing struct {
	row     *record.Database
	box     *record.Sandbox // nil if there is none
	hostUp  bool            // the box's host is up
	paused  bool            // its workspace is paused
	waking  bool            // it is being woken, or started again
	since   time.Duration   // for how long
	boot    *boot           // its host boots it by itself; nil if not
	trouble string          // why its last wake failed
	unwell  string          // why it does not serve, or is not archived, as it should, although its box runs
}

// errNoCredentials is the hint for a database that runs but cannot be used yet.
const errNoCredentials = "it runs, and its credentials are not there yet"

// status returns the status that clients see, and a hint if there is something to say.
func (s standing) status() (api.DatabaseStatus, string) {
	switch s.row.Status {
	case record.DatabaseProvisioning:
		return api.DatabaseProvisioning, s.row.Error
	case record.DatabaseRestoring:
		return api.DatabaseRestoring, s.row.Error
	case record.DatabaseFailed, record.DatabaseDeleting:
		return api.DatabaseFailed, s.row.Error
	}
	switch {
	case s.box == nil, s.box.Status == record.SandboxDeleting:
		return api.DatabaseFailed, errBoxGone
	case s.box.Status == record.SandboxFailed && !s.hostUp:
		return api.DatabaseFailed, boxFault(s.box.Error)
	case s.box.Status == record.SandboxFailed && s.paused:
		return api.DatabaseHibernated, "it is started again once its workspace goes on: " + boxFault(s.box.Error)
	case s.box.Status == record.SandboxFailed:
		return api.DatabaseWaking, "it is started again: " + boxFault(s.box.Error)
	case s.row.Credentials == nil:
		return api.DatabaseProvisioning, errNoCredentials
	case s.boot != nil:
		return api.DatabaseWaking, booting(*s.boot)
	case s.box.Status == record.SandboxRunning:
		return api.DatabaseRunning, cmp.Or(s.row.Error, s.unwell)
	case s.waking:
		return api.DatabaseWaking, s.wakeHint()
	}
	return api.DatabaseHibernated, s.trouble
}

// slowWake is how long a wake takes before its owner is told that it takes long.
const slowWake = 5 * time.Second

// wakeHint says why a database is not awake yet, if there is something to say.
func (s standing) wakeHint() string {
	switch {
	case s.box.Move != nil:
		return "it is moving to another host, and wakes there"
	case s.trouble != "":
		return "it is tried again, for it could not be woken: " + s.trouble
	case s.since > slowWake:
		return fmt.Sprintf("its host has been waking it for %d seconds", int(s.since.Seconds()))
	}
	return ""
}

// booting describes a boot that a host does by itself.
func booting(b boot) string {
	if b.why == "" {
		return "it is booted from its disk, for its host was restarted"
	}
	return "it is booted from its disk, for its host was restarted: " + boxFault(b.why)
}

// standing collects what a database's status depends on.
func (s *Databases) standing(r raftstore.Reader, d *record.Database) standing {
	st := standing{row: d, paused: paused(r, d.WorkspaceID)}
	if box, ok := raftstore.Get(r, record.Sandboxes, d.SandboxID); ok {
		st.box, st.hostUp = box, hostUp(r, box.HostID)
		st.unwell = s.heard.unwell(d.ID, box, s.cfg.ArchiveInterval)
	}
	st.waking, st.since, st.trouble = s.heard.wake(d.ID)
	if b, ok := s.heard.boot(d.ID); ok {
		st.boot = &b
	}
	return st
}

func hostUp(r raftstore.Reader, id string) bool {
	h, ok := raftstore.Get(r, record.Hosts, id)
	return ok && h.State == record.HostUp
}

// show converts a row for its workspace, with the credentials while the database runs.
func (s *Databases) show(r raftstore.Reader, d *record.Database) (api.Database, error) {
	out := s.outline(r, d)
	if out.Status != api.DatabaseRunning {
		return out, nil
	}
	return out, s.flows.reveal(d, &out)
}

// outline converts a row without secrets.
func (s *Databases) outline(r raftstore.Reader, d *record.Database) api.Database {
	out := api.Database{
		ID: d.ID, Template: templateOf(string(api.Database1G)), Size: api.DatabaseSize(d.Size), Label: d.Label, AlwaysOn: d.AlwaysOn,
		ClonedFrom: d.ClonedFrom, CPU: d.CPU, MemoryMB: d.MemoryMB, CreatedAt: api.Time{Time: d.CreatedAt},
		Host: s.host(d.ID), Port: s.cfg.RouterPort, BrokerURL: "/v1/databases/" + d.ID + "/proxy",
	}
	if d.TargetTime != nil {
		out.TargetTime = &api.Time{Time: *d.TargetTime}
	}
	out.Status, out.Error = s.standing(r, d).status()
	switch out.Status {
	case api.DatabaseRunning:
		out.Database, out.Username = d.Name, d.Username
	case api.DatabaseFailed:
		available, why := s.failoverOutlook(r, d)
		out.FailoverAvailable, out.FailoverReason, out.FailoverETASeconds = &available, why, int(s.cfg.FailoverETA.Seconds())
	}
	return out
}

// host returns the host name that clients connect to, "" without a router.
func (s *Databases) host(id string) string {
	if s.cfg.Domain == "" {
		return ""
	}
	return id + "." + s.cfg.Domain
}

// reveal adds the credentials of a running database.
func (f *Flows) reveal(d *record.Database, out *api.Database) error {
	password, token, err := f.open(d.ID, d.Credentials)
	if err != nil {
		return err
	}
	out.Password, out.BrokerToken = password, token
	if out.Host != "" {
		u := url.URL{Scheme: "postgres", User: url.UserPassword(d.Username, password), Host: out.Host + ":" + strconv.Itoa(out.Port), Path: "/" + d.Name}
		out.ConnectionURL = u.String()
	}
	return nil
}
