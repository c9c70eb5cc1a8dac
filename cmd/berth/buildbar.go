package main

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// buildBar prints a build's log and, on a terminal, a progress bar below it, until
// it is stopped.
type buildBar struct {
	out, bar io.Writer // bar is nil if stderr is not a terminal

	mu      sync.Mutex
	step    string
	percent int
	began   time.Time
	frame   int

	quit, done chan struct{}
}

func (a *app) buildBar() *buildBar {
	b := &buildBar{out: a.stdout, step: "queued", began: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	if a.json || !isTerminal(a.stderr) {
		close(b.done)
		return b
	}
	b.bar = a.stderr
	go b.turn()
	return b
}

// turn redraws the bar regularly: a step may print nothing for minutes.
func (b *buildBar) turn() {
	defer close(b.done)
	tick := time.NewTicker(frameTime)
	defer tick.Stop()
	for {
		b.mu.Lock()
		b.draw()
		b.frame++
		b.mu.Unlock()
		select {
		case <-b.quit:
			fmt.Fprint(b.bar, clearLine)
			return
		case <-tick.C:
		}
	}
}

func (b *buildBar) stop() {
	close(b.quit)
	<-b.done
}

// buildStep matches a line that announces a step, with the build's progress and
// the time since its start.
var buildStep = regexp.MustCompile(`^==> (.+) \((\d{1,3}) %, [^)]*\)$`)

// line prints a line above the bar.
func (b *buildBar) line(text string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		fmt.Fprint(b.bar, clearLine)
	}
	_, err := fmt.Fprintln(b.out, text)
	if m := buildStep.FindStringSubmatch(text); m != nil {
		b.step = m[1]
		b.percent, _ = strconv.Atoi(m[2])
	}
	if b.bar != nil {
		b.draw()
	}
	return err
}

const (
	barWidth  = 24
	stepWidth = 28 // a longer command is cut
)

func (b *buildBar) draw() {
	full := min(b.percent, 100) * barWidth / 100
	step := b.step
	if utf8.RuneCountInString(step) > stepWidth {
		step = string([]rune(step)[:stepWidth-1]) + "…"
	}
	fmt.Fprintf(b.bar, "%s%c %s%s %3d %% %s %.1f s", clearLine, frame(b.frame), strings.Repeat("█", full), strings.Repeat("░", barWidth-full),
		min(b.percent, 100), step, time.Since(b.began).Seconds())
}
