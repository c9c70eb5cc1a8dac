package template_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Tenants cannot see the platform's own templates.
func TestThePlatformsTemplatesAreNobodys(t *testing.T) {
	r := testplane.NewRig(t, 1)
	names := []string{"postgres-16", "postgres-16-4g", "app"}
	r.H1.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		for _, name := range names {
			*ts = append(*ts, hostapi.TemplateState{Name: name, BuildID: "of-" + name, Status: "ready", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
		}
	})
	testcluster.Await(t, "their records", func() bool {
		_, ok := template.Operators(r.Leader().Store.View(), names[1])
		return ok
	})
	s := r.Node.Templates
	for _, name := range names {
		_, err := s.Get(t.Context(), testplane.Caller, name)
		testplane.Want(t, err, apierror.ENotFound, "not found")
		testplane.Want(t, s.Delete(t.Context(), testplane.Caller, name), apierror.ENotFound, "not found")
		_, err = s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "mine", From: name}, core.Idempotency{})
		testplane.Want(t, err, apierror.EInvalid, "unknown template")
		_, err = s.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: name, From: "base"}, core.Idempotency{})
		testplane.Want(t, err, apierror.EConflict, "template name is taken")
		_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: name}, core.Idempotency{})
		testplane.Want(t, err, apierror.EInvalid, "unknown template")
	}
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "postgres"}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EInvalid, "unknown template"); strings.Contains(e.Detail, "postgres-16") {
		t.Error(e.Detail)
	}
	list, _, err := s.List(t.Context(), testplane.Caller, core.ListOptions{})
	if err != nil || len(list) != 1 || list[0].Name != "base" {
		t.Errorf("%+v, %v", list, err)
	}
}
