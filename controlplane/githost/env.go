package githost

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Bounds of a repository's preview environment: those of an app's.
const (
	maxVariables = 200
	maxValue     = 64 << 10
	maxValues    = 256 << 10
	maxRepos     = 1000    // of a workspace
	maxReposSize = 4 << 20 // of all of them together: every replica has them in memory
	masked       = "********"
)

var variableKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// PreviewEnv returns the variables of the previews of a repository's pull requests, by
// key.
func (g *GitHosts) PreviewEnv(ctx context.Context, c core.Caller, repoID string) ([]api.RepoVariable, error) {
	view, err := g.core.View(ctx, c)
	if err != nil {
		return nil, err
	}
	out := []api.RepoVariable{}
	e, ok := raftstore.Get(view, record.RepoEnvs, envID(c.WorkspaceID, repoID))
	if !ok {
		return out, nil
	}
	for _, v := range e.Variables {
		shown, err := g.showVariable(e.ID, v)
		if err != nil {
			return nil, err
		}
		out = append(out, shown)
	}
	return out, nil
}

func envID(workspaceID, repoID string) string { return workspaceID + "/" + repoID }

func (g *GitHosts) openVariable(envID string, v record.AppVariable) (string, error) {
	value, err := g.core.Sealer.Open(v.ValueSealed, record.RepoVariableContext(envID, v.Key))
	if err != nil {
		return "", fmt.Errorf("open the variable %s of a repository: %w", v.Key, err)
	}
	return string(value), nil
}

func (g *GitHosts) showVariable(envID string, v record.AppVariable) (api.RepoVariable, error) {
	out := api.RepoVariable{Key: v.Key, Value: masked, Secret: v.Secret, UpdatedAt: api.Time{Time: v.UpdatedAt}}
	if v.Secret {
		return out, nil
	}
	var err error
	out.Value, err = g.openVariable(envID, v)
	return out, err
}

// previewEnv are the values of a repository's previews.
func (g *GitHosts) previewEnv(r raftstore.Reader, workspaceID, repoID string) ([]Variable, error) {
	e, ok := raftstore.Get(r, record.RepoEnvs, envID(workspaceID, repoID))
	if !ok {
		return nil, nil
	}
	var out []Variable
	for _, v := range e.Variables {
		value, err := g.openVariable(e.ID, v)
		if err != nil {
			return nil, err
		}
		out = append(out, Variable{Key: v.Key, Value: value, Secret: v.Secret})
	}
	return out, nil
}

// PutPreviewVariable sets a variable of a repository's previews, for their next
// deployments. Without in.Secret one that is secret stays so: who exchanges its value must
// not show the new one to everybody, or give it to forks.
func (g *GitHosts) PutPreviewVariable(ctx context.Context, c core.Caller, repoID, key string, in api.PutRepoVariable) (api.RepoVariable, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.RepoVariable{}, err
	}
	if err := checkVariable(repoID, key, in.Value); err != nil {
		return api.RepoVariable{}, err
	}
	id := envID(c.WorkspaceID, repoID)
	sealed, err := g.core.Sealer.Seal([]byte(in.Value), record.RepoVariableContext(id, key))
	if err != nil {
		return api.RepoVariable{}, fmt.Errorf("seal a variable: %w", err)
	}
	v := record.AppVariable{Key: key, ValueSealed: sealed, Secret: core.OrZero(in.Secret)}
	err = g.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := core.MayCreate(tx, c); err != nil {
			return err
		}
		e := &record.RepoEnv{Meta: record.Meta{ID: id}, WorkspaceID: c.WorkspaceID, RepoID: repoID}
		if there, ok := raftstore.Get(tx, record.RepoEnvs, id); ok {
			e = there.Clone()
		} else if n := len(raftstore.Find(tx, record.RepoEnvs, "workspace", c.WorkspaceID)); n >= maxRepos {
			return &apierror.Error{Code: apierror.ERateLimited, Message: "max preview environments reached", Fields: map[string]any{"max": maxRepos, "active": n}}
		}
		v.UpdatedAt = tx.Now()
		at, found := slices.BinarySearchFunc(e.Variables, key, func(v record.AppVariable, key string) int { return strings.Compare(v.Key, key) })
		if found {
			if in.Secret == nil {
				v.Secret = e.Variables[at].Secret
			}
			e.Variables[at] = v
		} else {
			e.Variables = slices.Insert(e.Variables, at, v)
		}
		if err := checkSize(e.Variables); err != nil {
			return err
		}
		if err := checkAll(tx, e); err != nil {
			return err
		}
		raftstore.Put(tx, record.RepoEnvs, e)
		return nil
	})
	if err != nil {
		return api.RepoVariable{}, err
	}
	return g.showVariable(id, v)
}

func checkVariable(repoID, key, value string) error {
	switch {
	case !numberID.MatchString(repoID):
		return apierror.NotFound()
	case !variableKey.MatchString(key):
		return apierror.Invalid("invalid key", "want a letter or _, then letters, digits and _, at most 128")
	case key == "PORT" || key == "HOST":
		return apierror.Invalid("invalid key", "%s is set by the service", key)
	case len(value) > maxValue:
		return apierror.Invalid("value too long", "at most %d bytes", maxValue)
	case strings.ContainsRune(value, 0) || !utf8.ValidString(value):
		return apierror.Invalid("invalid value", "a variable cannot hold U+0000, or what is not UTF-8")
	}
	return nil
}

func sizeOf(all []record.AppVariable) (size int) {
	for _, v := range all {
		size += len(v.Key) + len(v.ValueSealed)
	}
	return size
}

// checkAll refuses an environment with which a workspace's would be too large. What becomes
// no larger is taken.
func checkAll(r raftstore.Reader, e *record.RepoEnv) error {
	size, before := sizeOf(e.Variables), 0
	all := size
	for _, other := range raftstore.Find(r, record.RepoEnvs, "workspace", e.WorkspaceID) {
		if other.ID == e.ID {
			before = sizeOf(other.Variables)
		} else {
			all += sizeOf(other.Variables)
		}
	}
	if all <= maxReposSize || size <= before {
		return nil
	}
	return &apierror.Error{Code: apierror.ERateLimited, Message: "preview environments too large", Fields: map[string]any{"max_bytes": maxReposSize, "used_bytes": all - size + before}}
}

func checkSize(all []record.AppVariable) error {
	size := sizeOf(all)
	switch {
	case len(all) > maxVariables:
		return apierror.Invalid("too many variables", "at most %d", maxVariables)
	case size > maxValues+maxVariables*128:
		return apierror.Invalid("variables too large", "at most %d bytes in all", maxValues)
	}
	return nil
}

// DeletePreviewVariable removes a variable of a repository's previews.
func (g *GitHosts) DeletePreviewVariable(ctx context.Context, c core.Caller, repoID, key string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	return g.core.Update(ctx, func(tx *raftstore.Tx) error {
		e, ok := raftstore.Get(tx, record.RepoEnvs, envID(c.WorkspaceID, repoID))
		if !ok {
			return apierror.NotFound()
		}
		e = e.Clone()
		n := len(e.Variables)
		e.Variables = slices.DeleteFunc(e.Variables, func(v record.AppVariable) bool { return v.Key == key })
		switch len(e.Variables) {
		case n:
			return apierror.NotFound()
		case 0:
			raftstore.Delete(tx, record.RepoEnvs, e.ID)
		default:
			raftstore.Put(tx, record.RepoEnvs, e)
		}
		return nil
	})
}
