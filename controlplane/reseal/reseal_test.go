package reseal_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/reseal"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
)

// rows are one of each kind with a sealed value, and how many values they have.
func rows(t *testing.T, keys seal.Sealer) (put func(tx *raftstore.Tx) error, values int) {
	t.Helper()
	sealed := func(context []byte) []byte {
		values++
		out, err := keys.Seal(append([]byte("secret of "), context...), context)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	meta := func(id string) record.Meta { return record.Meta{ID: id} }
	box := &record.Sandbox{Meta: meta("box"), WorkspaceID: "ws", Status: record.SandboxStarting, EnvRef: record.EnvRef{EnvSealed: sealed(record.EnvContext("box"))}}
	snap := &record.Snapshot{Meta: meta("snap"), WorkspaceID: "ws", Status: record.ResourceCreating, EnvRef: record.EnvRef{EnvSealed: sealed(record.EnvContext("snap"))}}
	vars := &record.EnvPart{Meta: meta("vars"), Sealed: sealed(record.EnvContext("vars"))}
	build := &record.Build{Meta: meta("build"), Status: record.TemplateQueued, SpecSealed: sealed(record.BuildContext("build"))}
	db := &record.Database{
		Meta: meta("db"), WorkspaceID: "ws", Status: record.DatabaseProvisioning,
		Archives:    []record.DatabaseArchive{{Name: "db/1", KeySealed: sealed(record.ArchiveContext("db/1"))}, {Name: "db/2", KeySealed: sealed(record.ArchiveContext("db/2"))}},
		Credentials: &record.DatabaseCredentials{PasswordSealed: sealed(record.PasswordContext("db")), BrokerTokenSealed: sealed(record.BrokerTokenContext("db"))},
	}
	app := &record.App{
		Meta: meta("app"), WorkspaceID: "ws", Status: record.AppCreated,
		Env: []record.AppVariable{{Key: "A", ValueSealed: sealed(record.AppVariableContext("app", "A"))}, {Key: "B"}},
	}
	env := &record.RepoEnv{Meta: meta("env"), WorkspaceID: "ws", Variables: []record.AppVariable{{Key: "A", ValueSealed: sealed(record.RepoVariableContext("env", "A"))}}}
	hook := &record.WebhookEndpoint{Meta: meta("hook"), WorkspaceID: "ws", SecretSealed: sealed(record.WebhookContext("hook"))}
	file := &record.CertFile{Meta: meta("file"), ValueSealed: sealed(record.CertFileContext("file"))}
	return func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Sandboxes, box.Clone())
		raftstore.Put(tx, record.Snapshots, snap.Clone())
		raftstore.Put(tx, record.EnvParts, vars.Clone())
		raftstore.Put(tx, record.Builds, build.Clone())
		raftstore.Put(tx, record.Databases, db.Clone())
		raftstore.Put(tx, record.Apps, app.Clone())
		raftstore.Put(tx, record.RepoEnvs, env.Clone())
		raftstore.Put(tx, record.WebhookEndpoints, hook.Clone())
		raftstore.Put(tx, record.CertFiles, file.Clone())
		return nil
	}, values
}

// open returns how many values of a table open with their context.
func open[T interface {
	record.Row
	record.Sealed
}](t *testing.T, view *raftstore.Snapshot, table record.Table[T], keys seal.Sealer) (opened int) {
	t.Helper()
	for _, row := range raftstore.All(view, table) {
		for _, v := range row.SealedValues() {
			raw, err := keys.Open(*v.Value, v.Context)
			if err != nil || string(raw) != "secret of "+string(v.Context) {
				t.Errorf("%s %s: %q, %v", table.Name, v.Context, raw, err)
				continue
			}
			opened++
		}
	}
	return opened
}

func openAll(t *testing.T, view *raftstore.Snapshot, keys seal.Sealer) int {
	t.Helper()
	return open(t, view, record.Sandboxes, keys) + open(t, view, record.Snapshots, keys) + open(t, view, record.EnvParts, keys) + open(t, view, record.Builds, keys) +
		open(t, view, record.Databases, keys) + open(t, view, record.Apps, keys) + open(t, view, record.RepoEnvs, keys) +
		open(t, view, record.WebhookEndpoints, keys) + open(t, view, record.CertFiles, keys)
}

