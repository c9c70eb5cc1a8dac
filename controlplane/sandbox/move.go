package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The steps of a move to another host, under the same id.
//
//	sleep ──► leave ──► choose ──► arrive ──► settle
//	  │         │         ▲ │        │ refused, unreachable: the next host
//	  │         │         └─┼────────┘
//	  └─────────┴───────────┴──► stay ──► settle
//
// From leave on, the box does not wake where it is, whoever asks, so the capture in the
// snapshot store is all that it is. The commit of arrive gives the row its new host and a
// higher generation; before that the box there only sleeps. So no two run at any time.
const (
	stepSleep  = "sleep"  // it is hibernated, if it runs
	stepLeave  = "leave"  // it wakes no more where it is, and is captured and stored
	stepChoose = "choose" // another host
	stepArrive = "arrive" // a hibernated box there
	stepStay   = "stay"   // it may wake again where it is
	stepSettle = "settle" // it is woken, if it ran, and what is no longer needed is removed
)

const kindMove = "sandbox.move"

// moveDeadline limits a move until it arrives, over all the hosts that it tries. The
// saved memory of a large sandbox goes through the snapshot store twice.
var moveDeadline = timescale.Limit(30 * time.Minute)

// settleLook is how often it is looked whether the host of one that is to wake is back,
// beside every change of a sandbox.
const settleLook = 10 * time.Second

// maxRounds limits how often one is put to sleep that others wake again.
const maxRounds = 3

// move is the data of a move.
type move struct {
	From     boxRef   `json:"from"`
	Awake    bool     `json:"awake,omitempty"` // it ran, and runs there again
	Term     *term    `json:"term,omitempty"`  // then
	Capture  string   `json:"capture"`
	Manifest string   `json:"manifest,omitempty"`
	Rounds   int      `json:"rounds,omitempty"`
	Tried    []string `json:"tried,omitempty"` // hosts that failed or refused
	Refusal  string   `json:"refusal,omitempty"`
	// Evacuation is when that began for which it moves.
	Evacuation time.Time `json:"evacuation,omitzero"`
	// Rebalance is when that began for which it moves, asleep, to this host or to none.
	Rebalance time.Time `json:"rebalance,omitzero"`
	To        string    `json:"to,omitempty"`
	Why       string    `json:"why,omitempty"` // it stays
}

// capturePrefix is that of the captures of moves, which are named after their flow.
const capturePrefix = "mv-"

// MoveNeeds reports whether a capture, or the object of that name in the snapshot
// store, is what a sandbox moves by.
func MoveNeeds(r raftstore.Reader, id string) bool {
	name, ok := strings.CutPrefix(id, capturePrefix)
	if !ok {
		return false
	}
	fl, live := raftstore.Get(r, record.Flows, "flow-"+name)
	return live && fl.Kind == kindMove
}

// MoveStored is MoveNeeds for the objects in the snapshot store.
func MoveStored(r raftstore.Reader) func(id string) bool {
	return func(id string) bool { return MoveNeeds(r, id) }
}

func (f *Flows) moveKind() flow.Kind {
	return flow.Kind{
		Name: kindMove, Expire: stepStay, ActTimeout: moveDeadline,
		Host: func(r raftstore.Reader, fl *record.Flow) string {
			s, ok := Resource.Of(r, fl)
			switch {
			case !ok, fl.Step == stepChoose:
				return ""
			case fl.Step == stepArrive && s.Move != nil:
				return s.Move.To
			}
			return s.HostID
		},
		Steps: map[string]flow.Step{
			stepSleep: f.fallAsleep, stepLeave: f.leave, stepChoose: f.chooseNext, stepArrive: f.arrive, stepStay: f.stay, stepSettle: f.settle,
		},
	}
}

// beginMove begins to move a sandbox, in the transaction that has found that it may. data
// says what for.
func beginMove(tx *raftstore.Tx, s *record.Sandbox, data move) error {
	id := flow.NewID()
	data.From, data.Awake, data.Term = boxRef{HostID: s.HostID, Generation: s.Generation}, s.Status == record.SandboxRunning, termOf(s)
	data.Capture = capturePrefix + strings.TrimPrefix(id, "flow-")
	c := s.Clone()
	c.Move, c.MoveError = &record.Move{}, ""
	raftstore.Put(tx, record.Sandboxes, c)
	return flow.Begin(tx, flow.New{
		ID: id, Kind: kindMove, Subject: Resource.Subject(s.ID), Step: stepSleep, Deadline: tx.Now().Add(moveDeadline),
		Data: data,
	})
}

