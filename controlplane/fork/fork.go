// Package fork creates children of a running sandbox, all of them by one flow: its
// disk, or its disk and memory, are captured once, and the children start from the
// capture in parallel. A child that does not start is reported; the others continue.
// Promote chooses one of a tree's children.
package fork

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The kinds of flow.
const (
	KindFork    = "fork"
	KindPromote = "fork.promote"
	KindStore   = "fork.store" // uploads the capture of a tree that could not be uploaded
)

// Mode says what children inherit.
type Mode string

// Children inherit, with Cold, the disk; with Tree, disk and memory; with Warm, disk
// and memory, for one child that takes the parent's place on the network while the
// parent stops.
const (
	Cold Mode = "cold"
	Tree Mode = "tree"
	Warm Mode = "warm"
)

// Deadline limits a fork, over all the hosts that it tries. Sixteen guests that boot
// under emulation on two processors take minutes.
var Deadline = timescale.Limit(10 * time.Minute)

// actTimeout limits one batch of children.
var actTimeout = timescale.Limit(5 * time.Minute)

// errNoChild is the error of a fork if hosts tried and failed to start its children.
var errNoChild = &apierror.Error{
	Code: sandbox.ErrNotStarted.Code, Message: sandbox.ErrNotStarted.Message,
	Detail: "no child came to life; report the request id if a retry does not help",
}

// Flows contains the steps of both kinds.
type Flows struct {
	*core.Core
	sandboxes *sandbox.Flows

	// StorePause is the delay after the first failed upload; each is twice the one
	// before. Default 10 s.
	StorePause time.Duration
}

// Kinds returns the kinds of flows, for the engine.
func (s *Forks) Kinds() []flow.Kind {
	f := s.Flows
	return []flow.Kind{
		{
			Name: KindFork, Expire: stepExpire, ActTimeout: actTimeout, Host: parentsHost, Workspace: workspaceOf,
			Steps: map[string]flow.Step{
				stepStart: f.start, stepWarm: f.warm, stepPlace: f.placeElsewhere, stepFinish: f.finish, stepExpire: f.expire,
			},
		},
		{
			Name: KindPromote, ActTimeout: time.Minute, Host: promotedsHost,
			Steps: map[string]flow.Step{stepAwait: f.await},
		},
		{
			Name: KindStore, Expire: stepNotStored, ActTimeout: actTimeout, Host: storesHost,
			Steps: map[string]flow.Step{stepStoreAgain: f.storeAgain, stepNotStored: f.notStored},
		},
	}
}

// parentsHost returns the host that most of a fork's calls go to.
func parentsHost(_ raftstore.Reader, fl *record.Flow) string {
	var data Fork
	if err := flow.Decode(fl, &data); err != nil {
		return "" // the step reports the error
	}
	return data.HostID
}

// workspaceOf returns the workspace of a fork's sandboxes, of which some may be gone.
func workspaceOf(r raftstore.Reader, fl *record.Flow) string {
	var data Fork
	if err := flow.Decode(fl, &data); err != nil {
		return ""
	}
	for _, c := range append([]Child{{ID: data.ParentID}}, data.Children...) {
		if s, ok := raftstore.Get(r, record.Sandboxes, c.ID); ok {
			return s.WorkspaceID
		}
	}
	return ""
}

// subjectPrefix begins the subject of every fork.
const subjectPrefix = "forks/"

// Subject returns a fork's name as a subject of flows. The id of its group is also
// that of its capture and, in a fork-tree, the tree's.
func Subject(group string) string { return subjectPrefix + group }

// Fork is the data of a fork.
type Fork struct {
	resource.Data
	Mode       Mode      `json:"mode"`
	ParentID   string    `json:"parent_id"`
	HostID     string    `json:"agent_id"`   // the parent's host, which makes the capture
	Generation uint64    `json:"generation"` // of the parent's box
	Children   []Child   `json:"children"`   // by index
	Begun      time.Time `json:"begun"`

	Captured bool     `json:"captured,omitempty"`
	PauseMS  int64    `json:"pause_ms,omitempty"`
	MemoryMB int      `json:"memory_mb,omitempty"` // of a child
	Stored   bool     `json:"stored,omitempty"`    // the capture is in the snapshot store
	Manifest string   `json:"manifest,omitempty"`  // SHA-256 of its manifest there
	Copies   []string `json:"copies,omitempty"`    // other hosts that may have fetched the capture
	Ended    int64    `json:"ended_ms,omitempty"`  // when the last child ran or had failed, in ms after Begun
}

// Child is the state of one child.
type Child struct {
	ID     string     `json:"id"`
	Tried  []string   `json:"tried,omitempty"` // hosts that failed or refused
	MS     int64      `json:"ms,omitempty"`    // when it ran, in ms after Begun
	Error  string     `json:"error,omitempty"` // why it was not created
	Reason reasonKind `json:"why,omitempty"`
}

// reasonKind is why a child did not start. A fork without any running child reports
// the highest one.
type reasonKind int

const (
	reasonFull reasonKind = iota + 1
	reasonUnreachable
	reasonFailed
)

