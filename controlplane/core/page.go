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

// ListOptions page through a list, newest first.
type ListOptions struct {
	Limit  int    // 0: DefaultLimit; more than MaxLimit is invalid
	Cursor string // the "next" of the page before; "" for the first page
}

// Bounds of ListOptions.Limit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Paginate sorts rows newest first and cuts the page that o asks for. The cursor
// is the place of the page's last row, and holds when that one is gone.
func Paginate[T record.Row](rows []T, o ListOptions) (page []T, next string, err error) {
	limit := cmp.Or(o.Limit, DefaultLimit)
	if limit < 1 || limit > MaxLimit {
		return nil, "", apierror.Invalid("invalid limit", "limit must be from 1 to %d", MaxLimit)
	}
	slices.SortFunc(rows, func(a, b T) int { return placeOf(a).compare(placeOf(b)) })
	if o.Cursor != "" {
		last, err := readCursor(o.Cursor)
		if err != nil {
			return nil, "", err
		}
		rows = slices.DeleteFunc(rows, func(r T) bool { return placeOf(r).compare(last) <= 0 })
	}
	if len(rows) <= limit {
		return rows, "", nil
	}
	page = rows[:limit]
	return page, placeOf(page[limit-1]).cursor(), nil
}

// place is where a row stands in history: by when it was made, and by its id
// among those of one transaction. Of a sandbox's id only the beginning counts: the
// whole is a credential, and URLs are logged.
type place struct {
	index uint64
	id    string
}

func placeOf[T record.Row](row T) place {
	m := row.RowMeta()
	if hostapi.ValidID(m.ID) {
		return place{m.CreateIndex, hostapi.ShortID(m.ID)}
	}
	return place{m.CreateIndex, m.ID}
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(q.index, p.index), strings.Compare(p.id, q.id))
}

func (p place) cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", p.index, p.id))
}

func readCursor(cursor string) (place, error) {
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	first, id, ok := strings.Cut(string(raw), ".")
	index, notANumber := strconv.ParseUint(first, 10, 64)
	if err != nil || !ok || notANumber != nil {
		return place{}, &apierror.Error{Code: apierror.EInvalid, Message: "invalid cursor"}
	}
	return place{index, id}, nil
}
