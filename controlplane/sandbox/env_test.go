package sandbox_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// variables returns an environment of the largest size, of largest variables. JSON needs
// six bytes for each byte of their values.
func variables() map[string]string {
	env := map[string]string{}
	for i := range hostapi.MaxEnv / hostapi.MaxVariable {
		name := fmt.Sprintf("V%d", i)
		env[name] = strings.Repeat("\x01", hostapi.MaxVariable-len(name)-len("=")-1)
	}
	return env
}

func with(env map[string]string, name, value string) map[string]string {
	env = maps.Clone(env)
	env[name] = value
	return env
}

// envs returns the ids of all environments.
func envs(p *testplane.Plane) map[string]bool {
	ids := map[string]bool{}
	for _, part := range raftstore.All(p.Leader().Store.View(), record.EnvParts) {
		ids[part.EnvID] = true
	}
	return ids
}

// The error about an environment that is too large names the variable and the limit,
// also where a snapshot's variables are in the way.
func TestTheLimitsOfAnEnvironment(t *testing.T) {
	r := testplane.NewRig(t, 1)
	most := strings.Repeat("v", hostapi.MaxVariable-len("LARGE=")-1)
	r.Must(t, api.CreateSandbox{Env: map[string]string{"LARGE": most}})
	sb := r.Must(t, api.CreateSandbox{Env: variables()})
	if got := r.H1.Env(sb.ID); !maps.Equal(got, variables()) {
		t.Errorf("the host got %d variables", len(got))
	}
	snap, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	many := map[string]string{}
	for i := range hostapi.MaxVariables + 1 {
		many["V"+strconv.Itoa(i)] = ""
	}
	for name, c := range map[string]struct {
		in    api.CreateSandbox
		named []string
	}{
		"a variable":               {api.CreateSandbox{Env: map[string]string{"SMALL": "x", "LARGE": most + "v"}}, []string{"LARGE", strconv.Itoa(hostapi.MaxVariable)}},
		"all together":             {api.CreateSandbox{Env: with(variables(), "SMALL", "")}, []string{"V0", strconv.Itoa(hostapi.MaxEnv)}},
		"with that of a snapshot":  {api.CreateSandbox{Env: map[string]string{"MINE": ""}, FromSnapshot: snap.ID}, []string{"V0", strconv.Itoa(hostapi.MaxEnv)}},
		"the number of its values": {api.CreateSandbox{Env: many}, []string{strconv.Itoa(hostapi.MaxVariables)}},
	} {
		c.in.Template = "base"
		_, err := r.Create(t.Context(), testplane.Caller, c.in, core.Idempotency{})
		e := testplane.Want(t, err, apierror.EInvalid, "invalid env")
		for _, want := range c.named {
			if !strings.Contains(e.Detail, want) {
				t.Errorf("%s: detail %q", name, e.Detail)
			}
		}
	}
}

// A large environment is in the log once. What has it survives a change of the leader, and
// the environment goes with the last of it.
func TestALargeEnvironmentIsKeptOnce(t *testing.T) {
	r := testplane.NewRig(t, 3)
	sb := r.Must(t, api.CreateSandbox{Env: variables()})
	snap, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	row, _ := r.Sandbox(sb.ID)
	if raw, err := json.Marshal(row); err != nil || len(raw) > 2<<10 {
		t.Errorf("the sandbox's record has %d bytes, %v", len(raw), err)
	}

	old := r.Leader()
	r.Cut(old)
	testcluster.Await(t, "another leader that has heard the host", func() bool {
		_, heard := r.LeaderNode().Hosts.Sessions()["h1"]
		return r.Leader() != old && heard
	})
	r.Heal(old)
	n := r.LeaderNode()
	tree, err := n.Forks.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{Count: new(2)}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(envs(r.Plane)); n != 1 {
		t.Errorf("there are %d environments of a sandbox, its snapshot and its children", n)
	}
	from, err := n.Sandboxes.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: snap.ID, Env: map[string]string{"V0": "mine"}}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]map[string]string{
		sb.ID: variables(), tree.Children[0].ID: variables(), tree.Children[1].ID: variables(), from.ID: with(variables(), "V0", "mine"),
	} {
		if got := r.H1.Env(id); !maps.Equal(got, want) {
			t.Errorf("the host got %d variables for %s", len(got), id)
		}
	}

	left := func(step string, want int) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", step, err)
		}
		if n := len(envs(r.Plane)); n != want {
			t.Errorf("after %s there are %d environments, want %d", step, n, want)
		}
	}
	err = n.Sandboxes.Delete(t.Context(), testplane.Caller, from.ID)
	left("the sandbox from the snapshot", 1)
	err = n.Sandboxes.Delete(t.Context(), testplane.Caller, sb.ID)
	left("the parent", 1)
	for _, c := range tree.Children {
		err = n.Sandboxes.Delete(t.Context(), testplane.Caller, c.ID)
		left("a child", 1)
	}
	err = n.Snapshots.Delete(t.Context(), testplane.Caller, snap.ID)
	left("the snapshot", 0)
}

