package sandbox

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The memory of a list of sandboxes is limited if the list is larger than freeList
// bytes: with their metadata, a thousand sandboxes take sixteen megabytes.
// Converting it to JSON takes up to listCopies times its size. restOfOne is the size
// of a sandbox without its metadata.
const (
	freeList   = 64 << 10
	listCopies = 2
	restOfOne  = 1 << 10
)

// withMetadata returns the rows whose metadata has a member, given as NAME=VALUE: a string,
// or another value that is written so in JSON.
func withMetadata(rows []*record.Sandbox, member string) ([]*record.Sandbox, error) {
	name, value, ok := strings.Cut(member, "=")
	if !ok || name == "" {
		return nil, apierror.Invalid("invalid metadata", "want NAME=VALUE")
	}
	var with []*record.Sandbox
	for _, r := range rows {
		var all map[string]json.RawMessage
		var text string
		if json.Unmarshal(r.Metadata, &all) != nil || all[name] == nil {
			continue
		}
		if json.Unmarshal(all[name], &text) == nil && text == value || string(all[name]) == value {
			with = append(with, r)
		}
	}
	return with, nil
}

// admitList waits for memory for a list of sandboxes, and holds it until ctx ends.
func (s *Sandboxes) admitList(ctx context.Context, c core.Caller, rows []*record.Sandbox) error {
	size := 0
	for _, r := range rows {
		size += restOfOne + len(r.Metadata) + len(r.Error)
	}
	if size <= freeList {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, core.AdmitWait)
	defer cancel()
	if err := s.core.Outputs.Admit(wait, ctx, c.WorkspaceID, listCopies*int64(size)); err != nil {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "too many long lists at once", Detail: "what this workspace has yet to read takes all that may be held",
			RetryAfter: time.Second, Err: err,
		}
	}
	return nil
}
