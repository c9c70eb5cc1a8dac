package loops

import "context"

// ExpiredRows is one pass of the loop.
func (l *Loops) ExpiredRows(ctx context.Context) { l.expiredRows(ctx) }
