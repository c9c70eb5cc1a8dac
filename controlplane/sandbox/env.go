package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// maxLargeEnvs bounds the large environments of a workspace, in bytes: replicas hold each
// in memory, and hosts those of their boxes. It counts each as often as sandboxes and
// snapshots have it.
const maxLargeEnvs = 32 << 20

const envRandom = 20 // characters of an id after its prefix

// envPart is the size of a part of an environment, as a third of a transaction's 512 KiB
// more: other writes do not wait for long while one is on its way.
const envPart = 256 << 10

func validEnv(env map[string]string) error {
	if len(env) > hostapi.MaxVariables {
		return apierror.Invalid("invalid env", "at most %d variables", hostapi.MaxVariables)
	}
	return core.ValidEnv(env, hostapi.MaxEnv)
}

// Env is an environment for rows that are to be made.
type Env struct {
	Ref   record.EnvRef     // of each of the rows
	parts []*record.EnvPart // none: there is no environment, or others have it already
}

// NewEnv seals an environment. For an empty one it returns the zero value.
func (f *Flows) NewEnv(env map[string]string) (Env, error) {
	if len(env) == 0 {
		return Env{}, nil
	}
	var raw []byte
	for _, name := range slices.Sorted(maps.Keys(env)) {
		raw = fmt.Appendf(raw, "%s=%s\x00", name, env[name])
	}
	out := Env{Ref: record.EnvRef{EnvID: "env-" + core.RandomText(envRandom), EnvBytes: len(raw)}}
	for part := range slices.Chunk(raw, envPart) {
		row := &record.EnvPart{Meta: record.Meta{ID: fmt.Sprintf("%s/%d", out.Ref.EnvID, len(out.parts))}, EnvID: out.Ref.EnvID}
		var err error
		if row.Sealed, err = f.Sealer.Seal(part, record.EnvContext(row.ID)); err != nil {
			return Env{}, fmt.Errorf("seal environment: %w", err)
		}
		out.parts = append(out.parts, row)
	}
	return out, nil
}

// Inherit returns the environment of a sandbox for others. Their transaction must have
// read the sandbox, which keeps the environment.
func (f *Flows) Inherit(r raftstore.Reader, from *record.Sandbox) (Env, error) {
	if from.EnvID != "" {
		return Env{Ref: from.EnvRef}, nil
	}
	env, err := f.OpenEnv(r, from.ID, from.EnvRef)
	if err != nil {
		return Env{}, err
	}
	return f.NewEnv(env)
}

// prepare writes what the transaction that makes a row of the environment has no room for.
// If there is none in the end, discard removes it; after the death of the leader in
// between, the loop "environments" does.
func (f *Flows) prepare(ctx context.Context, e Env, workspaceID string) (discard func(), err error) {
	if len(e.parts) < 2 {
		return func() {}, nil
	}
	if err := e.admit(f.Store.View(), workspaceID, 1); err != nil {
		return func() {}, err
	}
	discard = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timescale.Limit(10*time.Second))
		defer cancel()
		err := f.Store.Update(ctx, func(tx *raftstore.Tx) error { DropEnv(tx, e.Ref); return nil })
		if err != nil {
			f.Logger.InfoContext(ctx, "part of an environment is left to the next leader", "env_id", e.Ref.EnvID, "error", err)
		}
	}
	for _, row := range e.parts[1:] {
		err := f.Store.Update(ctx, func(tx *raftstore.Tx) error { raftstore.Put(tx, record.EnvParts, row); return nil })
		if err != nil {
			discard()
			return func() {}, core.StoreError(err)
		}
	}
	return discard, nil
}

// Put adds the environment to the transaction that makes n rows with it, before these.
func (e Env) Put(tx *raftstore.Tx, workspaceID string, n int) error {
	if err := e.admit(tx, workspaceID, n); err != nil {
		return err
	}
	for i, row := range e.parts {
		if i == 0 {
			raftstore.Put(tx, record.EnvParts, row)
		} else if _, ok := raftstore.Get(tx, record.EnvParts, row.ID); !ok {
			return fmt.Errorf("%w: part %s of the environment is gone", raftstore.ErrContention, row.ID) // dropEnvs was first
		}
	}
	return nil
}

