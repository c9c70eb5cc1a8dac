package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// worker is the only client of one workspace. It makes one call at a time, so
// that it knows what each sandbox must contain.
type worker struct {
	*soak
	name      string
	client    *api.Client
	random    *rand.Rand
	boxes     map[string]marks
	snapshots map[string]marks
	count     int
}

const (
	mostBoxes     = 4
	mostSnapshots = 2
	// callTime bounds one call; a call whose outcome must be known is repeated.
	callTime = 40 * time.Second
	journal  = "/root/journal"
)

// outcomeTime is when a repeated call has failed for good: it is longer than every
// fault and the recovery from it.
var outcomeTime = settleTime

func (k *soak) newWorker(ctx context.Context, i int) (*worker, error) {
	name := "soak" + strconv.Itoa(i)
	_, token, err := k.stack.NewToken(ctx, name)
	if err != nil {
		return nil, err
	}
	client, err := api.NewClient(nil, token, k.stack.URLs...)
	if err != nil {
		return nil, err
	}
	return &worker{
		soak: k, name: name, client: client, random: k.options.random(uint64(i) + 1),
		boxes: map[string]marks{}, snapshots: map[string]marks{},
	}, nil
}

// work makes one call after another until busy ends. It completes what it has
// begun, within ctx, so that the outcome is known.
func (w *worker) work(busy, ctx context.Context) error {
	things := []func(context.Context, string){
		w.append, w.append, w.append, w.appendDuringHibernate, w.pauseAndResume,
		w.hibernateAndWake, w.fork, w.snapshot, w.verify, w.verify, w.file, w.remove,
	}
	for wait(busy, upTo(w.random, 300*time.Millisecond)) {
		switch {
		case len(w.boxes) == 0 || len(w.boxes) < mostBoxes && w.random.IntN(4) == 0:
			w.create(ctx)
		default:
			pick(w.random, things)(ctx, pick(w.random, sortedKeys(w.boxes)))
		}
	}
	return nil
}

// once makes one call and counts it.
func (w *worker) once(ctx context.Context, kind string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	w.history.call(kind, refusal(err), time.Since(began))
	return err
}

func refusal(err error) string {
	if err == nil {
		return ""
	}
	if status := api.StatusOf(err); status != 0 {
		return strconv.Itoa(status)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer"
	}
	return "network"
}

// settled repeats a call until its outcome is known: success, or a refusal that
// means that nothing was done. The call must be safe to repeat.
func (w *worker) settled(ctx context.Context, kind string, call func(context.Context) error) error {
	var final error
	began, reported := time.Now(), false
	err := stack.Await(ctx, outcomeTime, 500*time.Millisecond, kind+" has an outcome", func(ctx context.Context) error {
		err := w.once(ctx, kind, call)
		if notStarted(err) && !reported && w.history.calmSince(began) {
			reported = true
			w.history.violate("%s: %s while nothing was broken: %v", w.name, kind, err)
		}
		switch status := api.StatusOf(err); {
		case err == nil:
			return nil
		case status == http.StatusConflict, status == http.StatusNotFound, status == http.StatusBadRequest:
			final = err
			return nil
		default:
			return err
		}
	})
	if err != nil && ctx.Err() == nil {
		w.history.violate("%s: %v", w.name, err)
	}
	return errors.Join(err, final)
}

// notStarted reports whether an error refuses a create or a fork that no host
// could start.
func notStarted(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && refused.Message == "sandbox failed to start"
}

// create creates a sandbox with a key, and sometimes repeats the call with the
// same key: the answer must be the same sandbox.
func (w *worker) create(ctx context.Context) {
	w.makeOne(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, newMarks())
}

func (w *worker) makeOne(ctx context.Context, in api.CreateSandbox, has marks) {
	key := w.mark()
	var made *api.Sandbox
	call := func(ctx context.Context) error {
		again, err := w.client.CreateSandbox(ctx, in, key)
		if err == nil && made != nil && made.ID != again.ID {
			w.history.violate("key %s made %s and then %s", key, hostapi.ShortID(made.ID), hostapi.ShortID(again.ID))
		}
		if err == nil {
			made = again
		}
		return err
	}
	if err := w.settled(ctx, "create", call); err != nil {
		return
	}
	w.boxes[made.ID] = has
	if w.random.IntN(3) == 0 {
		_ = w.once(ctx, "create again", call)
	}
}

// append runs a command that appends a line; see marks.
func (w *worker) append(ctx context.Context, id string) {
	w.appendSlowly(ctx, id, "")
}