func TestTheSealingKeyIsRotated(t *testing.T) {
	c := testcluster.New(t, 1)
	store := c.Leader().Store
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	old := keys.Primary()
	put, values := rows(t, keys)
	c.Update(put)
	answer, err := keys.Seal([]byte("answer"), []byte("api-key/1"))
	if err != nil {
		t.Fatal(err)
	}
	result, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	// Beside them: what an idempotency key keeps, and one that nobody can open.
	foreign, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	lost, err := foreign.Seal([]byte("x"), record.WebhookContext("lost"))
	if err != nil {
		t.Fatal(err)
	}
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{Meta: record.Meta{ID: "k"}, WorkspaceID: "ws", Answer: answer, ExpiresAt: tx.Now().Add(time.Hour)})
		raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{Meta: record.Meta{ID: "earlier"}, WorkspaceID: "ws", Result: result, ExpiresAt: tx.Now().Add(time.Hour)})
		raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "lost"}, WorkspaceID: "ws", SecretSealed: lost})
		return nil
	})

	r := reseal.New(store, keys, testcluster.Log())
	before := store.View().Index()
	r.Pass(t.Context())
	if now := store.View().Index(); now != before {
		t.Errorf("a pass without a new key wrote %d entries", now-before)
	}
	says := func(want map[seal.KeyID]int) {
		t.Helper()
		var text strings.Builder
		text.WriteString("# HELP berth_sealed_values Values in the control store that are sealed with a key. The leader counts them, each minute.\n# TYPE berth_sealed_values gauge\n")
		for id, n := range want {
			fmt.Fprintf(&text, "berth_sealed_values{key=%q} %d\n", id, n)
		}
		if err := testutil.CollectAndCompare(r, strings.NewReader(text.String()), "berth_sealed_values"); err != nil {
			t.Error(err)
		}
	}
	says(map[seal.KeyID]int{old: values + 2, foreign.Primary(): 1})

	next, err := keys.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	r.Pass(t.Context())
	says(map[seal.KeyID]int{next: values, old: 2, foreign.Primary(): 1})
	if err := keys.Remove(old); err != nil {
		t.Fatal(err)
	}
	c.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.WebhookEndpoints, "lost"); return nil })
	if n := openAll(t, store.View(), keys); n != values {
		t.Errorf("without the old key %d of %d open", n, values)
	}
}

// Rows that are too large for one transaction are sealed again in several.
func TestLargeValuesAreSealedAgain(t *testing.T) {
	c := testcluster.New(t, 1)
	store := c.Leader().Store
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	const size = 256 << 10
	old := keys.Primary()
	for i := range 3 {
		id := fmt.Sprint(i)
		value, err := keys.Seal(make([]byte, size), record.EnvContext(id))
		if err != nil {
			t.Fatal(err)
		}
		c.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.EnvParts, &record.EnvPart{Meta: record.Meta{ID: id}, Sealed: value})
			return nil
		})
	}
	next, err := keys.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	reseal.New(store, keys, testcluster.Log()).Pass(t.Context())
	if err := keys.Remove(old); err != nil {
		t.Fatal(err)
	}
	for _, row := range raftstore.All(store.View(), record.EnvParts) {
		id, err := seal.KeyOf(row.Sealed)
		raw, openErr := keys.Open(row.Sealed, record.EnvContext(row.ID))
		if err != nil || openErr != nil || id != next || len(raw) != size {
			t.Errorf("%s: %d bytes, key %s, %v, %v", row.ID, len(raw), id, err, openErr)
		}
	}
}

func TestTheFileOfKeysIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seal.key")
	written, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := written.Save(path); err != nil {
		t.Fatal(err)
	}
	read, err := seal.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reseal.Follow(ctx, read, path, time.Millisecond, testcluster.Log())
	}()
	t.Cleanup(func() { cancel(); <-done })
	id, err := written.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	if err := written.Save(path); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the new key", func() bool { return read.Primary() == id })
	sealed, err := read.Seal([]byte("x"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := written.Open(sealed, nil); err != nil || !bytes.Equal(raw, []byte("x")) {
		t.Errorf("%q, %v", raw, err)
	}
}
