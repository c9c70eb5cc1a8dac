package controlplane

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// Of a thousand creates at once ten succeed where ten are allowed, and each of the others is
// told how many there are.
func TestAThousandCreatesAtOnceAtALimitOfTen(t *testing.T) {
	tier.Slow(t)
	const creates, most = 1000, 10
	r := testplane.NewRig(t, 1)
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: record.Quotas{Sandboxes: new(most)}})
		return nil
	})
	var made, refused atomic.Int64
	var all sync.WaitGroup
	for range creates {
		all.Go(func() {
			_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
			e := apierror.As(err)
			switch {
			case err == nil:
				made.Add(1)
			case e.Code == apierror.ERateLimited && e.Message == "max sandboxes reached" && e.Fields["max"] == most && e.Fields["active"] == most:
				refused.Add(1)
			default:
				t.Errorf("%v, %v", err, e.Fields)
			}
		})
	}
	all.Wait()
	if rows := len(raftstore.All(r.Leader().Store.View(), record.Sandboxes)); made.Load() != most || refused.Load() != creates-most || rows != most {
		t.Errorf("%d made, %d refused, %d rows", made.Load(), refused.Load(), rows)
	}
}

// Each of the other quotas holds too when many create at once, and nobody is refused for
// another reason.
func TestEveryQuotaHoldsAtOnce(t *testing.T) {
	const creates, most = 200, 3
	r := testplane.NewRig(t, 1)
	ctx, n := t.Context(), r.Node
	ann, err := n.Orgs.SignIn(ctx, "iss", "ann", "ann@example.com", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	ws, none := ann.WorkspaceID, core.Idempotency{}
	c := core.Caller{WorkspaceID: ws, KeyID: "k"}
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.Workspaces, ws)
		row = row.Clone()
		row.Quotas = record.Quotas{Apps: new(most), Keys: new(most), Members: new(most), VolumeMB: new(most * 256)}
		raftstore.Put(tx, record.Workspaces, row)
		return nil
	})
	for what, create := range map[string]func(i int) error{
		"max apps reached": func(i int) error {
			if i%2 == 0 {
				_, err := n.Apps.Functions().Create(ctx, c, api.CreateFunction{Name: fmt.Sprint("f", i), Runtime: "python"}, none)
				return err
			}
			_, err := n.Apps.Create(ctx, c, api.CreateApp{Name: fmt.Sprint("a", i), GitURL: "https://git.example.com/a/b"}, none)
			return err
		},
		"max webhook endpoints reached": func(int) error {
			_, err := n.Webhooks.Create(ctx, c, api.CreateWebhookEndpoint{URL: "https://example.com"}, none)
			return err
		},
		"max keys reached": func(int) error {
			_, err := n.Orgs.CreateToken(ctx, ann, api.CreateToken{Name: "ci"}, none)
			return err
		},
		"volume quota exceeded": func(i int) error {
			_, err := n.Volumes.Create(ctx, c, api.CreateVolume{Name: fmt.Sprint("v", i)}, none)
			return err
		},
		"seat limit reached: your unlimited plan allows 3 member(s). Upgrade to invite more.": func(i int) error {
			_, err := n.Orgs.Invite(ctx, ann, ws, api.Invite{Email: fmt.Sprintf("bob%d@example.com", i)}, none)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			var made, refused atomic.Int64
			var all sync.WaitGroup
			for i := range creates {
				all.Go(func() {
					switch e := apierror.As(create(i)); {
					case e == nil:
						made.Add(1)
					case e.Message == what:
						refused.Add(1)
					default:
						t.Errorf("%v", e)
					}
				})
			}
			all.Wait()
			want := int64(most)
			switch {
			case strings.HasPrefix(what, "seat"):
				want-- // who invites has a seat
			case strings.Contains(what, "webhook"):
				want = webhook.DefaultMaxEndpoints
			}
			if made.Load() != want || refused.Load() != creates-want {
				t.Errorf("%d made, %d refused", made.Load(), refused.Load())
			}
		})
	}
}

// A workspace is deleted while it creates: either it stays, or nothing of it is left.
func TestAWorkspaceThatIsDeletedWhileItCreates(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	ctx, n := t.Context(), r.Node
	gone := 0
	for round := range 30 {
		name := fmt.Sprintf("ann-%d", round)
		ann, err := n.Orgs.SignIn(ctx, "iss", name, name+"@example.com", time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		c := core.Caller{WorkspaceID: ann.WorkspaceID, KeyID: "k"}
		begin := make(chan struct{})
		var all sync.WaitGroup
		for _, create := range []func() error{
			func() error {
				_, err := r.Create(ctx, c, api.CreateSandbox{Template: "base"}, core.Idempotency{})
				return err
			},
			func() error {
				_, err := n.Volumes.Create(ctx, c, api.CreateVolume{Name: "v"}, core.Idempotency{})
				return err
			},
			func() error {
				_, err := n.Apps.Create(ctx, c, api.CreateApp{Name: "a", GitURL: "https://git.example.com/a/b"}, core.Idempotency{})
				return err
			},
			func() error {
				_, err := n.Webhooks.Create(ctx, c, api.CreateWebhookEndpoint{URL: "https://example.com"}, core.Idempotency{})
				return err
			},
			func() error {
				_, err := n.Orgs.CreateToken(ctx, ann, api.CreateToken{Name: "ci"}, core.Idempotency{})
				return err
			},
			func() error {
				_, err := n.Orgs.Invite(ctx, ann, ann.WorkspaceID, api.Invite{Email: "bob@example.com"}, core.Idempotency{})
				return err
			},
		} {
			all.Go(func() {
				<-begin
				switch err := create(); apierror.CodeOf(err) {
				case "", apierror.EUnauthorized, apierror.ENotFound: // made, or too late
				default:
					if err != nil {
						t.Errorf("%v", err)
					}
				}
			})
		}
		all.Go(func() {
			<-begin
			switch err := n.Orgs.DeleteOrg(ctx, ann, ann.WorkspaceID); apierror.CodeOf(err) {
			case "", apierror.EConflict:
			default:
				if err != nil {
					t.Errorf("delete: %v", err)
				}
			}
		})
		close(begin)
		all.Wait()
		view, id := r.Leader().Store.View(), ann.WorkspaceID
		if _, there := raftstore.Get(view, record.Workspaces, id); there {
			continue
		}
		gone++
		for what, left := range map[string]int{
			"sandboxes": len(raftstore.Find(view, record.Sandboxes, "workspace", id)), "volumes": len(raftstore.Find(view, record.Volumes, "workspace", id)),
			"apps": len(raftstore.Find(view, record.Apps, "workspace", id)), "endpoints": len(raftstore.Find(view, record.WebhookEndpoints, "workspace", id)),
			"keys": len(raftstore.Find(view, record.APIKeys, "workspace", id)), "invitations": len(raftstore.Find(view, record.Invitations, "workspace", id)),
			"people": len(raftstore.Find(view, record.Users, "workspace", id)),
		} {
			if left > 0 {
				t.Errorf("%d %s are left of a workspace that is deleted", left, what)
			}
		}
	}
	if gone == 0 {
		t.Error("none was deleted: the test shows nothing")
	}
}