func (w *worker) appendSlowly(ctx context.Context, id, before string) {
	mark := w.mark()
	err := w.once(ctx, "exec", func(ctx context.Context) error {
		r, err := w.client.Exec(ctx, id, api.Exec{Cmd: api.Shell(before + "echo " + mark + " >>" + journal)})
		if err == nil && (r.ExitCode != 0 || r.TimedOut) {
			return fmt.Errorf("exit code %d, timed out: %t: %s", r.ExitCode, r.TimedOut, r.Stderr)
		}
		return err
	})
	if err == nil {
		w.boxes[id].certain[mark] = true
	} else {
		w.boxes[id].maybe[mark] = true
	}
}

// appendDuringHibernate hibernates the sandbox while a command runs.
func (w *worker) appendDuringHibernate(ctx context.Context, id string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.appendSlowly(ctx, id, "sleep 1; ")
	}()
	wait(ctx, 500*time.Millisecond)
	_ = w.once(ctx, "hibernate", func(ctx context.Context) error {
		_, err := w.client.HibernateSandbox(ctx, id)
		return err
	})
	<-done
}

func (w *worker) pauseAndResume(ctx context.Context, id string) {
	err := w.once(ctx, "pause", func(ctx context.Context) error {
		_, err := w.client.PauseSandbox(ctx, id)
		return err
	})
	if err == nil {
		w.awake(ctx, id)
	}
}

func (w *worker) hibernateAndWake(ctx context.Context, id string) {
	err := w.once(ctx, "hibernate", func(ctx context.Context) error {
		_, err := w.client.HibernateSandbox(ctx, id)
		return err
	})
	if err == nil && w.random.IntN(2) == 0 {
		w.awake(ctx, id)
	}
}

// awake makes a sandbox run. It reports false for a doomed one, which it removes.
func (w *worker) awake(ctx context.Context, id string) bool {
	err := stack.Await(ctx, outcomeTime, 500*time.Millisecond, "sandbox "+hostapi.ShortID(id)+" runs", func(ctx context.Context) error {
		return w.oneStepToRunning(ctx, id)
	})
	if w.history.isDoomed(id) {
		w.forget(ctx, id)
		return false
	}
	if err != nil && ctx.Err() == nil {
		w.history.violate("%s: %v", w.name, err)
		delete(w.boxes, id)
	}
	return err == nil
}

func (w *worker) oneStepToRunning(ctx context.Context, id string) error {
	if w.history.isDoomed(id) {
		return nil
	}
	var status api.SandboxStatus
	err := w.once(ctx, "get", func(ctx context.Context) error {
		s, err := w.client.GetSandbox(ctx, id)
		if err != nil {
			return err
		}
		if status = s.Status; s.Error != nil {
			return fmt.Errorf("it is %s: %s", status, *s.Error)
		}
		return nil
	})
	move := map[api.SandboxStatus]func(context.Context, string) (*api.Sandbox, error){
		api.SandboxPaused: w.client.ResumeSandbox, api.SandboxHibernated: w.client.WakeSandbox,
	}[status]
	switch {
	case err != nil:
		return err
	case status == api.SandboxRunning:
		return nil
	case move == nil:
		return fmt.Errorf("it is %s", status)
	}
	return w.once(ctx, "wake", func(ctx context.Context) error {
		_, err := move(ctx, id)
		return err
	})
}

// fork creates two children, which must have all that the parent has.
func (w *worker) fork(ctx context.Context, id string) {
	if len(w.boxes) >= mostBoxes || !w.awake(ctx, id) {
		return
	}
	key, has, two, began := w.mark(), w.boxes[id].inherited(), 2, time.Now()
	var tree *api.ForkedTree
	err := w.settled(ctx, "fork-tree", func(ctx context.Context) error {
		again, err := w.client.ForkTree(ctx, id, api.ForkTree{Count: &two}, key)
		if err == nil {
			tree = again
		}
		return err
	})
	if err != nil {
		return
	}
	if len(tree.Failed) > 0 && w.history.calmSince(began) {
		w.history.violate("%s: children of a fork failed while nothing was broken: %+v", w.name, tree.Failed)
	}
	for _, child := range tree.Children {
		w.boxes[child.ID] = has.inherited()
	}
}

