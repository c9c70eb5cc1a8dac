package app_test

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestDeploy(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 2, nil)
	a := r.create(func(in *api.CreateApp) {
		in.Env = map[string]string{"A": "1"}
		in.GitBranch, in.Port, in.BuildCommand = "main", new(8080), "npm i && npm run build"
	})
	if a.Status != api.AppCreated || a.SandboxID != "" || a.URL != "https://"+a.ID+".app.test/" {
		t.Errorf("a new app: %+v", a)
	}
	if _, err := r.apps().PutVariable(t.Context(), caller, a.ID, "KEY", api.PutAppVariable{Value: "hush", Secret: new(true)}); err != nil {
		t.Fatal(err)
	}
	first := r.deploy(a.ID)
	if first.Status != api.DeploymentQueued || first.GitRef != "main" || first.Trigger != api.TriggerAPI || first.Source != api.AppFromGit {
		t.Errorf("a new deployment: %+v", first)
	}
	d := r.ends(first.ID, record.DeploymentLive)
	if d.GitCommit != r.guests.plan.GitCommit || d.GitMessage != "First\n\nwords[31m" || d.GitAuthor != "A <a@b.c>" || d.Framework != "express" || d.Port != 8080 {
		t.Errorf("live: %+v", d)
	}
	var names []string
	for _, p := range d.Phases {
		names = append(names, p.Name)
		if p.DurationMS < 0 {
			t.Errorf("phase %+v", p)
		}
	}
	if got := len(names); got != 6 || names[0] != "queue" || names[1] != "sandbox" || names[2] != "source" || names[3] != "build" || names[4] != "artifact" || names[5] != "start" {
		t.Errorf("phases %q", names)
	}
	g := r.guests.at(d.SandboxID)
	if b := g.build; b.Git == nil || b.Git.URL != repo || b.Git.Ref != "main" || b.Env["KEY"] != "hush" || len(b.Secrets) != 1 || b.Port != 8080 || b.BuildCommand != "npm i && npm run build" {
		t.Errorf("built with %+v", b)
	}
	if g.run.Env["A"] != "1" || g.run.Port != 8080 || g.builds != 1 || g.starts != 1 {
		t.Errorf("run with %+v", g.run)
	}
	out, err := r.apps().Get(t.Context(), caller, a.ID)
	if err != nil || out.Status != api.AppRunning || out.SandboxID != d.SandboxID || out.DeploymentID != d.ID || out.Instances != 1 || out.Env["KEY"] != "********" {
		t.Errorf("app: %+v, %v", out, err)
	}
	if text, _ := r.host(d.SandboxID).Blob(d.LogBlob); string(text) != r.guests.lines && d.LogBlob == "" {
		t.Errorf("log %q is %q", d.LogBlob, text)
	}

	second := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	row := r.row(a.ID)
	if row.DeploymentID != second.ID || len(row.Instances) != 1 || row.Instances[0].SandboxID != second.SandboxID || row.Instances[0].Port != 8080 {
		t.Errorf("after the second: %+v", row)
	}
	if r.deployment(d.ID).Status != record.DeploymentLive {
		t.Error("the first is live no more")
	}
	r.settled(1)
}
