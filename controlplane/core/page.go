package core

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// ListOptions select a page of a list, newest first.
type ListOptions struct {
	Limit  int    // 0: DefaultLimit; more than MaxLimit is invalid
	Cursor string // "next" of the previous page; "" for the first

	Metadata string // of sandboxes: NAME=VALUE of those to list; "" for all
}

// Bounds of ListOptions.Limit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Paginate sorts rows newest first and returns the page that o selects. The cursor
// is the position of the page's last row, and stays valid if that row is deleted.
func Paginate[T record.Row](rows []T, o ListOptions) (page []T, next string, err error) {
	limit := cmp.Or(o.Limit, DefaultLimit)
	if limit < 1 || limit > MaxLimit {
		return nil, "", apierror.Invalid("invalid limit", "limit must be from 1 to %d", MaxLimit)
	}
	if o.Cursor != "" {
		last, err := readCursor(o.Cursor)
		if err != nil {
			return nil, "", err
		}
		rows = slices.DeleteFunc(rows, func(r T) bool {
			at := r.RowMeta().CreatedAt.UnixMilli()
			return at > last.at || at == last.at && positionOf(r).compare(last) <= 0
		})
	}
	page, more := newest(rows, limit)
	if !more {
		return page, "", nil
	}
	return page, positionOf(page[limit-1]).cursor(), nil
}

// newest returns the first rows of the order, as many as limit, and whether there are
// more. It changes the order of rows.
func newest[T record.Row](rows []T, limit int) (page []T, more bool) {
	page, more = rows, len(rows) > limit
	if more {
		// To sort a hundred thousand rows for a page of a hundred takes most of the time of
		// a list. Half of what is kept is sorted away each time it is full.
		page = slices.Clone(rows[:limit])
		slices.SortFunc(page, newerFirst)
		for _, r := range rows[limit:] {
			if newerFirst(r, page[limit-1]) >= 0 {
				continue
			}
			if page = append(page, r); len(page) == 2*limit {
				slices.SortFunc(page, newerFirst)
				page = page[:limit]
			}
		}
	}
	slices.SortFunc(page, newerFirst)
	return page[:min(len(page), limit)], more
}

// newerFirst compares positions. Ids are looked at only where they decide.
func newerFirst[T record.Row](a, b T) int {
	if c := cmp.Compare(b.RowMeta().CreatedAt.UnixMilli(), a.RowMeta().CreatedAt.UnixMilli()); c != 0 {
		return c
	}
	return positionOf(a).compare(positionOf(b))
}

// position is a row's place in the order of creation: the time that the list shows, in
// milliseconds, among rows of the same time the index of its transaction, and its id
// among the rows of one transaction. The index alone is another order than the one shown:
// transactions get their time before their place in the log. For a sandbox it contains
// only the beginning of the id, because the whole is a credential, and URLs are logged.
type position struct {
	at    int64
	index uint64
	id    string
}

func positionOf[T record.Row](row T) position {
	m := row.RowMeta()
	p := position{m.CreatedAt.UnixMilli(), m.CreateIndex, m.ID}
	if hostapi.ValidID(m.ID) {
		p.id = hostapi.ShortID(m.ID)
	}
	return p
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(q.at, p.at), cmp.Compare(q.index, p.index), strings.Compare(p.id, q.id))
}

func (p position) cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d.%s", p.at, p.index, p.id))
}

func readCursor(cursor string) (position, error) {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.SplitN(string(raw), ".", 3)
	if err != nil || len(parts) != 3 {
		return position{}, errCursor
	}
	at, badTime := strconv.ParseInt(parts[0], 10, 64)
	index, badIndex := strconv.ParseUint(parts[1], 10, 64)
	if badTime != nil || badIndex != nil {
		return position{}, errCursor
	}
	return position{at, index, parts[2]}, nil
}

var errCursor = &apierror.Error{Code: apierror.EInvalid, Message: "invalid cursor"}