// moving finds the sandbox that a flow moves, until it has arrived or stays.
func moving(r raftstore.Reader, fl *record.Flow) (*record.Sandbox, bool) {
	s, ok := Resource.Of(r, fl)
	return s, ok && s.Move != nil && s.Status != record.SandboxDeleting
}

// moveStep begins a step: its data, and the sandbox, unless there is nothing to move.
func moveStep(run flow.Run, data *move) (*record.Sandbox, bool, error) {
	if err := run.Data(data); err != nil {
		return nil, false, err
	}
	s, ok := moving(run.View, run.Flow)
	return s, ok, nil
}

func next(n flow.Next) flow.Commit {
	return func(*raftstore.Tx) (flow.Next, error) { return n, nil }
}

// stays ends a move whose sandbox stays where it is.
func (m move) stays(why string) flow.Commit {
	m.Why = why
	return next(flow.Goto(stepStay, m))
}

// givenUp reports whether the operator no longer wants the host empty.
func (m move) givenUp(r raftstore.Reader) bool {
	if m.rebalances() {
		return false
	}
	h, ok := raftstore.Get(r, record.Hosts, m.From.HostID)
	return ok && h.Evacuation == nil
}

// rebalances reports whether a sandbox moves for a rebalancing. Then it is never put to
// sleep for it.
func (m move) rebalances() bool { return !m.Rebalance.IsZero() }

// underWay reports whether a sandbox is all in the snapshot store, and the host that it
// leaves is lost or gone. Then it can only arrive elsewhere, however long that takes: what
// is in the store may be all that there is.
func (m move) underWay(r raftstore.Reader) bool {
	return m.Manifest != "" && lost(r, m.From.HostID)
}

func lost(r raftstore.Reader, hostID string) bool {
	h, ok := raftstore.Get(r, record.Hosts, hostID)
	return !ok || h.State == record.HostLost
}

const (
	whyGivenUp = "the evacuation was given up"
	whyAwake   = "it has been woken"
)

// moveFailed is the commit after a host's error: the step again, or the end of the move.
func (f *Flows) moveFailed(ctx context.Context, run flow.Run, data move, hostID string, err error) (flow.Commit, error) {
	if hosts.Superseded(ctx, err) || f.Hosts.Passing(run.View, hostID, run.Flow.Attempt, err) {
		return nil, err
	}
	f.Logger.WarnContext(ctx, "sandbox does not move", "sandbox_id", hostapi.ShortID(Resource.ID(run.Flow)), "agent_id", hostID, "step", run.Flow.Step, "error", err)
	return data.stays(refusalOf(err)), nil
}

// refusalOf returns what a host says, without what only its log should say.
func refusalOf(err error) string {
	var refusal *hostapi.Error
	switch {
	case hosts.Unreachable(err):
		return "its host does not answer"
	case errors.As(err, &refusal):
		return "its host refuses: " + refusal.Message
	}
	return "its host failed to save it"
}

// fallAsleep hibernates a sandbox that runs.
func (f *Flows) fallAsleep(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data move
	s, ok, err := moveStep(run, &data)
	switch {
	case err != nil || !ok:
		return resource.Finish, err
	case data.givenUp(run.View):
		return data.stays(whyGivenUp), nil
	case s.Status == record.SandboxHibernated:
		return next(flow.Goto(stepLeave, data)), nil
	case s.Status != record.SandboxRunning:
		return data.stays("it is " + string(s.Status)), nil
	case data.rebalances():
		return data.stays(whyAwake), nil
	}
	data.Awake, data.Term = true, termOf(s)
	_, err = (&Transitions{Core: f.Core}).While(ctx, s, Hibernate)
	var illegal *IllegalError
	switch {
	case err == nil, errors.As(err, &illegal) && illegal.Status == record.SandboxHibernated:
		return next(flow.Goto(stepLeave, data)), nil
	case errors.Is(err, ErrGone):
		return resource.Finish, nil
	case errors.As(err, &illegal):
		return data.stays("it is " + string(illegal.Status)), nil
	}
	return f.moveFailed(ctx, run, data, s.HostID, err)
}

