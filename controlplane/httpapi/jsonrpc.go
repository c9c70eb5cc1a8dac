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

// Limits of the base protocol of language servers. Each message has a header of a
// few lines.
const (
	maxRPCMessage = 16 << 20
	maxRPCHeader  = 4 << 10 // all lines together
)

var errRPC = errors.New("not a message of the language server protocol")

// readRPC reads the next message of a language server: a header with the content's
// length, an empty line, and the content. It returns io.EOF only between messages.
// If the content is larger than freeInput, it reads the rest only after hold, called
// with the length, has returned. The caller calls release when it no longer needs
// the message.
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
	// Do not allocate the announced length before the content has arrived.
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

// frameRPC adds the header that language servers expect.
func frameRPC(content []byte) []byte {
	head := "Content-Length: " + strconv.Itoa(len(content)) + "\r\n\r\n"
	return append(append(make([]byte, 0, len(head)+len(content)), head...), content...)
}
