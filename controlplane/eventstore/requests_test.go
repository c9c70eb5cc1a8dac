package eventstore

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-cloud/berth/controlplane/traffic"
)

func TestRequestsAreAddedUp(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		of := func(replica, epoch, app string, hour time.Time, ok, failed int64) Requested {
			r := Requested{Replica: replica, Epoch: epoch, AppID: app, WorkspaceID: "w1", Hour: hour}
			r.Statuses[2], r.Statuses[5], r.Buckets[0], r.Buckets[13], r.SumMS = ok, failed, ok, failed, ok+failed
			return r
		}
		other := of("r1", "1", "c", noon, 9, 9)
		other.WorkspaceID = "w2"
		for _, all := range [][]Requested{
			{of("r1", "1", "a", noon, 5, 1), of("r1", "1", "a", noon.Add(time.Hour), 7, 0), of("r2", "1", "a", noon, 100, 0), of("r1", "1", "b", noon, 1, 0), other},
			{of("r1", "1", "a", noon, 6, 2)}, // more of the same hour
			{of("r1", "1", "a", noon, 5, 1)}, // of a replica that has read it before
			{of("r1", "2", "a", noon, 1, 0)}, // after its restart
			{of("r1", "1", "a", noon.Add(-DefaultRetention-time.Hour), 1, 1)},
		} {
			if err := s.NoteRequests(t.Context(), all); err != nil {
				t.Fatal(err)
			}
		}
		counts := func(ok, failed int64) (c traffic.Counts) {
			c.Statuses[2], c.Statuses[5], c.Buckets[0], c.Buckets[13], c.SumMS = ok, failed, ok, failed, ok+failed
			return c
		}
		day := noon.Truncate(24 * time.Hour)
		for name, c := range map[string]struct {
			q    Query
			want []RequestedIn
		}{
			"days":  {Query{}, []RequestedIn{{day, "a", counts(114, 2)}, {day, "b", counts(1, 0)}}},
			"hours": {Query{Bucket: time.Hour, Label: "a"}, []RequestedIn{{noon, "a", counts(107, 2)}, {noon.Add(time.Hour), "a", counts(7, 0)}}},
			"none":  {Query{Label: "c"}, nil},
		} {
			c.q.WorkspaceID, c.q.From, c.q.To, c.q.Kind = "w1", noon, noon, KindApp
			got, err := s.Requests(t.Context(), c.q)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			inOrder := cmpopts.SortSlices(func(a, b RequestedIn) bool { return a.AppID+a.Date.String() < b.AppID+b.Date.String() })
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty(), inOrder); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if _, err := s.Requests(t.Context(), Query{WorkspaceID: "w1", From: noon, To: noon, Most: 1}); !errors.Is(err, ErrTooMany) {
			t.Errorf("two rows of at most one: %v", err)
		}
		if n, err := s.Prune(t.Context()); err != nil || n != 1 {
			t.Errorf("pruned %d, %v", n, err)
		}
	})
}