// What a workspace has of large environments is limited; small ones, and other workspaces,
// do not count.
func TestLargeEnvironmentsOfAWorkspaceAreLimited(t *testing.T) {
	r := testplane.NewRig(t, 1)
	parent := r.Must(t, api.CreateSandbox{Env: variables()})
	// All that there may be, but two of the largest.
	r.Change(r.Must(t, api.CreateSandbox{}).ID, func(s *record.Sandbox) { s.EnvBytes = 29 << 20 })
	fork := func(children int) error {
		_, err := r.Node.Forks.Fork(t.Context(), testplane.Caller, parent.ID, api.Fork{Count: &children}, core.Idempotency{})
		return err
	}
	e := testplane.Want(t, fork(3), apierror.ERateLimited, "environments too large")
	if e.Fields["max_bytes"] != 32<<20 || e.Fields["used_bytes"] != 30<<20 {
		t.Errorf("fields %v", e.Fields)
	}
	if err := fork(1); err != nil {
		t.Errorf("there is room for two: %v", err)
	}
	if _, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, parent.ID, api.CreateSnapshot{}, core.Idempotency{}); err != nil {
		t.Errorf("there is room for one: %v", err)
	}
	_, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, parent.ID, api.CreateSnapshot{}, core.Idempotency{})
	testplane.Want(t, err, apierror.ERateLimited, "environments too large")
	in := api.CreateSandbox{Template: "base", Env: map[string]string{"A": strings.Repeat("x", record.LargeEnv-len("A=")-1)}}
	_, err = r.Create(t.Context(), testplane.Caller, in, core.Idempotency{})
	testplane.Want(t, err, apierror.ERateLimited, "environments too large")
	if _, err := r.Create(t.Context(), testplane.Stranger, in, core.Idempotency{}); err != nil {
		t.Errorf("in another workspace: %v", err)
	}
	in.Env["A"] = in.Env["A"][1:]
	if _, err := r.Create(t.Context(), testplane.Caller, in, core.Idempotency{}); err != nil {
		t.Errorf("a small one: %v", err)
	}
}

// A sandbox of an earlier version has its environment in its own record.
func TestAnEnvironmentOfAnEarlierVersion(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	want := map[string]string{"A": "<1>"}
	sealed, err := testplane.Sealer{}.Seal([]byte(`{"A":"<1>"}`), record.EnvContext(sb.ID))
	if err != nil {
		t.Fatal(err)
	}
	r.Change(sb.ID, func(s *record.Sandbox) { s.EnvSealed = sealed })
	forked, err := r.Node.Forks.Fork(t.Context(), testplane.Caller, sb.ID, api.Fork{Count: new(2)}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	from := r.Must(t, api.CreateSandbox{FromSnapshot: snap.ID})
	for _, id := range []string{forked.Children[0].ID, forked.Children[1].ID, from.ID} {
		if got := r.H1.Env(id); !maps.Equal(got, want) {
			t.Errorf("%s has %v", id, got)
		}
	}
	r.Settled(r.H1)
}

// A create that is refused leaves nothing of a large environment, and neither does one
// whose leader died before it had begun.
func TestNothingIsLeftOfALargeEnvironmentWithoutASandbox(t *testing.T) {
	r := testplane.NewRig(t, 3)
	other := r.Must(t, api.CreateSandbox{})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Volumes, &record.Volume{
			Meta: record.Meta{ID: "v"}, WorkspaceID: "ws", Name: "data", Status: record.ResourceCreating, HostID: "h1",
		})
		return nil
	})
	r.Update(func(tx *raftstore.Tx) error {
		v, _ := raftstore.Get(tx, record.Volumes, "v")
		v = v.Clone()
		v.Status, v.AttachedTo = record.ResourceReady, other.ID
		raftstore.Put(tx, record.Volumes, v)
		return nil
	})
	in := api.CreateSandbox{Template: "base", Env: variables(), Volumes: []api.VolumeMount{{Name: "data", MountPath: "/data"}}}
	_, err := r.Create(t.Context(), testplane.Caller, in, core.Idempotency{})
	testplane.Want(t, err, apierror.EConflict, "volume in use")
	if n := len(envs(r.Plane)); n != 0 {
		t.Errorf("%d environments are left of a refused create", n)
	}

	kept := r.Must(t, api.CreateSandbox{Env: variables()})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.EnvParts, &record.EnvPart{Meta: record.Meta{ID: "env-left/1"}, EnvID: "env-left"})
		return nil
	})
	old := r.Leader()
	r.Cut(old)
	testcluster.Await(t, "another leader", func() bool { return r.Leader() != old })
	r.Heal(old)
	testcluster.Await(t, "the end of what is left", func() bool { return !envs(r.Plane)["env-left"] })
	row, _ := r.Sandbox(kept.ID)
	if _, err := r.LeaderNode().Sandboxes.Flows.OpenEnv(r.Leader().Store.View(), kept.ID, row.EnvRef); err != nil {
		t.Error(err)
	}
}
