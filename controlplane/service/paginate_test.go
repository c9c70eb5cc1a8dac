package service

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-cloud/berth/raftstore/record"
)

// Pages of any size show every row once, newest first.
func TestPagesAreTheWholeList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "rows")
		limit := rapid.IntRange(1, 10).Draw(t, "limit")
		fresh := func() []*record.APIKey {
			rows := make([]*record.APIKey, n)
			for i := range rows {
				rows[i] = &record.APIKey{Meta: record.Meta{ID: fmt.Sprintf("%08d-rest", i), CreateIndex: uint64(i / 3)}}
			}
			return rows
		}
		all, next, err := paginate(fresh(), ListOptions{Limit: MaxLimit})
		if err != nil || next != "" {
			t.Fatal(next, err)
		}
		var seen []string
		cursor := ""
		for {
			page, next, err := paginate(fresh(), ListOptions{Limit: limit, Cursor: cursor})
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
			if seen[i] != r.ID || i > 0 && all[i-1].CreateIndex < r.CreateIndex {
				t.Fatalf("row %d is %s, want %s", i, seen[i], r.ID)
			}
		}
	})
}

func FuzzReadCursor(f *testing.F) {
	f.Add("MTIuYWJj")
	f.Add("")
	f.Add("LjEyMzQ1Njc4OQ")
	f.Fuzz(func(t *testing.T, cursor string) {
		rows := []*record.APIKey{{Meta: record.Meta{ID: "abcdefghij", CreateIndex: 5}}}
		page, next, err := paginate(rows, ListOptions{Cursor: cursor})
		if err != nil && ErrorCode(err) != EInvalid {
			t.Fatal(err)
		}
		if len(page) > 1 || next != "" {
			t.Fatalf("%d rows, next %q", len(page), next)
		}
	})
}