// admit refuses an environment for n rows if it exceeds what a workspace may have.
func (e Env) admit(r raftstore.Reader, workspaceID string, n int) error {
	if !e.Ref.Large() {
		return nil
	}
	used := 0
	for _, s := range raftstore.Find(r, record.Sandboxes, "large_env", workspaceID) {
		used += s.EnvBytes
	}
	for _, s := range raftstore.Find(r, record.Snapshots, "large_env", workspaceID) {
		used += s.EnvBytes
	}
	if used+n*e.Ref.EnvBytes <= maxLargeEnvs {
		return nil
	}
	return &apierror.Error{
		Code: apierror.ERateLimited, Message: "environments too large",
		Detail: fmt.Sprintf("of the sandboxes and snapshots of a workspace, those over %d bytes together", record.LargeEnv-1),
		Fields: map[string]any{"max_bytes": maxLargeEnvs, "used_bytes": used},
	}
}

// DropEnv removes an environment, unless a row has it that the transaction has not
// removed.
func DropEnv(tx *raftstore.Tx, ref record.EnvRef) {
	if ref.EnvID == "" || len(raftstore.Find(tx, record.Sandboxes, "env", ref.EnvID)) > 0 || len(raftstore.Find(tx, record.Snapshots, "env", ref.EnvID)) > 0 {
		return
	}
	for _, part := range raftstore.Find(tx, record.EnvParts, "env", ref.EnvID) {
		raftstore.Delete(tx, record.EnvParts, part.ID)
	}
}

// dropEnvs removes the environments of creates that ended with an earlier leader.
func (k *keeper) dropEnvs(ctx context.Context) {
	for _, part := range raftstore.All(k.Store.View(), record.EnvParts) {
		if part.CreateIndex > k.began {
			continue
		}
		view := k.Store.View()
		if len(raftstore.Find(view, record.Sandboxes, "env", part.EnvID)) > 0 || len(raftstore.Find(view, record.Snapshots, "env", part.EnvID)) > 0 {
			continue
		}
		k.Update(ctx, loopEnvs, func(tx *raftstore.Tx) error { DropEnv(tx, record.EnvRef{EnvID: part.EnvID}); return nil })
	}
}

// OpenEnv returns the environment of the sandbox or the snapshot of an id.
func (f *Flows) OpenEnv(r raftstore.Reader, id string, ref record.EnvRef) (map[string]string, error) {
	if ref.EnvID == "" {
		return f.openOwn(id, ref.EnvSealed)
	}
	var raw []byte
	for _, part := range raftstore.Find(r, record.EnvParts, "env", ref.EnvID) {
		text, err := f.Sealer.Open(part.Sealed, record.EnvContext(part.ID))
		if err != nil {
			return nil, fmt.Errorf("open environment: %w", err)
		}
		raw = append(raw, text...)
	}
	if len(raw) != ref.EnvBytes {
		return nil, fmt.Errorf("environment %s has %d bytes, want %d", ref.EnvID, len(raw), ref.EnvBytes)
	}
	env := map[string]string{}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(raw), "\x00"), "\x00") {
		name, value, _ := strings.Cut(line, "=")
		env[name] = value
	}
	return env, nil
}

// openOwn returns the environment that a row of an earlier version has itself.
func (f *Flows) openOwn(id string, sealed []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	raw, err := f.Sealer.Open(sealed, record.EnvContext(id))
	if err != nil {
		return nil, fmt.Errorf("open environment: %w", err)
	}
	var env map[string]string
	if err := json.Unmarshal(raw, &env); err != nil {
		return nil, fmt.Errorf("decode environment: %w", err)
	}
	return env, nil
}
