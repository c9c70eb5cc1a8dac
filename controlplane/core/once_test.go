package core_test

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
)

// creator makes workspaces, as a create of any kind makes something.
type creator struct {
	t    *testing.T
	core *core.Core
	made int    // creates that ran
	now  string // what there is to see of all that was made
	fail error  // of the next create, after its transaction
}

func newCreator(t *testing.T) *creator {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	return &creator{t: t, now: "first", core: core.New(core.Core{
		Store: testcluster.New(t, 1).Leader().Store, Sealer: keys, Clock: time.Now, Logger: testcluster.Log(),
	})}
}

// create creates something. With whole, its transaction is the whole create.
func (c *creator) create(route string, whole bool, i core.Idempotency) (api.Org, error) {
	c.t.Helper()
	shown := func(id string) api.Org { return api.Org{ID: id, Name: c.now} }
	return core.Once(c.t.Context(), c.core, core.Caller{WorkspaceID: i.Owner}, route, i,
		func(_ context.Context, _ *raftstore.Snapshot, key *record.IdempotencyKey) (api.Org, error) {
			return shown(key.ResourceID), nil
		},
		func(keyID string) (api.Org, error) {
			c.made++
			id := fmt.Sprint("made-", c.made)
			err := c.core.Update(c.t.Context(), func(tx *raftstore.Tx) error {
				raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}})
				if whole {
					return core.ClaimAnswer(tx, c.core, i, keyID, id, shown(id))
				}
				return i.Claim(tx, keyID, id)
			})
			if err == nil {
				err, c.fail = c.fail, nil
			}
			return shown(id), err
		})
}

func sent(by, body string) core.Idempotency {
	return core.Idempotency{Key: "k", BodySHA256: []byte(body), Owner: "ws", By: by, Body: new([]byte)}
}

func TestTheFirstAnswerIsRepeated(t *testing.T) {
	for name, whole := range map[string]bool{"a transaction": true, "a flow": false} {
		t.Run(name, func(t *testing.T) {
			c := newCreator(t)
			i := sent("user/ann", "body")
			first, err := c.create("POST /a", whole, i)
			if err != nil {
				t.Fatal(err)
			}
			body := string(*i.Body)
			c.now = "later"
			i = sent("user/ann", "body")
			again, err := c.create("POST /a", whole, i)
			if err != nil || again != first || string(*i.Body) != body || !strings.Contains(body, `"first"`) || c.made != 1 {
				t.Errorf("%+v %s, %v; the first was %+v %s", again, *i.Body, err, first, body)
			}
		})
	}
}

// The process dies after the create and before its answer is kept. Then the key says what was
// created, and from the first answer on all are the same.
func TestADeathBeforeTheAnswerIsKept(t *testing.T) {
	c := newCreator(t)
	c.fail = errors.New("killed")
	if _, err := c.create("POST /a", false, sent("user/ann", "body")); err == nil {
		t.Fatal("it did not die")
	}
	c.now = "second"
	first, err := c.create("POST /a", false, sent("user/ann", "body"))
	if err != nil || first.ID != "made-1" || first.Name != "second" {
		t.Fatalf("%+v, %v", first, err)
	}
	c.now = "third"
	if again, err := c.create("POST /a", false, sent("user/ann", "body")); err != nil || again != first || c.made != 1 {
		t.Errorf("%+v, %v, %d made; the first was %+v", again, err, c.made, first)
	}
}

