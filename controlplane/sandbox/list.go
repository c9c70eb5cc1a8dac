package sandbox

import (
	"context"
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
