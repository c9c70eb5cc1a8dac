package command

import (
	"io"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/app/mask"
)

// idle is after how long without output the end of it is let go that could be the
// beginning of a secret.
const idle = time.Second

// Output masks what several write to it, and passes it on in order.
type Output struct {
	mu   sync.Mutex
	w    *mask.Writer
	wait *time.Timer
}

// NewOutput returns an output to w without the secrets. Close ends it.
func NewOutput(w io.Writer, secrets []string) *Output {
	o := &Output{w: mask.NewWriter(w, secrets)}
	o.wait = time.AfterFunc(idle, o.idle)
	o.wait.Stop()
	return o
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait.Reset(idle)
	return o.w.Write(p)
}

func (o *Output) idle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.w.Idle() // the log takes everything
}

// Flush passes on what is held.
func (o *Output) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wait.Stop()
	return o.w.Flush()
}

// Close ends the output.
func (o *Output) Close() error { return o.Flush() }