// leave keeps the sandbox from waking where it is, and stores all that it is.
func (f *Flows) leave(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data move
	s, ok, err := moveStep(run, &data)
	switch {
	case err != nil || !ok:
		return resource.Finish, err
	case data.givenUp(run.View):
		return data.stays(whyGivenUp), nil
	}
	var stored hostapi.Capture
	err = f.Hosts.Call(ctx, s.HostID, func(ctx context.Context, c *hosts.Client) error {
		if _, err := c.UpdateBox(ctx, s.ID, hostapi.BoxUpdate{Leaving: new(true)}); err != nil {
			return err
		}
		if _, err := c.PutCapture(ctx, data.Capture, hostapi.CaptureSpec{BoxID: s.ID, Generation: s.Generation, Memory: true}); err != nil {
			return err
		}
		var err error
		stored, err = c.StoreCapture(ctx, data.Capture)
		return err
	})
	switch {
	case err == nil:
		data.Manifest = stored.Manifest
		return next(flow.Goto(stepChoose, data)), nil
	case hostapi.HasCode(err, hostapi.CodeIllegalState) && data.Rounds < maxRounds:
		data.Rounds++ // it was woken before the move began, and its row lagged behind
		if _, rerr := (&Transitions{Core: f.Core}).Refresh(ctx, s); rerr != nil {
			return f.moveFailed(ctx, run, data, s.HostID, rerr)
		}
		return next(flow.Goto(stepSleep, data)), nil
	}
	return f.moveFailed(ctx, run, data, s.HostID, err)
}

