package template

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Await waits until the shared template from which a sandbox is to be created is
// built, and begins its build if it has none. If the template does not exist, it
// returns nil, and the create reports the error.
func (s *Templates) Await(ctx context.Context, c core.Caller, name string) error {
	if reserved(name) {
		return nil
	}
	if err := s.awaitKnown(ctx, c, name); err != nil {
		return err
	}
	for requested := false; ; requested = true {
		view := s.core.Store.View()
		if _, ok := ownTemplate(view, c.WorkspaceID, name); ok {
			return nil
		}
		t, ok := Operators(view, name)
		switch {
		case !ok, t.BuildID != "":
			return nil
		case requested && t.Status == record.TemplateFailed:
			return Unbuildable(name, t.Error)
		}
		if err := s.buildOperators(ctx, c, name); err != nil {
			return err
		}
	}
}

// awaitKnown waits for the record of a shared template, as long as a host reports it
// or a new leader has not heard from all hosts.
func (s *Templates) awaitKnown(ctx context.Context, c core.Caller, name string) error {
	for {
		view := s.core.Store.View()
		if _, ok := usable(view, c.WorkspaceID, name); ok || IsKey(name) || reserved(name) {
			return nil
		}
		if !s.Flows.Known(name) && !s.core.Hosts.Warming(view) {
			return nil
		}
		if err := s.awaitChange(ctx, view); err != nil {
			return err
		}
	}
}

// awaitChange waits for a change of the templates or for a heartbeat.
func (s *Templates) awaitChange(ctx context.Context, view *raftstore.Snapshot) error {
	again := time.NewTimer(templatesAgain)
	defer again.Stop()
	select {
	case <-view.Changed(record.Templates.Name):
	case <-s.core.Hosts.Changed():
	case <-again.C: // leadership or warming may have ended
		if !s.core.Store.IsLeader() {
			return core.StoreError(raftstore.ErrLeadershipLost)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

const templatesAgain = 250 * time.Millisecond

// buildOperators joins or begins the build of a shared template, and waits for its
// end.
func (s *Templates) buildOperators(ctx context.Context, c core.Caller, name string) error {
	flowID := ""
	err := s.core.Update(ctx, func(tx *raftstore.Tx) (err error) {
		if err := s.core.MayUse(tx, c); err != nil {
			return err
		}
		flowID, err = s.Flows.Ask(tx, name, c.RequestID)
		return err
	})
	switch {
	case errors.Is(err, ErrNoSource):
		return &apierror.Error{Code: apierror.EBadGateway, Message: "no available compute node", Detail: "no host that can build the template is there", RetryAfter: time.Second, Err: err}
	case err != nil:
		return err
	case flowID == "":
		return nil
	}
	return s.core.Await(ctx, flowID, nil)
}

// askFor begins the build of the shared template that a new one is based on, if it
// has none.
func (s *Templates) askFor(tx *raftstore.Tx, c core.Caller, from string) error {
	t, ok := Operators(tx, from)
	if !ok || t.BuildID != "" {
		return nil
	}
	if _, err := s.Flows.Ask(tx, from, c.RequestID); err != nil {
		if errors.Is(err, ErrNoSource) {
			return apierror.Invalid("template is not ready", "no host that can build %s is there", from)
		}
		return err
	}
	return nil
}
