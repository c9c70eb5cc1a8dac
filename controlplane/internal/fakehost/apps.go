package fakehost

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Dialled serves a connection to a port of a box, and closes it; it reports whether
// anything listens there. It must not wait for the connection to end.
type Dialled func(boxID string, port int, conn net.Conn) bool

// SetDial sets what listens in the guests.
func (h *Host) SetDial(d Dialled) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dialled = d
}

// Blobs returns the names of the host's blobs.
func (h *Host) Blobs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.blobs))
}

// Blob returns a blob.
func (h *Host) Blob(name string) ([]byte, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	data, ok := h.blobs[name]
	return data, ok
}

// blobCall returns the operation and name of a call about a blob, or "".
func blobCall(r *http.Request) (op, name string) {
	rest, ok := strings.CutPrefix(r.URL.Path, hostapi.PathBlobs+"/")
	if !ok {
		return "", ""
	}
	return "blob." + strings.ToLower(r.Method), rest
}

func (h *Host) serveBlob(w http.ResponseWriter, r *http.Request, c Call) {
	switch c.Op {
	case "blob.put":
		data, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		h.mu.Lock()
		if h.blobs == nil {
			h.blobs = map[string][]byte{}
		}
		h.blobs[c.ID] = data
		h.mu.Unlock()
		if c.Done = true; h.faulty(w, r, c) {
			return
		}
		sum := sha256.Sum256(data)
		reply(w, hostapi.BlobInfo{SizeBytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:]), Local: true}, nil)
	case "blob.get":
		data, ok := h.Blob(c.ID)
		if !ok {
			reply(w, nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such blob"})
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data) // the caller may be gone
	default:
		h.mu.Lock()
		delete(h.blobs, c.ID)
		h.mu.Unlock()
		reply(w, nil, nil)
	}
}

// bufferedConn is a connection of which a part may have been read.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (h *Host) serveDial(w http.ResponseWriter, _ *http.Request, c Call) {
	port, _ := strconv.Atoi(strings.TrimPrefix(c.Op, "dial/"))
	h.mu.Lock()
	d := h.dialled
	h.mu.Unlock()
	here, there := net.Pipe()
	if d == nil || !d(c.ID, port, there) {
		here.Close()
		there.Close()
		reply(w, nil, &hostapi.Error{Code: hostapi.CodePortClosed, Message: "nothing listens on that port"})
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		here.Close()
		return
	}
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", hostapi.UpgradeTCP)
	if rw.Flush() == nil {
		splice(bufferedConn{conn, rw.Reader}, here)
	}
	conn.Close()
	here.Close()
}

// splice copies in both directions until either ends.
func splice(a, b net.Conn) {
	over := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // the other end may hang up
			over <- struct{}{}
		}()
	}
	<-over
	a.Close()
	b.Close()
	<-over
}
