package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// keyOf is a key that was claimed some time before now.
func keyOf(workspace string, n int, age time.Duration, now time.Time) *record.IdempotencyKey {
	return &record.IdempotencyKey{
		Meta: record.Meta{ID: idempotencyID(workspace, "POST /v1/sandboxes", fmt.Sprint(n))}, ExpiresAt: now.Add(idempotencyKept - age), WorkspaceID: workspace,
	}
}

func TestKeysExpire(t *testing.T) {
	now := time.Unix(1e9, 0)
	const most = 3
	for name, c := range map[string]struct {
		ages []time.Duration // of the keys of one workspace
		want int             // how many go, the oldest first
	}{
		"none":                            {nil, 0},
		"few":                             {[]time.Duration{23 * time.Hour, time.Hour, 0}, 0},
		"a day old":                       {[]time.Duration{25 * time.Hour, 24 * time.Hour, 0}, 2},
		"too many":                        {[]time.Duration{23 * time.Hour, 5 * time.Hour, 4 * time.Hour, 3 * time.Hour, 0}, 2},
		"too many, and a day old":         {[]time.Duration{24 * time.Hour, 23 * time.Hour, 5 * time.Hour, 4 * time.Hour, 3 * time.Hour}, 2},
		"too many, all within an hour":    {[]time.Duration{50 * time.Minute, 5 * time.Minute, 4 * time.Minute, 3 * time.Minute, 0}, 0},
		"too many, and one above an hour": {[]time.Duration{60 * time.Minute, 5 * time.Minute, 4 * time.Minute, 3 * time.Minute, 0}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var rows []*record.IdempotencyKey
			var want []string
			for i, age := range c.ages {
				k := keyOf("w1", i, age, now)
				rows = append(rows, k)
				if i < c.want {
					want = append(want, k.ID)
				}
			}
			// Those of another workspace do not count.
			for i := range most {
				rows = append(rows, keyOf("w2", i, 2*time.Hour, now))
			}
			got := expiredKeys(rows, now, most, func(string) bool { return true })
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Fatalf("%d keys go, want %d", len(got), len(want))
			}
		})
	}
}

// Keys of an earlier version have no workspace, and stay for their day.
func TestKeysWithoutAWorkspaceStay(t *testing.T) {
	now := time.Unix(1e9, 0)
	var rows []*record.IdempotencyKey
	for i := range 10 {
		k := keyOf("w1", i, 23*time.Hour, now)
		k.WorkspaceID = ""
		rows = append(rows, k)
	}
	if got := expiredKeys(rows, now, 3, func(string) bool { return false }); len(got) > 0 {
		t.Fatal(got)
	}
}

// Of a workspace that is gone no key is worth more than an hour.
func TestKeysOfWorkspacesThatAreGoneExpire(t *testing.T) {
	now := time.Unix(1e9, 0)
	old, young, other := keyOf("gone", 1, time.Hour, now), keyOf("gone", 2, 59*time.Minute, now), keyOf("there", 1, 23*time.Hour, now)
	got := expiredKeys([]*record.IdempotencyKey{old, young, other}, now, 3, func(owner string) bool { return owner == "there" })
	if !slices.Equal(got, []string{old.ID}) {
		t.Errorf("%q go", got)
	}
}

// The oldest answers of a workspace whose answers take too much go. Their keys stay.
func TestOldAnswersGo(t *testing.T) {
	now := time.Unix(1e9, 0)
	answered := func(workspace string, n, size int, age time.Duration) *record.IdempotencyKey {
		k := keyOf(workspace, n, age, now)
		k.Answer = make([]byte, size)
		return k
	}
	old, small, young, other := answered("w1", 1, 4000, 3*time.Hour), answered("w1", 2, 1000, 4*time.Hour), answered("w1", 3, 4000, 0), answered("w2", 1, 4000, time.Hour)
	nobodys := answered("", 1, 20_000, time.Hour)
	rows := []*record.IdempotencyKey{young, other, small, nobodys, old}
	for most, want := range map[int][]string{
		9000: nil,
		8999: {small.ID},
		7999: {small.ID, old.ID},
	} {
		if got := heavyAnswers(rows, most); !slices.Equal(got, want) {
			t.Errorf("at most %d: %q go, want %q", most, got, want)
		}
	}
}

func BenchmarkPaginate(b *testing.B) {
	rows := make([]*record.Sandbox, 100_000)
	for i := range rows {
		rows[i] = &record.Sandbox{Meta: record.Meta{ID: fmt.Sprintf("%032x", i*7919%len(rows)), CreateIndex: uint64(i * 104729 % len(rows))}}
	}
	for b.Loop() {
		if _, _, err := Paginate(slices.Clone(rows), ListOptions{Limit: 100}); err != nil {
			b.Fatal(err)
		}
	}
}