// chooseNext chooses a host as a create does, among those with the snapshot store.
func (f *Flows) chooseNext(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data move
	s, ok, err := moveStep(run, &data)
	switch {
	case err != nil || !ok:
		return resource.Finish, err
	case data.givenUp(run.View) && !data.underWay(run.View):
		return data.stays(whyGivenUp), nil
	}
	if data.underWay(run.View) {
		data.To = "" // better anywhere than nowhere
	}
	generation := max(s.Generation, s.MoveTried) + 1
	choice, err := f.Hosts.Place(run.View, s.ID, generation, placement.Request{
		Template: TemplateOf(s), Exclude: append(slices.Clone(data.Tried), data.From.HostID), Only: data.To, Stored: true,
		Size: &placement.Template{CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: s.DiskMB},
	})
	var none *placement.Error
	switch {
	case errors.As(err, &none) && data.underWay(run.View):
		data.Tried = nil
		return next(flow.Wait(stepChoose, settleLook, data, record.Hosts.Name).By(f.Clock().Add(moveDeadline))), nil
	case errors.As(err, &none) && !f.Hosts.Warming(run.View) && data.Refusal != "":
		return data.stays(data.Refusal), nil
	case errors.As(err, &none) && !f.Hosts.Warming(run.View):
		if data.To != "" {
			return data.stays("the host " + data.To + " has no room for it now"), nil
		}
		return data.stays("no other host with a snapshot store has room for it"), nil
	case err != nil:
		return nil, err
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := moving(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c := s.Clone()
		c.Move.To, c.Move.Generation, c.MoveTried = choice.HostID, generation, generation
		raftstore.Put(tx, record.Sandboxes, c)
		return flow.Goto(stepArrive, data), nil
	}, nil
}

// arrive makes the hibernated box on the chosen host. Its commit is the move.
func (f *Flows) arrive(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data move
	s, ok, err := moveStep(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	env, err := f.OpenEnv(run.View, s.ID, s.EnvRef)
	if err != nil {
		return nil, err
	}
	if err := f.awaitHost(ctx, run.View, s.Move.To); err != nil {
		return nil, err
	}
	var box hostapi.Box
	err = f.Hosts.Call(ctx, s.Move.To, func(ctx context.Context, c *hosts.Client) error {
		var err error
		box, err = f.Hosts.PutBox(ctx, c, s.ID, hostapi.BoxSpec{
			Generation: s.Move.Generation, WorkspaceID: s.WorkspaceID, Template: TemplateOf(s), Env: env,
			Persistent: s.Persistent, Exclusive: s.Exclusive,
			Capture: data.Capture, Manifest: data.Manifest, Asleep: true,
		})
		if err == nil && box.Status != hostapi.StatusHibernated {
			err = fmt.Errorf("box is %s: %s", box.Status, box.Error)
		}
		if m, owned := f.movesOf(s); err == nil && owned {
			err = m.Arrive(ctx, run.View, s, c)
		}
		return err
	})
	switch {
	case err == nil:
		return f.moved(run, data, box), nil
	case hosts.Superseded(ctx, err), f.Hosts.Passing(run.View, s.Move.To, run.Flow.Attempt, err):
		return nil, err
	}
	f.Logger.WarnContext(ctx, "sandbox does not arrive", "sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.Move.To, "error", err)
	f.Clean(ctx, s.ID, s.Move.To, s.Move.Generation)
	f.Hosts.Release(s.ID)
	data.Tried = append(slices.Clone(data.Tried), s.Move.To)
	data.Refusal = "no host takes it: " + refusalThere(err)
	return next(flow.Goto(stepChoose, data)), nil
}

func refusalThere(err error) string {
	var refusal *hostapi.Error
	switch {
	case errors.As(err, &refusal):
		return refusal.Message
	case hosts.Unreachable(err):
		return "the host does not answer"
	}
	return "the host failed to make it"
}

func (f *Flows) moved(run flow.Run, data move, box hostapi.Box) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := moving(tx, run.Flow)
		switch {
		case !ok:
			return flow.Done(), nil
		// A leaving box fails only because its host is away, or has lost it: all that it was
		// has arrived.
		case s.Status != record.SandboxHibernated && s.Status != record.SandboxFailed:
			data.Why = "it is " + string(s.Status)
			return flow.Goto(stepStay, data), nil
		}
		// The operator may be about to take this host out of service, too. What has arrived
		// there belongs to no row, and the inventory removes it.
		if to, known := raftstore.Get(tx, record.Hosts, s.Move.To); !known || to.Draining {
			data.Tried = append(slices.Clone(data.Tried), s.Move.To)
			return flow.Goto(stepChoose, data), nil
		}
		c, data := s.Clone(), data // the commit may run again
		data.Awake = data.Awake && !s.Move.Asleep
		c.HostID, c.Generation, c.Status, c.HostSeq = s.Move.To, s.Move.Generation, record.SandboxHibernated, box.Seq
		c.Move, c.MoveTried, c.MoveError, c.Error, c.Unreachable = nil, 0, "", "", false
		raftstore.Put(tx, record.Sandboxes, c)
		PutEnded(tx, s, data.From.HostID)
		count(tx, data.From.HostID, func(e *record.Evacuation) { e.Moved++ })
		data.countRebalance(tx, func(b *record.Rebalance) { b.Moved++ })
		return flow.Goto(stepSettle, data).By(tx.Now().Add(moveDeadline)), nil
	}
}

// count counts a move that has ended, which has the next one begun.
func count(tx *raftstore.Tx, hostID string, change func(*record.Evacuation)) {
	h, ok := raftstore.Get(tx, record.Hosts, hostID)
	if !ok || h.Evacuation == nil {
		return
	}
	h = h.Clone()
	change(h.Evacuation)
	raftstore.Put(tx, record.Hosts, h)
}

// stay lets a sandbox wake again where it is. Until its host has heard that, and while
// there is one, the move has not ended.
func (f *Flows) stay(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data move
	s, ok, err := moveStep(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	f.Hosts.Release(s.ID)
	if s.Move.To != "" {
		f.Clean(ctx, s.ID, s.Move.To, s.Move.Generation)
	}
	if data.underWay(run.View) {
		data.Why, data.Refusal, data.Tried = "", "", nil
		return next(flow.Sleep(stepChoose, time.Second, data).By(f.Clock().Add(moveDeadline))), nil
	}
	if _, known := raftstore.Get(run.View, record.Hosts, s.HostID); known {
		err := f.Hosts.Call(ctx, s.HostID, func(ctx context.Context, c *hosts.Client) error {
			ctx, cancel := context.WithTimeout(ctx, updateTimeout)
			defer cancel()
			_, err := c.UpdateBox(ctx, s.ID, hostapi.BoxUpdate{Leaving: new(false)})
			return err
		})
		if err != nil && !hostapi.HasCode(err, hostapi.CodeNotFound) {
			return nil, err
		}
	}
	if data.Why == "" {
		data.Why = "it took too long"
	}
	return func(tx *raftstore.Tx) (flow.Next, error) {
		s, ok := moving(tx, run.Flow)
		if !ok {
			return flow.Done(), nil
		}
		c, data := s.Clone(), data // the commit may run again
		data.Awake = data.Awake && !s.Move.Asleep
		c.Move, c.MoveError = nil, data.Why
		// An evacuation that has begun since this move tries the sandbox again, so nothing has failed in it yet.
		if h, ok := raftstore.Get(tx, record.Hosts, data.From.HostID); ok && h.Evacuation != nil && !h.Evacuation.Began.Equal(data.Evacuation) {
			c.MoveError = ""
		} else {
			count(tx, data.From.HostID, func(e *record.Evacuation) { e.Failed++ })
		}
		switch {
		case data.rebalances() && data.Why == whyAwake:
			c.MoveError = "" // nothing has failed
		case data.rebalances():
			data.countRebalance(tx, func(b *record.Rebalance) { b.Failed++ })
		}
		raftstore.Put(tx, record.Sandboxes, c)
		return flow.Goto(stepSettle, data), nil
	}, nil
}

// settle wakes a sandbox that ran, wherever it is now, and removes what the move leaves
// behind. What it cannot remove has no row, and the inventory finds it.
func (f *Flows) settle(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data move
	if err := run.Data(&data); err != nil {
		return nil, err
	}
	s, ok := Resource.Of(run.View, run.Flow)
	if !ok || s.Status == record.SandboxDeleting {
		return resource.Finish, nil
	}
	if _, known := raftstore.Get(run.View, record.Hosts, s.HostID); data.Awake && known && s.Status == record.SandboxFailed && (s.Unreachable || lost(run.View, s.HostID)) {
		// Its host is lost; it returns with the sandbox asleep, which was not its wish.
		return next(flow.Wait(stepSettle, settleLook, data, record.Sandboxes.Name)), nil
	}
	if data.Awake && s.Status == record.SandboxHibernated && !data.Term.over(s, f.Clock()) && f.MayGoOn(run.View, s.WorkspaceID) == nil {
		_, err := (&Transitions{Core: f.Core}).While(ctx, s, Wake)
		var illegal *IllegalError
		switch {
		case err == nil, errors.Is(err, ErrGone), errors.As(err, &illegal):
		case hosts.Superseded(ctx, err), f.Hosts.Passing(run.View, s.HostID, run.Flow.Attempt, err):
			return nil, err
		default: // its next use wakes it
			f.Logger.WarnContext(ctx, "sandbox that has moved does not wake", "sandbox_id", hostapi.ShortID(s.ID), "agent_id", s.HostID, "error", err)
		}
	}
	if s.HostID != data.From.HostID {
		f.Clean(ctx, s.ID, data.From.HostID, data.From.Generation)
		f.Logger.InfoContext(ctx, "sandbox has moved", "sandbox_id", hostapi.ShortID(s.ID), "from", data.From.HostID, "agent_id", s.HostID)
	}
	f.Hosts.Release(s.ID)
	for _, hostID := range []string{data.From.HostID, s.HostID} {
		f.dropCapture(ctx, hostID, data.Capture)
	}
	return data.Term.restore(Resource.ID(run.Flow)), nil
}

// staysAsleep has a move that is under way not wake a sandbox, which its owner has
// hibernated.
func (s *Sandboxes) staysAsleep(ctx context.Context, id string) error {
	if row, ok := raftstore.Get(s.core.Store.View(), record.Sandboxes, id); !ok || row.Move == nil {
		return nil
	}
	return s.core.Store.Update(context.WithoutCancel(ctx), func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Sandboxes, id)
		if !ok || row.Move == nil {
			return nil
		}
		c := row.Clone()
		c.Move.Asleep = true
		raftstore.Put(tx, record.Sandboxes, c)
		return nil
	})
}

