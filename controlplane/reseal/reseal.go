// Package reseal seals again what the control store keeps sealed with another key than
// the keyring's primary, so that an old sealing key can be removed.
package reseal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
	"github.com/berth-cloud/berth/settings"
)

// batch bounds the rows of one transaction. Between two of them others write.
const batch = 64

// Resealer seals values again while this replica leads.
type Resealer struct {
	store *raftstore.Store
	keys  *seal.Keyring
	log   *slog.Logger

	mu   sync.Mutex
	left map[seal.KeyID]int // values under a key, as the last pass left them
	said map[seal.KeyID]bool
}

// New returns a Resealer of a store's values.
func New(store *raftstore.Store, keys *seal.Keyring, log *slog.Logger) *Resealer {
	return &Resealer{store: store, keys: keys, log: log, said: map[seal.KeyID]bool{}}
}

// Loops is the loop that seals again.
func (r *Resealer) Loops(*loops.Term) []loops.Loop {
	return []loops.Loop{{Name: "sealed values", Every: loops.ExpiryEvery, Pass: r.Pass}}
}

// Follow reads the keyring's file again, every so often, until ctx ends. A file that
// cannot be read or understood changes nothing.
func Follow(ctx context.Context, keys *seal.Keyring, path string, every time.Duration, log *slog.Logger) {
	settings.Follow(ctx, every, func() (bool, error) { return keys.Reload(path) },
		func() {
			log.InfoContext(ctx, "the sealing keys have changed", "keys", fmt.Sprint(keys.Keys()), "primary", keys.Primary().String())
		},
		func(err error) {
			log.ErrorContext(ctx, "the file of sealing keys cannot be used; the keys stay as they were", "file", path, "error", err)
		})
}

// Pass seals every value with the primary key, unless it is. Answers that idempotency
// keys keep are left to their end, which is within a day.
func (r *Resealer) Pass(ctx context.Context) {
	found := map[seal.KeyID]int{}
	done, err := 0, error(nil)
	for _, t := range tables {
		var n int
		if n, err = t.again(ctx, r); err != nil {
			break
		}
		t.count(r.store.View(), found)
		done += n
	}
	for _, k := range raftstore.All(r.store.View(), record.IdempotencyKeys) {
		count(found, k.Answer)
		var value []byte // of an earlier version
		if json.Unmarshal(k.Result, &value) == nil {
			count(found, value)
		}
	}
	r.tell(ctx, done, found, err)
}

// Missing counts the values that do not open in what a store or a backup has, by the keys
// that the keyring lacks. Answers that idempotency keys keep are not counted: nothing else
// needs them.
func Missing(r raftstore.Reader, keys *seal.Keyring) map[string]int {
	found := map[seal.KeyID]int{}
	for _, t := range tables {
		t.count(r, found)
	}
	for _, id := range keys.Keys() {
		delete(found, id)
	}
	out := map[string]int{}
	for id, n := range found {
		out[id.String()] = n
	}
	return out
}

// tell records what a pass has left, and logs what an operator waits for.
func (r *Resealer) tell(ctx context.Context, done int, left map[seal.KeyID]int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = left
	if err != nil {
		if ctx.Err() == nil {
			r.log.WarnContext(ctx, "values are not sealed again; it is tried again", "error", err)
		}
		return
	}
	known := r.keys.Keys()
	for id, n := range left {
		if !slices.Contains(known, id) && !r.said[id] {
			r.said[id] = true
			r.log.ErrorContext(ctx, "values cannot be opened: the file of sealing keys lacks their key", "key", id.String(), "values", n)
		}
	}
	if done > 0 {
		r.log.InfoContext(ctx, "values are sealed again with the primary key", "values", done, "key", r.keys.Primary().String())
	}
}

// tables are those whose rows have sealed values.
var tables = []sealedTable{
	table(record.EnvParts), table(record.Sandboxes), table(record.Snapshots), table(record.Builds), table(record.Databases), table(record.Apps),
	table(record.RepoEnvs), table(record.WebhookEndpoints), table(record.CertFiles),
}

type sealedTable struct {
	again func(ctx context.Context, r *Resealer) (done int, err error) // seals its rows again
	count func(r raftstore.Reader, found map[seal.KeyID]int)           // adds the values that each key has
}

