package app

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app/dotenv"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Limits of an app's variables.
const (
	maxVariables = 200
	maxValue     = 64 << 10
	maxEnv       = 256 << 10 // names and values together
)

// masked is shown instead of a secret value.
const masked = "********"

var (
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	scopeName = regexp.MustCompile(`^[A-Za-z0-9_-]{0,64}$`)
)

const errEnv = "env must be a string map"

// validEnv checks an environment. Errors never contain values, which may be secrets.
func validEnv(env map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if why := badVariable(name, env[name]); why != "" {
			return apierror.Invalid(errEnv, "%s", why)
		}
	}
	if err := fits(env); err != nil {
		return apierror.Invalid(errEnv, "%s", err.Detail)
	}
	return nil
}

// fits returns an error if the variables are too many or too large.
func fits(env map[string]string) *apierror.Error {
	if len(env) > maxVariables {
		return &apierror.Error{Code: apierror.EInvalid, Message: "too many variables", Detail: fmt.Sprintf("at most %d", maxVariables)}
	}
	size := 0
	for name, value := range env {
		size += len(name) + len(value)
	}
	if size > maxEnv {
		return &apierror.Error{Code: apierror.EInvalid, Message: "variables too large", Detail: fmt.Sprintf("names and values have at most %d bytes together", maxEnv)}
	}
	return nil
}

// badVariable returns what is wrong with a variable, or "".
func badVariable(name, value string) string {
	if why := badKey(name); why != "" {
		return why
	}
	if why := badValue(value); why != "" {
		return "the value of " + name + " " + why
	}
	return ""
}

func badKey(name string) string {
	switch {
	case !envName.MatchString(name):
		shown := name
		if len(shown) > 40 || !utf8.ValidString(shown) {
			shown = strings.ToValidUTF8(shown[:min(len(shown), 40)], "\uFFFD") + "…"
		}
		return fmt.Sprintf("%q is no name of a variable: letters, digits and '_', not beginning with a digit", shown)
	case name == "PORT", name == "HOST":
		return name + " is set by the platform: the app's port is its field port"
	}
	return ""
}

func badValue(value string) string {
	switch {
	case strings.ContainsRune(value, 0):
		return "contains a NUL character"
	case !utf8.ValidString(value):
		return "is not UTF-8"
	case len(value) > maxValue:
		return fmt.Sprintf("is longer than %d bytes", maxValue)
	}
	return ""
}

func (f *Flows) seal(appID, key, value string) ([]byte, error) {
	sealed, err := f.Sealer.Seal([]byte(value), record.AppVariableContext(appID, key))
	if err != nil {
		return nil, apierror.As(fmt.Errorf("seal a variable: %w", err))
	}
	return sealed, nil
}

func (f *Flows) open(a *record.App, v *record.AppVariable) (string, error) {
	raw, err := f.Sealer.Open(v.ValueSealed, record.AppVariableContext(a.ID, v.Key))
	if err != nil {
		return "", apierror.As(fmt.Errorf("open variable %s: %w", v.Key, err))
	}
	return string(raw), nil
}

// openEnv returns an app's variables in the clear, and the names of the secret ones.
func (f *Flows) openEnv(a *record.App) (env map[string]string, secrets []string, err error) {
	env = make(map[string]string, len(a.Env))
	for i := range a.Env {
		v := &a.Env[i]
		if env[v.Key], err = f.open(a, v); err != nil {
			return nil, nil, err
		}
		if v.Secret {
			secrets = append(secrets, v.Key)
		}
	}
	return env, secrets, nil
}

// shownEnv returns an app's environment with its secrets masked.
func (f *Flows) shownEnv(a *record.App) (map[string]string, error) {
	env := make(map[string]string, len(a.Env))
	for i := range a.Env {
		v, err := f.showVariable(a, &a.Env[i])
		if err != nil {
			return nil, err
		}
		env[v.Key] = v.Value
	}
	return env, nil
}

