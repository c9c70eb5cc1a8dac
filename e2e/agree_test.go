package e2e

import (
	"context"
	"testing"
	"time"
)

// agrees waits until the API, the hosts and the kernel agree on the tenant's
// sandboxes, and fails the test when they do not. The tenant must be the only
// one with sandboxes.
func (c *tenant) agrees(t *testing.T, most time.Duration) {
	t.Helper()
	eventually(t, most, "API, hosts and kernel agree", func(ctx context.Context) error {
		return theStack.Agreement(ctx, c.Client)
	})
}