func table[T interface {
	record.Row
	record.Sealed
	Clone() T
}](t record.Table[T]) sealedTable {
	return sealedTable{again: func(ctx context.Context, r *Resealer) (done int, err error) {
		primary, keys := r.keys.Primary(), r.keys.Keys()
		var due []string
		for _, row := range raftstore.All(r.store.View(), t) {
			old := false
			for _, v := range row.SealedValues() {
				id, err := seal.KeyOf(*v.Value)
				old = old || err == nil && id != primary && slices.Contains(keys, id)
			}
			if old {
				due = append(due, row.RowMeta().ID)
			}
		}
		for ids := range slices.Chunk(due, batch) {
			n, err := reseal(ctx, r, t, ids)
			done += n
			if err != nil {
				return done, err
			}
		}
		return done, nil
	}, count: func(r raftstore.Reader, found map[seal.KeyID]int) {
		for _, row := range raftstore.All(r, t) {
			for _, v := range row.SealedValues() {
				count(found, *v.Value)
			}
		}
	}}
}

// reseal seals the values of rows again, in one transaction, or in more if the rows are
// too large for one.
func reseal[T interface {
	record.Row
	record.Sealed
	Clone() T
}](ctx context.Context, r *Resealer, t record.Table[T], ids []string) (n int, err error) {
	err = r.store.Update(ctx, func(tx *raftstore.Tx) error {
		n = 0
		for _, id := range ids {
			row, ok := raftstore.Get(tx, t, id)
			if !ok {
				continue
			}
			row = row.Clone()
			changed, err := r.again(row)
			if err != nil {
				return fmt.Errorf("%s %s: %w", t.Name, id, err)
			}
			if changed > 0 {
				raftstore.Put(tx, t, row)
			}
			n += changed
		}
		return nil
	})
	if !errors.Is(err, raftstore.ErrTooLarge) || len(ids) == 1 {
		if err != nil {
			n = 0
		}
		return n, err
	}
	n, err = reseal(ctx, r, t, ids[:len(ids)/2])
	if err != nil {
		return n, err
	}
	more, err := reseal(ctx, r, t, ids[len(ids)/2:])
	return n + more, err
}

// again seals a row's values with the primary key. What does not open stays as it is: it
// is damaged, or its key is gone.
func (r *Resealer) again(row record.Sealed) (changed int, err error) {
	for _, v := range row.SealedValues() {
		if id, err := seal.KeyOf(*v.Value); err != nil || id == r.keys.Primary() {
			continue
		}
		raw, err := r.keys.Open(*v.Value, v.Context)
		if errors.Is(err, seal.ErrUnknownKey) || errors.Is(err, seal.ErrCorrupt) {
			continue
		}
		if err != nil {
			return changed, err
		}
		if *v.Value, err = r.keys.Seal(raw, v.Context); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

func count(found map[seal.KeyID]int, value []byte) {
	if id, err := seal.KeyOf(value); err == nil {
		found[id]++
	}
}

var (
	descKeys = prometheus.NewDesc("berth_sealing_keys", "Sealing keys that this replica has read: 1 for each, by whether it is the primary.",
		[]string{"key", "primary"}, nil)
	descValues = prometheus.NewDesc("berth_sealed_values", "Values in the control store that are sealed with a key. The leader counts them, each minute.",
		[]string{"key"}, nil)
)

// Describe implements prometheus.Collector.
func (r *Resealer) Describe(ch chan<- *prometheus.Desc) {
	ch <- descKeys
	ch <- descValues
}

// Collect implements prometheus.Collector.
func (r *Resealer) Collect(ch chan<- prometheus.Metric) {
	primary := r.keys.Primary()
	for _, id := range r.keys.Keys() {
		ch <- prometheus.MustNewConstMetric(descKeys, prometheus.GaugeValue, 1, id.String(), fmt.Sprint(id == primary))
	}
	if !r.store.IsLeader() {
		return // what it counted once is old
	}
	r.mu.Lock()
	left := maps.Clone(r.left)
	r.mu.Unlock()
	for id, n := range left {
		ch <- prometheus.MustNewConstMetric(descValues, prometheus.GaugeValue, float64(n), id.String())
	}
}
