package sandbox_test

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
)

// The key of a command is its sender's, as the keys of other creates are.
func TestTheKeyOfACommandIsItsSenders(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	start := func(by string) (api.SandboxCommand, error) {
		i := core.Idempotency{Key: "k", BodySHA256: []byte("body"), By: by}
		return r.Commands.Start(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Argv("true")}, i)
	}
	first, err := start("user/ann")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := start("user/ann"); err != nil || again.ID != first.ID {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	_, err = start("user/bob")
	testplane.Want(t, err, apierror.EConflict, "idempotency key reused")
}
