package pgedge

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A client that asks for too much is told so specifically: drivers and people react
// differently to that than to a database that does not serve.
func TestWhatClientsAreTold(t *testing.T) {
	busy := &hostapi.Error{Code: hostapi.CodeBusy, Message: "too many connections to this sandbox"}
	for name, c := range map[string]struct {
		err  error
		want pgsni.Refusal
	}{
		"a host that lets no more in": {fmt.Errorf("dial the host: %w", busy), pgsni.Refusal{Code: "53300", Message: "too many connections to this database"}},
		"a wake beyond the month's budget": {
			&apierror.Error{Code: apierror.ERateLimited, Message: "monthly budget exceeded", Detail: "what runs goes on"},
			pgsni.Refusal{Code: "53400", Message: "monthly budget exceeded", Detail: "what runs goes on"},
		},
		"a wake beyond the month's credit": {
			&apierror.Error{Code: apierror.EQuota, Message: "monthly free credit exhausted"}, pgsni.Refusal{Code: "53400", Message: "monthly free credit exhausted"},
		},
		"one that is gone": {errGone, pgsni.Refusal{Code: "57P03", Message: errGone.Message}},
	} {
		got, ok := errors.AsType[*pgsni.Refusal](refusal(c.err))
		if !ok || *got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for _, err := range []error{errors.New("10.0.0.7:7443: connection refused"), apierror.As(errors.New("internal"))} {
		if _, ok := errors.AsType[*pgsni.Refusal](refusal(err)); ok {
			t.Errorf("%v is told", err)
		}
	}
}

// The router bounds the clients of all of a workspace's databases together.
func TestADatabaseIsItsWorkspaces(t *testing.T) {
	reach := NewReach(ReachConfig{
		Lookup: func(id string) (Entry, bool) {
			return Entry{ID: id, WorkspaceID: "ws-1", Status: record.DatabaseReady, User: "app", Verifier: "SCRAM-SHA-256$"}, true
		},
		Latest: func(context.Context, string) (uint64, bool) { return 0, false },
	})
	defer reach.Close()
	b, err := (&resolver{reach: reach}).Resolve(t.Context(), "any")
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := b.(pgsni.Owned); !ok || o.Owner() != "ws-1" {
		t.Errorf("the owner of %T is not its workspace", b)
	}
}
