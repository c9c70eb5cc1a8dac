package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
)

// isTerminal reports whether w is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// The animation on a terminal's last line.
const (
	clearLine = "\r\x1b[K"
	frameTime = 100 * time.Millisecond
)

func frame(i int) rune { return []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10] }

// spin shows an animation on a terminal until the returned function is called.
// If w is no terminal, it shows nothing.
func spin(w io.Writer, what string) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer fmt.Fprint(w, clearLine)
		tick := time.NewTicker(frameTime)
		defer tick.Stop()
		start := time.Now()
		for i := 0; ; i++ {
			fmt.Fprintf(w, "%s%c %s %.1f s", clearLine, frame(i), what, time.Since(start).Seconds())
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
