// Package limits says how much a workspace may have. Tiers are data that the operator
// edits; a workspace has a tier, and may have quotas of its own instead. What is left
// is counted from the rows themselves in the transaction that creates, so that it is
// exact whatever happens at once and whoever leads.
package limits

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/settings"
)

// Unlimited is the tier without quotas, which every table of tiers has.
const Unlimited = "unlimited"

//go:embed tiers.yaml
var builtin []byte

// Tiers is the table of tiers. A nil one has only Unlimited.
type Tiers struct {
	// WarnPercent of a month's free credit is when a workspace is warned; 0: 80.
	WarnPercent int

	file     string // that it was read from; "": built in
	fallback string // of workspaces that have none, or one that is not there any more
	table    atomic.Pointer[table]
}

// table is what a file contains.
type table struct {
	raw    []byte
	quotas map[string]record.Quotas
}

// Load reads a table from a file, or takes the built-in one if file is "".
// defaultTier, or Unlimited if that is "", is the tier of workspaces without one.
func Load(file, defaultTier string) (*Tiers, error) {
	t := &Tiers{file: file, fallback: cmp.Or(defaultTier, Unlimited)}
	raw := builtin
	if file != "" {
		var err error
		if raw, err = readFile(file); err != nil {
			return nil, err
		}
	}
	return t, t.set(raw)
}

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("tiers: %s has more than %d bytes", file, maxFile)
	}
	return raw, err
}

// set makes the content of a file the table.
func (t *Tiers) set(raw []byte) error {
	quotas, err := Parse(raw)
	if err != nil {
		return err
	}
	if _, ok := quotas[t.fallback]; !ok {
		return fmt.Errorf("the default tier %q is none of %s", t.fallback, strings.Join(slices.Sorted(maps.Keys(quotas)), ", "))
	}
	t.table.Store(&table{raw: raw, quotas: quotas})
	return nil
}

// Follow reads the file again when it has changed, until ctx ends. A file that cannot be
// read or understood changes nothing.
func (t *Tiers) Follow(ctx context.Context, every time.Duration, log *slog.Logger) {
	if t == nil || t.file == "" {
		return
	}
	settings.Follow(ctx, every, t.reread,
		func() { log.InfoContext(ctx, "the tiers have changed", "file", t.file, "tiers", t.Names()) },
		func(err error) {
			log.ErrorContext(ctx, "the file of tiers cannot be used; the tiers stay as they were", "file", t.file, "error", err)
		})
}

// Reload reads the file again now. After an error the tiers stay as they were.
func (t *Tiers) Reload() error {
	if t == nil || t.file == "" {
		return nil
	}
	_, err := t.reread()
	return err
}

func (t *Tiers) reread() (changed bool, err error) {
	raw, err := readFile(t.file)
	if err != nil || bytes.Equal(raw, t.table.Load().raw) {
		return false, err
	}
	return true, t.set(raw)
}

var tierName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// Parse reads a table: a YAML map of tiers, each a map of quotas.
func Parse(raw []byte) (map[string]record.Quotas, error) {
	out := map[string]record.Quotas{}
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&out); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("tiers: %w", err)
	}
	for name, q := range out {
		if err := q.Valid(); err != nil {
			return nil, fmt.Errorf("tiers: %s: %w", name, err)
		}
		if !tierName.MatchString(name) {
			return nil, fmt.Errorf("tiers: %q is no name of a tier: want at most 32 of a-z, 0-9, - and _, a letter first", name)
		}
	}
	if _, there := out[Unlimited]; !there {
		out[Unlimited] = record.Quotas{}
	}
	return out, nil
}

// Known reports whether there is a tier of this name.
func (t *Tiers) Known(name string) bool {
	if t == nil {
		return name == Unlimited
	}
	_, ok := t.table.Load().quotas[name]
	return ok
}

// Names returns the names of the tiers, sorted.
func (t *Tiers) Names() []string {
	if t == nil {
		return []string{Unlimited}
	}
	return slices.Sorted(maps.Keys(t.table.Load().quotas))
}

// Name returns the tier by which a workspace is limited.
func (t *Tiers) Name(w *record.Workspace) string {
	switch {
	case t == nil:
		return Unlimited
	case w.Tier != "" && t.Known(w.Tier):
		return w.Tier
	}
	return t.fallback
}

// Of returns the quotas of a workspace. Those that are nil or below 0 do not limit it.
func (t *Tiers) Of(w *record.Workspace) record.Quotas {
	if t == nil {
		return w.Quotas
	}
	return w.Quotas.Over(t.table.Load().quotas[t.Name(w)])
}

// limit returns a quota, and whether there is one.
func limit(q *int) (int, bool) {
	if q == nil || *q < 0 {
		return 0, false
	}
	return *q, true
}
