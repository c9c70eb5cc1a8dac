package loops

import "context"

// WhileLeading runs work each time this replica becomes leader, under a context that
// ends with the leadership, and waits for it to return: two leaderships never
// overlap in one process. It returns when ctx ends or the channel of raftstore's
// Leadership is closed.
func WhileLeading(ctx context.Context, leadership <-chan bool, work func(ctx context.Context)) {
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case leading, open := <-leadership:
			// Two trues in a row mean that leadership was lost and won again in
			// between.
			stop()
			stop = func() {}
			if !open {
				return
			}
			if leading {
				stop = start(ctx, work)
			}
		}
	}
}

// start runs work, and returns a function that ends it and waits for it.
func start(ctx context.Context, work func(ctx context.Context)) func() {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}