// snapshot takes a snapshot, or creates a sandbox from an earlier one.
func (w *worker) snapshot(ctx context.Context, id string) {
	if len(w.snapshots) >= mostSnapshots {
		kept := pick(w.random, sortedKeys(w.snapshots))
		if len(w.boxes) < mostBoxes {
			w.makeOne(ctx, api.CreateSandbox{Template: stack.BaseTemplate, FromSnapshot: kept}, w.snapshots[kept].inherited())
		}
		err := w.settled(ctx, "rm snapshot", func(ctx context.Context) error { return w.client.DeleteSnapshot(ctx, kept) })
		if err == nil || api.StatusOf(err) == http.StatusNotFound {
			delete(w.snapshots, kept)
		}
		return
	}
	if !w.awake(ctx, id) {
		return
	}
	key, has := w.mark(), w.boxes[id].inherited()
	var made *api.Snapshot
	err := w.settled(ctx, "snapshot", func(ctx context.Context) error {
		again, err := w.client.CreateSnapshot(ctx, id, api.CreateSnapshot{}, key)
		if err == nil {
			made = again
		}
		return err
	})
	if err == nil {
		w.snapshots[made.ID] = has
	}
}

// verify compares a sandbox's journal with what must be in it.
func (w *worker) verify(ctx context.Context, id string) {
	if !w.awake(ctx, id) {
		return
	}
	var content string
	err := stack.Await(ctx, outcomeTime, 500*time.Millisecond, "the journal of "+hostapi.ShortID(id)+" is read", func(ctx context.Context) error {
		return w.once(ctx, "exec", func(ctx context.Context) error {
			r, err := w.client.Exec(ctx, id, api.Exec{Cmd: api.Shell("touch " + journal + " && cat " + journal)})
			if err != nil {
				if w.history.isDoomed(id) {
					return nil
				}
				return err
			}
			content = r.Stdout
			return nil
		})
	})
	switch {
	case w.history.isDoomed(id):
		w.forget(ctx, id)
	case err != nil && ctx.Err() == nil:
		w.history.violate("%s: %v", w.name, err)
	case err == nil:
		for _, wrong := range w.boxes[id].judge(content) {
			w.history.violate("sandbox %s: %s", hostapi.ShortID(id), wrong)
		}
	}
}

// file writes a file and reads it back: it must be complete, or have been
// refused.
func (w *worker) file(ctx context.Context, id string) {
	const path = "/root/data"
	content := strings.Repeat(w.mark(), 2000)
	err := w.once(ctx, "put file", func(ctx context.Context) error {
		_, err := w.client.WriteFile(ctx, id, path, "", strings.NewReader(content), int64(len(content)))
		return err
	})
	if err != nil {
		return
	}
	_ = w.once(ctx, "get file", func(ctx context.Context) error {
		f, err := w.client.ReadFile(ctx, id, path)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		if string(b) != content {
			w.history.violate("sandbox %s: %s differs from what was written", hostapi.ShortID(id), path)
		}
		return nil
	})
}

func (w *worker) remove(ctx context.Context, id string) {
	if w.random.IntN(3) == 0 {
		w.forget(ctx, id)
	}
}

// forget deletes a sandbox for good.
func (w *worker) forget(ctx context.Context, id string) {
	err := w.settled(ctx, "delete", func(ctx context.Context) error { return w.client.DeleteSandbox(ctx, id) })
	if err == nil || api.StatusOf(err) == http.StatusNotFound {
		delete(w.boxes, id)
	}
}

// verifyAll checks every sandbox, and that the list has no others.
func (w *worker) verifyAll(ctx context.Context) {
	for _, id := range sortedKeys(w.boxes) {
		w.verify(ctx, id)
	}
	listed := map[string]bool{}
	for s, err := range w.client.Sandboxes(ctx) {
		if err != nil {
			if ctx.Err() == nil {
				w.history.violate("%s: list: %v", w.name, err)
			}
			return
		}
		listed[s.ID] = true
		if _, known := w.boxes[s.ID]; !known {
			w.history.violate("sandbox %s (%s) is listed, but was never acknowledged or was deleted", hostapi.ShortID(s.ID), s.Status)
		}
	}
	for id := range w.boxes {
		if !listed[id] {
			w.history.violate("sandbox %s was acknowledged but is not listed", hostapi.ShortID(id))
		}
	}
}

// deleteAll deletes every sandbox, known or not.
func (w *worker) deleteAll(ctx context.Context) {
	for s, err := range w.client.Sandboxes(ctx) {
		if err != nil {
			return
		}
		w.forget(ctx, s.ID)
	}
	for _, id := range sortedKeys(w.snapshots) {
		_ = w.settled(ctx, "rm snapshot", func(ctx context.Context) error { return w.client.DeleteSnapshot(ctx, id) })
	}
}

// mark returns a word that is used only once, by any worker.
func (w *worker) mark() string {
	w.count++
	return w.name + "-" + strconv.Itoa(w.count)
}
