package box

import (
	"context"
	"fmt"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Sleep hibernates a box to whose ports nobody is connected; one that sleeps is left
// as it is. While prepare makes sure that nothing is cut, and until the box sleeps,
// connections are refused as of a box that does not run. An error of prepare leaves it
// running, and so does whoever came in vain, for whom prepare's context ends at once:
// hosterr.ErrDatabaseBusy.
func (h *Host) Sleep(ctx context.Context, id string, prepare func(context.Context) error) (hostapi.Box, error) {
	return h.transition(ctx, id, "hibernate", func(ctx context.Context, b *box) error {
		rec, p := b.running()
		switch {
		case rec.State == ledger.Hibernated:
			return nil
		case p == nil:
			return b.illegal("hibernate")
		}
		vain := fmt.Errorf("%w: somebody came", hosterr.ErrDatabaseBusy)
		pctx, giveUp := context.WithCancelCause(ctx)
		defer giveUp(nil)
		if !b.line.Shut(func() { giveUp(vain) }) {
			return fmt.Errorf("%w: somebody is connected", hosterr.ErrDatabaseBusy)
		}
		defer b.line.Reopen() // it is hibernated by then, or goes on
		err := prepare(pctx)
		if _, came := b.line.IsShut(); came > 0 {
			return vain
		}
		if err != nil {
			return err
		}
		return b.hibernateAndTell(ctx, rec, p, true)
	})
}