// A key of an earlier version has no answer, and does not say whose it is.
func TestAKeyOfAnEarlierVersion(t *testing.T) {
	c := newCreator(t)
	err := c.core.Update(t.Context(), func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{
			Meta: record.Meta{ID: core.IdempotencyID("ws", "POST /a", "k")}, BodySHA256: []byte("body"), ResourceID: "earlier", WorkspaceID: "ws", ExpiresAt: tx.Now().Add(time.Hour),
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.create("POST /a", true, sent("user/ann", "another"))
	testplane.Want(t, err, apierror.EConflict, "idempotency key reused")
	for range 2 {
		if out, err := c.create("POST /a", true, sent("user/ann", "body")); err != nil || out != (api.Org{ID: "earlier", Name: "first"}) || c.made != 0 {
			t.Errorf("%+v, %v", out, err)
		}
		c.now = "later"
	}
}

func TestAKeyIsOfOneRequest(t *testing.T) {
	c := newCreator(t)
	if _, err := c.create("POST /a", true, sent("user/ann", "body")); err != nil {
		t.Fatal(err)
	}
	for _, other := range []struct{ route, by, body, detail string }{
		{"POST /a", "user/ann", "another", "this Idempotency-Key was sent with another body"},
		{"POST /b", "user/ann", "body", "this Idempotency-Key was sent to another route"},
		{"POST /a", "key/1", "body", "this Idempotency-Key was sent by another user or API key"},
		{"POST /b", "key/1", "another", "this Idempotency-Key was sent by another user or API key"},
	} {
		_, err := c.create(other.route, true, sent(other.by, other.body))
		if e := testplane.Want(t, err, apierror.EConflict, "idempotency key reused"); e.Detail != other.detail {
			t.Errorf("%+v: %q", other, e.Detail)
		}
	}
	i := sent("user/ann", "body")
	i.Owner = "other"
	if made, err := c.create("POST /a", true, i); err != nil || made.ID != "made-2" {
		t.Errorf("another workspace: %+v, %v", made, err)
	}
}

// Simultaneous requests with one key on several routes create one thing.
func TestOneRouteWinsAKey(t *testing.T) {
	c := newCreator(t)
	inside, hold := make(chan struct{}), make(chan struct{})
	made := make(chan error)
	i := sent("user/ann", "body")
	go func() {
		_, err := core.Once(t.Context(), c.core, core.Caller{WorkspaceID: "ws"}, "POST /a", i, nil, func(keyID string) (api.Org, error) {
			close(inside)
			<-hold
			return api.Org{}, c.core.Update(t.Context(), func(tx *raftstore.Tx) error { return i.Claim(tx, keyID, "slow") })
		})
		made <- err
	}()
	<-inside
	other := make(chan error)
	go func() {
		_, err := c.create("POST /b", true, sent("user/ann", "body"))
		other <- err
	}()
	testcluster.Await(t, "the other request to wait", func() bool { return c.core.Turns(i) == 2 })
	close(hold)
	if err := <-made; err != nil {
		t.Error(err)
	}
	testplane.Want(t, <-other, apierror.EConflict, "idempotency key reused")
	if c.made != 0 {
		t.Errorf("%d made", c.made)
	}
}

// The store has an answer, which may contain a secret, sealed only.
func TestAnswersAreSealed(t *testing.T) {
	c := newCreator(t)
	c.now = "brt_secret_" + core.RandomText(32)
	if _, err := c.create("POST /a", true, sent("user/ann", "body")); err != nil {
		t.Fatal(err)
	}
	rows := raftstore.All(c.core.Store.View(), record.IdempotencyKeys)
	if len(rows) != 1 || len(rows[0].Answer) == 0 {
		t.Fatalf("%+v", rows)
	}
	raw := rows[0].Answer
	for at := range raw { // an answer is compressed, at whatever place it begins
		plain, _ := io.ReadAll(flate.NewReader(bytes.NewReader(raw[at:])))
		if bytes.Contains(append(plain, raw...), []byte(c.now)) {
			t.Fatalf("from byte %d on it can be read", at)
		}
	}
}

// An answer that is too large is not kept. Its create is not repeated all the same.
func TestAnAnswerThatIsTooLarge(t *testing.T) {
	for name, whole := range map[string]bool{"a transaction": true, "a flow": false} {
		t.Run(name, func(t *testing.T) {
			c := newCreator(t)
			random := make([]byte, 300<<10)
			rand.Read(random)
			c.now = fmt.Sprintf("%x", random)
			i := sent("user/ann", "body")
			first, err := c.create("POST /a", whole, i)
			if err != nil || first.Name != c.now || len(*i.Body) > 0 {
				t.Fatalf("%s, %v", first.ID, err)
			}
			c.now = "later"
			again, err := c.create("POST /a", whole, sent("user/ann", "body"))
			if err != nil || again.ID != first.ID || again.Name != "later" || c.made != 1 {
				t.Errorf("%+v, %v", again, err)
			}
		})
	}
}
