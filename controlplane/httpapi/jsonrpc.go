package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strconv"
	"strings"
)

// Bounds of the base protocol of language servers, in which each message has a
// header of a few lines.
const (
	maxRPCMessage = 16 << 20
	maxRPCHeader  = 4 << 10 // all lines
)

var errRPC = errors.New("not a message of the language server protocol")

// readRPC reads the next message of a language server: a header with the
// content's length, an empty line, the content. It returns io.EOF only between
// messages. Once freeInput of a larger content is there, the rest is read when
// hold, which is told its length, returns; release is called when the message is
// not held any more.
func readRPC(r *bufio.Reader, hold func(bytes int64) (func(), error)) (content []byte, release func(), err error) {
	length, read := -1, 0
	for {
		line, err := r.ReadSlice('\n')
		read += len(line)
		switch {
		case errors.Is(err, io.EOF) && read == 0:
			return nil, nil, io.EOF
		case errors.Is(err, io.EOF):
			return nil, nil, io.ErrUnexpectedEOF
		case errors.Is(err, bufio.ErrBufferFull), read > maxRPCHeader:
			return nil, nil, fmt.Errorf("%w: its header is too long", errRPC)
		case err != nil:
			return nil, nil, err
		}
		text := textproto.TrimString(string(line))
		if text == "" {
			break
		}
		name, value, ok := strings.Cut(text, ":")
		if !ok {
			return nil, nil, fmt.Errorf("%w: a line of its header is none", errRPC)
		}
		if !strings.EqualFold(name, "Content-Length") {
			continue
		}
		n, err := strconv.ParseUint(textproto.TrimString(value), 10, 31)
		if err != nil || n > maxRPCMessage {
			return nil, nil, fmt.Errorf("%w: its length is %.20q; at most %d", errRPC, value, maxRPCMessage)
		}
		length = int(n)
	}
	if length < 0 {
		return nil, nil, fmt.Errorf("%w: its header has no Content-Length", errRPC)
	}
	// What is announced is not believed before it is there.
	release = func() {}
	content, err = io.ReadAll(io.LimitReader(r, min(int64(length), freeInput)))
	if err == nil && len(content) == freeInput && length > freeInput {
		if release, err = hold(int64(length)); err != nil {
			return nil, nil, err
		}
		content, err = io.ReadAll(io.MultiReader(bytes.NewReader(content), io.LimitReader(r, int64(length-freeInput))))
	}
	if err == nil && len(content) < length {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		release()
	}
	return content, release, err
}

// frameRPC is a message as language servers read it.
func frameRPC(content []byte) []byte {
	head := "Content-Length: " + strconv.Itoa(len(content)) + "\r\n\r\n"
	return append(append(make([]byte, 0, len(head)+len(content)), head...), content...)
}
