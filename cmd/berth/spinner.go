package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
)

// isTerminal reports whether a person looks at w.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// spin shows on a terminal that something goes on, until the returned function
// is called. Anywhere else it shows nothing.
func spin(w io.Writer, what string) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		const clear = "\r\x1b[K"
		defer fmt.Fprint(w, clear)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		start := time.Now()
		for i := 0; ; i++ {
			fmt.Fprintf(w, "%s%c %s %.1f s", clear, []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10], what, time.Since(start).Seconds())
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}
