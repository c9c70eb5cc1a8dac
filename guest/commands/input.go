package commands

import (
	"fmt"
	"net/http"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
)

// inputPiece is how much input is written at once, in bytes: what is not written yet
// counts as held.
const inputPiece = 64 << 10

var errInputTooLarge = &files.Refusal{
	Status: http.StatusRequestEntityTooLarge, Text: "request body too large",
	Detail: fmt.Sprintf("input is at most %d bytes at once; write more to a file, or send it in parts", guestapi.MaxInput),
}

// Input queues input for the command, all of it or nothing. With eof it is the last.
func (c *Command) Input(data []byte, eof bool) error {
	switch {
	case len(data) > guestapi.MaxInput:
		return errInputTooLarge
	case c.ended():
		return &files.Refusal{Status: http.StatusConflict, Text: TextEnded}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return &files.Refusal{Status: http.StatusConflict, Text: TextClosed, Detail: "nothing can follow the end of the input"}
	}
	n := int64(len(data))
	if c.queued+n > guestapi.MaxInput || !c.table.take(n) {
		return &files.Refusal{
			Status: http.StatusTooManyRequests, Text: TextFull,
			Detail: fmt.Sprintf("the command has not read %d bytes of its input yet", c.queued),
		}
	}
	c.queued += n
	c.queue = append(c.queue, data...)
	c.open = !eof
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// take counts n bytes of input that are held, if there may be as many.
func (t *Table) take(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held+n > guestapi.MaxHeldInput {
		return false
	}
	t.held += n
	return true
}

func (t *Table) give(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held -= n
}

// feed writes the input at the command's pace, until its end or the command's.
func (c *Command) feed() {
	defer c.drop()
	for {
		piece, last := c.nextPiece()
		switch {
		case piece != nil:
			_, err := c.process.Write(piece)
			c.wrote(int64(len(piece)))
			if err != nil {
				return // the command has closed its input, or has ended
			}
		case last:
			_ = c.process.CloseStdin()
			return
		default:
			select {
			case <-c.wake:
			case <-c.over:
				return
			}
		}
	}
}

// nextPiece takes a piece from the queue. last says that no more will come.
func (c *Command) nextPiece() (piece []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil, !c.open
	}
	n := min(len(c.queue), inputPiece)
	piece, c.queue = c.queue[:n], c.queue[n:]
	return piece, false
}

func (c *Command) wrote(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queued -= n
	c.table.give(n)
}

// drop closes the input and forgets what nobody will read.
func (c *Command) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.give(c.queued)
	c.queue, c.queued, c.open = nil, 0, false
}