func (f *Flows) showVariable(a *record.App, v *record.AppVariable) (api.AppVariable, error) {
	out := api.AppVariable{Key: v.Key, Value: masked, Secret: v.Secret, Scope: v.Scope, UpdatedAt: api.Time{Time: v.UpdatedAt}}
	var err error
	if !v.Secret {
		out.Value, err = f.open(a, v)
	}
	if !v.Secret && err == nil && v.DatabaseID != "" {
		if own, err := f.cloneURL(f.Store.View(), a, v, out.Value); err == nil { // otherwise the clone does not exist yet
			out.Value = own
		}
	}
	return out, err
}

func (f *Flows) showVariables(a *record.App) ([]api.AppVariable, error) {
	out := make([]api.AppVariable, len(a.Env))
	for i := range a.Env {
		var err error
		if out[i], err = f.showVariable(a, &a.Env[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// replaceEnv returns the variables that replace all variables of an app. A variable that
// exists keeps its scope and stays secret if it was. A secret variable also keeps its value
// if the new value is the mask, so that what was read may be written back.
func (f *Flows) replaceEnv(a *record.App, env map[string]string, now time.Time) ([]record.AppVariable, error) {
	var out []record.AppVariable
	for _, key := range slices.Sorted(maps.Keys(env)) {
		v := record.AppVariable{Key: key}
		if i, ok := variable(a, key); ok {
			v = a.Env[i]
		}
		if v.Secret && env[key] == masked {
			out = append(out, v)
			continue
		}
		v, err := f.variable(a, v, env[key], now)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	all, _, err := f.openEnv(&record.App{Meta: record.Meta{ID: a.ID}, Env: out}) // a mask is shorter than its value
	if err != nil {
		return nil, err
	}
	if err := fits(all); err != nil {
		return nil, apierror.Invalid(errEnv, "%s", err.Detail)
	}
	return out, nil
}

// sealEnv seals values for an app. Values that the app has already stay as they are.
func (f *Flows) sealEnv(a *record.App, values map[string]string, now time.Time) ([]record.AppVariable, error) {
	var out []record.AppVariable
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v := record.AppVariable{Key: key}
		if i, ok := variable(a, key); ok {
			v = a.Env[i]
		}
		v, err := f.variable(a, v, values[key], now)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// variable sets the value of a variable. If the variable has that value already, it stays as
// it is: sealing the value again would look like a change.
func (f *Flows) variable(a *record.App, v record.AppVariable, value string, now time.Time) (record.AppVariable, error) {
	if len(v.ValueSealed) > 0 {
		if had, err := f.open(a, &v); err == nil && had == value {
			return v, nil
		}
	}
	var err error
	v.UpdatedAt, v.DatabaseID = now, "" // a value that a user writes is used as it is
	v.ValueSealed, err = f.seal(a.ID, v.Key, value)
	return v, err
}

// variable returns the index of an app's variable, or where it would have to be.
func variable(a *record.App, key string) (at int, found bool) {
	return slices.BinarySearchFunc(a.Env, key, func(v record.AppVariable, key string) int { return strings.Compare(v.Key, key) })
}

// sameVariable reports whether an app is started with both in the same way: the values of
// secret ones are masked in its log.
func sameVariable(a, b record.AppVariable) bool {
	return a.Key == b.Key && a.Secret == b.Secret && bytes.Equal(a.ValueSealed, b.ValueSealed) && a.DatabaseID == b.DatabaseID
}

// Env lists an app's variables, sorted by name.
func (s *Apps) Env(ctx context.Context, c core.Caller, id string) ([]api.AppVariable, error) {
	_, a, err := s.find(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return s.flows.showVariables(a)
}

// PutVariable sets one variable.
func (s *Apps) PutVariable(ctx context.Context, c core.Caller, id, key string, in api.PutAppVariable) (api.AppVariable, error) {
	switch {
	case badKey(key) != "":
		return api.AppVariable{}, apierror.Invalid("invalid key", "%s", badKey(key))
	case badValue(in.Value) != "":
		return api.AppVariable{}, apierror.Invalid("invalid value", "it %s", badValue(in.Value))
	}
	vars, err := s.setVariables(ctx, c, id, map[string]string{key: in.Value}, in.Secret, in.Scope)
	if err != nil {
		return api.AppVariable{}, err
	}
	i := slices.IndexFunc(vars, func(v api.AppVariable) bool { return v.Key == key })
	if i < 0 { // it was deleted meanwhile
		return api.AppVariable{}, apierror.NotFound()
	}
	return vars[i], nil
}

// ImportEnv sets the variables of a .env file and leaves all others unchanged.
func (s *Apps) ImportEnv(ctx context.Context, c core.Caller, id string, in api.ImportAppEnv) ([]api.AppVariable, error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, err
	}
	env, err := dotenv.Parse(in.Dotenv)
	if err != nil {
		return nil, apierror.Invalid("invalid dotenv", "%s", err)
	}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if why := badVariable(key, env[key]); why != "" {
			return nil, apierror.Invalid("invalid dotenv", "%s", why)
		}
	}
	return s.setVariables(ctx, c, id, env, in.Secret, in.Scope)
}

// setVariables sets variables. Without secret and scope, one that exists keeps its own: who
// exchanges a secret value must not show the new one to everybody, or give it to previews.
func (s *Apps) setVariables(ctx context.Context, c core.Caller, id string, env map[string]string, secret *bool, scope *string) ([]api.AppVariable, error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, err
	}
	if scope != nil && !scopeName.MatchString(*scope) {
		return nil, apierror.Invalid("invalid scope", "at most 64 letters, digits, '-' and '_'")
	}
	if err := fits(env); err != nil { // before any of it is sealed
		return nil, err
	}
	a, err := s.changeEnv(ctx, c, id, func(tx *raftstore.Tx, a *record.App) error {
		for _, key := range slices.Sorted(maps.Keys(env)) {
			i, found := variable(a, key)
			if !found {
				a.Env = slices.Insert(a.Env, i, record.AppVariable{Key: key})
			}
			v, err := s.flows.variable(a, a.Env[i], env[key], tx.Now())
			if err != nil {
				return err
			}
			if secret, scope := or(secret, v.Secret), or(scope, v.Scope); v.Secret != secret || v.Scope != scope {
				v.Secret, v.Scope, v.UpdatedAt = secret, scope, tx.Now()
			}
			a.Env[i] = v
		}
		all, _, err := s.flows.openEnv(a)
		if err != nil {
			return err
		}
		if err := fits(all); err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.flows.showVariables(a)
}

// DeleteVariable removes one variable.
func (s *Apps) DeleteVariable(ctx context.Context, c core.Caller, id, key string) error {
	if err := c.RequireWorkspace(); err != nil {
		return err
	}
	_, err := s.changeEnv(ctx, c, id, func(_ *raftstore.Tx, a *record.App) error {
		i, found := variable(a, key)
		if !found {
			return apierror.NotFound()
		}
		a.Env = slices.Delete(a.Env, i, i+1)
		return nil
	})
	return err
}

// changeEnv changes an app's variables and returns the app. The artifact stays usable: an
// app gets its variables when it is started.
func (s *Apps) changeEnv(ctx context.Context, c core.Caller, id string, change func(tx *raftstore.Tx, a *record.App) error) (*record.App, error) {
	var after *record.App
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		before, err := s.owned(tx, c, id)
		if err != nil {
			return err
		}
		after = before.Clone()
		if err := change(tx, after); err != nil {
			return err
		}
		if !slices.EqualFunc(before.Env, after.Env, sameVariable) {
			after.EnvRevision++
		}
		raftstore.Put(tx, record.Apps, after.Clone())
		return nil
	})
	return after, err
}
