package org_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// Keys that have expired count for no quota, so there may not be any number of them.
func TestAWorkspaceKeepsAFewExpiredKeys(t *testing.T) {
	tier.Slow(t)
	for _, tier := range []string{"free", ""} {
		r := newOrgRig(t, tier)
		ann := r.login("ann")
		const made = 130
		r.Update(func(tx *raftstore.Tx) error {
			for i := range made {
				for j, ws := range []string{ann.WorkspaceID, "ws-other"} {
					raftstore.Put(tx, record.APIKeys, &record.APIKey{
						Meta: record.Meta{ID: fmt.Sprintf("%s-%03d", ws, i)}, WorkspaceID: ws, Prefix: fmt.Sprintf("%d-%03d", j, i), ExpiresAt: r.now.Add(time.Duration(i-made) * time.Second),
					})
				}
			}
			raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "for ever"}, WorkspaceID: ann.WorkspaceID, Prefix: "ever"})
			return nil
		})
		names := func(ws string) (out []string) {
			for _, k := range raftstore.Find(r.Leader().Store.View(), record.APIKeys, "workspace", ws) {
				out = append(out, k.ID)
			}
			slices.Sort(out)
			return out
		}
		for range 4 {
			if _, err := r.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci"}, core.Idempotency{}); err != nil {
				t.Fatal(err)
			}
		}
		left := slices.DeleteFunc(names(ann.WorkspaceID), func(id string) bool { return id[:4] == "key-" || id == "for ever" })
		if len(left) != 50 || left[0] != fmt.Sprintf("%s-%03d", ann.WorkspaceID, made-50) {
			t.Errorf("tier %q: %d expired keys are left, the first is %q", tier, len(left), left[:min(1, len(left))])
		}
		if all := names(ann.WorkspaceID); len(all) != 50+1+4 {
			t.Errorf("tier %q: %d keys are left", tier, len(all))
		}
		if others := names("ws-other"); len(others) != made {
			t.Errorf("tier %q: another workspace has lost %d keys", tier, made-len(others))
		}
	}
}

// Any member sees the limits of a workspace, and what it has of them.
func TestMembersSeeTheLimitsOfAWorkspace(t *testing.T) {
	r := newOrgRig(t, "free")
	ann := r.login("ann")
	vera := r.join(ann, "vera", api.RoleViewer)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-1"}, WorkspaceID: ann.WorkspaceID, Name: "shop", Status: record.AppCreated})
		testcluster.PutVolume(tx, &record.Volume{Meta: record.Meta{ID: "vol-1"}, WorkspaceID: ann.WorkspaceID, Name: "data", HostID: "h1", SizeMB: 64, Status: record.ResourceReady})
		return nil
	})
	if _, err := r.CreateToken(t.Context(), ann, api.CreateToken{Name: "ci"}, core.Idempotency{}); err != nil {
		t.Fatal(err)
	}
	out, err := r.GetOrg(t.Context(), vera, ann.WorkspaceID)
	if err != nil || out.Tier != "free" || out.Role != api.RoleViewer || out.Limits.Apps == nil || *out.Limits.Apps != 3 {
		t.Errorf("%+v, %v", out, err)
	}
	if want := (api.WorkspaceUsage{Members: 2, Apps: 1, Keys: 1, VolumeMB: 64, DiskMB: 64}); out.Usage != want {
		t.Errorf("%+v, want %+v", out.Usage, want)
	}
}

// A key for an app that the workspace has not, maybe for its name, could do nothing.
func TestAKeyIsForAnAppOfItsWorkspace(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-mine"}, WorkspaceID: ann.WorkspaceID, Name: "shop", Status: record.AppCreated})
		raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-theirs"}, WorkspaceID: "ws-other", Name: "shop", Status: record.AppCreated})
		return nil
	})
	for scope, ok := range map[string]bool{"app:app-mine": true, "app:shop": false, "app:app-theirs": false} {
		in := api.CreateToken{Name: "ci", Scopes: []string{"volumes", scope}}
		_, err := r.CreateToken(t.Context(), ann, in, core.Idempotency{})
		_, err2 := r.CreateWorkspaceToken(t.Context(), ann.WorkspaceID, in, core.Idempotency{})
		for _, err := range []error{err, err2} {
			if ok {
				if err != nil {
					t.Errorf("%s: %v", scope, err)
				}
				continue
			}
			want(t, err, apierror.EInvalid, "invalid scopes")
			if detail := apierror.As(err).Detail; !strings.HasPrefix(detail, scope+": want app: and the id") {
				t.Errorf("detail %q", detail)
			}
		}
	}
}

// Who was let in before the removal makes no key after it: nobody would know of it.
func TestWhoIsRemovedMeanwhileMakesNoKey(t *testing.T) {
	r := newOrgRig(t, "")
	ann := r.login("ann")
	mel := r.join(ann, "mel", api.RoleMember)
	create := func() error {
		_, err := r.CreateToken(t.Context(), mel, api.CreateToken{Name: "ci"}, core.Idempotency{})
		return err
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.PatchMember(t.Context(), ann, ann.WorkspaceID, mel.UserID, api.PatchMember{Role: api.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	want(t, create(), apierror.EForbidden, "forbidden")
	if err := r.RemoveMember(t.Context(), ann, ann.WorkspaceID, mel.UserID); err != nil {
		t.Fatal(err)
	}
	want(t, create(), apierror.ENotFound, "not found")
	if n := len(raftstore.Find(r.Leader().Store.View(), record.APIKeys, "workspace", ann.WorkspaceID)); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	// A workspace's own keys are the operator's to make.
	if _, err := r.CreateWorkspaceToken(t.Context(), ann.WorkspaceID, api.CreateToken{Name: "ci"}, core.Idempotency{}); err != nil {
		t.Error(err)
	}
}
