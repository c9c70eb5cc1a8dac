package core

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Pages of any size show every row once, newest first.
func TestPagesAreTheWholeList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "rows")
		limit := rapid.IntRange(1, 10).Draw(t, "limit")
		times := rapid.SliceOfN(rapid.IntRange(0, 5), n, n).Draw(t, "times") // not in the order of the log
		fresh := func() []*record.APIKey {
			rows := make([]*record.APIKey, n)
			for i := range rows {
				rows[i] = &record.APIKey{Meta: record.Meta{ID: fmt.Sprintf("%08d-rest", i), CreateIndex: uint64(i / 3), CreatedAt: time.UnixMilli(int64(times[i]))}}
			}
			return rows
		}
		all, next, err := Paginate(fresh(), ListOptions{Limit: MaxLimit})
		if err != nil || next != "" {
			t.Fatal(next, err)
		}
		var seen []string
		cursor := ""
		for {
			page, next, err := Paginate(fresh(), ListOptions{Limit: limit, Cursor: cursor})
			if err != nil || len(page) > limit {
				t.Fatal(len(page), err)
			}
			for _, r := range page {
				seen = append(seen, r.ID)
			}
			if next == "" {
				break
			}
			cursor = next
		}
		if len(seen) != n {
			t.Fatalf("%d rows seen of %d", len(seen), n)
		}
		for i, r := range all {
			if seen[i] != r.ID || i > 0 && all[i-1].CreatedAt.Before(r.CreatedAt) {
				t.Fatalf("row %d is %s, want %s", i, seen[i], r.ID)
			}
		}
	})
}

// A cursor is logged with its URL, and a sandbox's whole id is a credential, so
// cursors contain only its beginning. Other ids may begin alike, and are used whole
// to order the rows of one transaction.
func TestCursorsAndIDs(t *testing.T) {
	sandboxes := []*record.Sandbox{
		{Meta: record.Meta{ID: "k7m2qz4xw3v5n6a2j7p4t5r6sd", CreateIndex: 5}}, {Meta: record.Meta{ID: "l7m2qz4xw3v5n6a2j7p4t5r6sd", CreateIndex: 5}},
	}
	_, next, err := Paginate(sandboxes, ListOptions{Limit: 1})
	if cursor, _ := base64.RawURLEncoding.DecodeString(next); err != nil || !strings.HasSuffix(string(cursor), ".5.k7m2qz4x") {
		t.Errorf("cursor %q, %v", cursor, err)
	}
	var seen []string
	for o := (ListOptions{Limit: 1}); ; {
		hosts := []*record.Host{ // that joined in one transaction
			{Meta: record.Meta{ID: "host-eu-1.a", CreateIndex: 5}}, {Meta: record.Meta{ID: "host-eu-1.b", CreateIndex: 5}},
			{Meta: record.Meta{ID: "host-eu-2", CreateIndex: 6}},
		}
		if len(seen) > 1 { // the place of a row that is gone by now holds
			hosts = slices.Delete(hosts, 0, 1)
		}
		page, next, err := Paginate(hosts, o)
		if err != nil || len(page) != 1 || len(seen) > 3 {
			t.Fatalf("%d rows after %v, %v", len(page), seen, err)
		}
		if seen = append(seen, page[0].ID); next == "" {
			break
		}
		o.Cursor = next
	}
	if got := strings.Join(seen, " "); got != "host-eu-2 host-eu-1.a host-eu-1.b" {
		t.Errorf("seen: %s", got)
	}
}

func FuzzReadCursor(f *testing.F) {
	f.Add("MTIuYWJj")
	f.Add("")
	f.Add("LjEyMzQ1Njc4OQ")
	f.Fuzz(func(t *testing.T, cursor string) {
		rows := []*record.APIKey{{Meta: record.Meta{ID: "abcdefghij", CreateIndex: 5}}}
		page, next, err := Paginate(rows, ListOptions{Cursor: cursor})
		if err != nil && apierror.CodeOf(err) != apierror.EInvalid {
			t.Fatal(err)
		}
		if len(page) > 1 || next != "" {
			t.Fatalf("%d rows, next %q", len(page), next)
		}
	})
}