func (f *Flows) dropCapture(ctx context.Context, hostID, id string) {
	ctx, cancel := context.WithTimeout(ctx, timescale.Limit(2*time.Second))
	defer cancel()
	err := f.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) error { return c.DeleteCapture(ctx, id, true) })
	if err != nil {
		f.Logger.InfoContext(ctx, "what a sandbox moved by is left to the inventory", "capture_id", id, "agent_id", hostID, "error", err)
	}
}

// ErrMoving means that a sandbox does not wake yet, because it is being moved to another
// host.
var ErrMoving = errors.New("the sandbox is being moved to another host")

// settled waits while a sandbox moves, and returns its row.
func (t *Transitions) settled(ctx context.Context, known *record.Sandbox) (*record.Sandbox, error) {
	for {
		view := t.Store.View()
		now, ok := raftstore.Get(view, record.Sandboxes, known.ID)
		switch {
		case !ok && known.Move == nil:
			return known, nil // it was created in a later view
		case !ok || now.WorkspaceID != known.WorkspaceID:
			return nil, ErrGone
		case now.Status == record.SandboxDeleting, now.Status == record.SandboxFailed && now.Move != nil:
			return nil, &IllegalError{Transition: Wake, Status: now.Status}
		case now.Move == nil && now.HostID == known.HostID:
			return known, nil
		case now.Move == nil:
			return now, nil
		}
		select {
		case <-view.Changed(record.Sandboxes.Name):
		case <-ctx.Done():
			return nil, ErrMoving
		}
	}
}