// Result is the result of a fork with at least one running child.
type Result struct {
	PauseMS int64    `json:"pause_ms"`
	Stored  bool     `json:"stored,omitempty"`
	Failed  []Failed `json:"failed,omitempty"`
}

// Failed is a child that did not start.
type Failed struct {
	Index int    `json:"index"`
	Error string `json:"error"`
}

func (d *Fork) result() Result {
	r := Result{PauseMS: d.PauseMS, Stored: d.Mode == Tree && d.Stored}
	for i, c := range d.Children {
		if c.Error != "" {
			r.Failed = append(r.Failed, Failed{Index: i, Error: c.Error})
		}
	}
	return r
}

// Order describes a fork to begin.
type Order struct {
	FlowID, Group    string
	RequestID        string
	IdempotencyKeyID string
	Mode             Mode
	Parent           *record.Sandbox
	Children         []*record.Sandbox // placed by Place; by index
	Unplaced         map[string]string // by child's id: why no host can take it
}

// Place reserves memory for each child on the parent's host and updates the rows. It
// leaves a child's row unplaced if the child must start on another host, from the
// snapshot store. It records children for which there is no host in Unplaced; if
// there is none for any child, it returns a *placement.Error. If the parent's host
// is restarting, the flow waits for it and learns then whether it has enough memory.
func (f *Flows) Place(view raftstore.Reader, n *Order) error {
	n.Unplaced = map[string]string{}
	if n.Mode == Warm { // the child takes the parent's place
		placeOn(n.Children[0], n.Parent.HostID)
		return nil
	}
	restarting := f.Hosts.Restarting(n.Parent.HostID)
	unknown := restarting || f.Hosts.Warming(view)
	store := f.hasStore(n.Parent.HostID)
	var last error
	for _, c := range n.Children {
		_, err := f.Hosts.Place(view, c.ID, 1, placement.Request{Size: sizeOf(n.Parent), Only: n.Parent.HostID})
		if err != nil && store && !restarting {
			if err = f.Hosts.Choosable(view, f.requestElsewhere(n.Parent, n.Parent.HostID)); err == nil {
				continue
			}
		}
		var none *placement.Error
		switch {
		case err == nil, unknown && errors.As(err, &none):
			placeOn(c, n.Parent.HostID)
		case errors.As(err, &none):
			last = err
			n.Unplaced[c.ID] = none.Error()
		default:
			f.Unplace(n)
			return err
		}
	}
	if len(n.Unplaced) == len(n.Children) {
		return last
	}
	return nil
}

// Unplace releases Place's reservations, if the rows were not committed.
func (f *Flows) Unplace(n *Order) {
	for _, c := range n.Children {
		f.Hosts.Release(c.ID)
	}
}

func (f *Flows) hasStore(hostID string) bool {
	s, _ := f.Hosts.Session(hostID)
	return s.Heartbeat.Store
}

// requestElsewhere returns the requirements of a child that fetches the capture from
// the store.
func (f *Flows) requestElsewhere(like *record.Sandbox, tried ...string) placement.Request {
	return placement.Request{Size: sizeOf(like), Stored: true, Exclude: tried}
}

func sizeOf(s *record.Sandbox) *placement.Template {
	return &placement.Template{CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB}
}

func placeOn(c *record.Sandbox, hostID string) { c.HostID, c.Generation = hostID, 1 }

// Begin adds the children and their fork to a transaction.
func (f *Flows) Begin(tx *raftstore.Tx, n *Order) error {
	data := Fork{
		Data: resource.Data{RequestID: n.RequestID, IdempotencyKeyID: n.IdempotencyKeyID}, Mode: n.Mode,
		ParentID: n.Parent.ID, HostID: n.Parent.HostID, Generation: n.Parent.Generation,
		Begun: tx.Now(), MemoryMB: n.Parent.MemoryMB,
	}
	for _, c := range n.Children {
		child := Child{ID: c.ID}
		if why, none := n.Unplaced[c.ID]; none {
			child.Error, child.Reason = why, reasonFull
		} else {
			c.StartedBy = Subject(n.Group)
			raftstore.Put(tx, record.Sandboxes, c)
		}
		data.Children = append(data.Children, child)
	}
	step := stepStart
	if n.Mode == Warm {
		step = stepWarm
	}
	return flow.Begin(tx, flow.New{
		ID: n.FlowID, Kind: KindFork, Subject: Subject(n.Group), Step: step, Data: data, Deadline: tx.Now().Add(Deadline),
	})
}

// groupOf returns the id of a flow's group, which is also that of its capture.
func groupOf(fl *record.Flow) string { return strings.TrimPrefix(fl.Subject, subjectPrefix) }

// starting returns a child that the fork has not started yet.
func starting(r raftstore.Reader, fl *record.Flow, id string) (*record.Sandbox, bool) {
	s, ok := raftstore.Get(r, record.Sandboxes, id)
	return s, ok && s.Status == record.SandboxStarting && s.StartedBy == fl.Subject
}

// passing reports whether it is worth asking the same host again.
func (f *Flows) passing(run flow.Run, hostID string, err error) bool {
	return f.Hosts.Passing(run.View, hostID, run.Flow.Attempt, err)
}

func childName(i int, id string) string { return fmt.Sprintf("%d (%s)", i, hostapi.ShortID(id)) }
