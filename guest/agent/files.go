package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
)

// fileHandler serves one request for a path that was checked. An error that it
// returns has not been answered yet.
type fileHandler func(w http.ResponseWriter, r *http.Request, path string) error

// onFiles checks the path, and keeps the request among the transfers.
func (s *Server) onFiles(handle fileHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		path, err := files.Path(r.URL.Query().Get("path"))
		if err != nil {
			refuse(w, err)
			return
		}
		ctx, leave, ok := s.transfer(w, r)
		if !ok {
			return
		}
		defer leave()
		if err := handle(w, r.WithContext(ctx), path); err != nil {
			refuse(w, err)
		}
	}
}

func refuse(w http.ResponseWriter, err error) {
	r := files.Refuse(err)
	reply(w, r.Status, guestapi.Error{Error: r.Text, Detail: r.Detail})
}

// getFile sends a file, or the part of it that was asked for.
func (s *Server) getFile(w http.ResponseWriter, r *http.Request, path string) error {
	f, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	if f.Size < 0 {
		// A file of /proc or /sys: its length is known at its end, and two reads may
		// differ.
		h.Set("Last-Modified", f.Modified.UTC().Format(http.TimeFormat))
		if r.Method == http.MethodHead {
			return nil
		}
		if _, err := w.Write(f.Head); err != nil {
			return nil
		}
		abortOn(copyAll(w, f.Rest()))
		return nil
	}
	h.Set("ETag", f.ETag)
	var content io.ReadSeeker = f.File
	if f.Head != nil {
		content = bytes.NewReader(f.Head)
	}
	onlyBytes(r.Header)
	http.ServeContent(&ranged{w, f.Size}, r, "", f.Modified, content)
	return nil
}

// onlyBytes drops a range of another unit, which RFC 9110 says is to be ignored:
// http.ServeContent refuses it, and knows its own unit in lower case alone.
func onlyBytes(h http.Header) {
	unit, set, ok := strings.Cut(h.Get("Range"), "=")
	if !ok || !strings.EqualFold(unit, "bytes") {
		h.Del("Range")
		return
	}
	h.Set("Range", "bytes="+set)
}

// ranged says with every refusal of a range how long the file is, which
// http.ServeContent says only of a range past its end.
type ranged struct {
	http.ResponseWriter
	size int64
}

func (w *ranged) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", w.size))
	}
	w.ResponseWriter.WriteHeader(status)
}

// ReadFrom keeps the way by which a file goes to a connection without a copy.
func (w *ranged) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }

func copyAll(to io.Writer, from io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, from, make([]byte, 32<<10))
	return err
}

// abortOn breaks off an answer that was begun, so that the caller sees an error.
func abortOn(err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// putFile replaces a file by the body, atomically.
func (s *Server) putFile(w http.ResponseWriter, r *http.Request, path string) error {
	mode, err := fileMode(r.URL.Query().Get("mode"))
	if err != nil {
		return err
	}
	body := &upload{Reader: r.Body}
	created, err := files.Write(path, mode, r.ContentLength, body)
	if err != nil && body.begun {
		linger(w, r, err)
		return nil
	}
	if err != nil {
		return err
	}
	if created {
		w.WriteHeader(http.StatusCreated)
	} else {
		w.WriteHeader(http.StatusNoContent)
	}
	return nil
}

// upload knows whether any of it was read.
type upload struct {
	io.Reader
	begun bool
}

func (u *upload) Read(b []byte) (int, error) {
	u.begun = true
	return u.Reader.Read(b)
}

// linger refuses an upload whose sender is still sending, and reads on for a
// while: closing the connection would reset it, and the answer with it.
func linger(w http.ResponseWriter, r *http.Request, err error) {
	conn := http.NewResponseController(w)
	_ = conn.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	refuse(w, err)
	if conn.Flush() == nil && conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_ = copyAll(io.Discard, r.Body)
	}
}

const defaultMode = 0o644

func fileMode(octal string) (uint32, error) {
	if octal == "" {
		return defaultMode, nil
	}
	mode, err := strconv.ParseUint(octal, 8, 32)
	if err != nil || mode > 0o7777 {
		return 0, &files.Refusal{
			Status: http.StatusBadRequest, Text: "invalid mode", Detail: fmt.Sprintf("%.20q is not an octal number up to 7777", octal),
		}
	}
	return uint32(mode), nil
}

func (s *Server) deleteFile(w http.ResponseWriter, r *http.Request, path string) error {
	recursive, err := flag(r, "recursive")
	if err != nil {
		return err
	}
	if err := files.Remove(r.Context(), path, recursive); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// flag reads a query parameter that is true or false; absent is false.
func flag(r *http.Request, name string) (bool, error) {
	switch value := r.URL.Query().Get(name); value {
	case "", "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	default:
		return false, &files.Refusal{Status: http.StatusBadRequest, Text: "invalid " + name, Detail: fmt.Sprintf("%.20q is neither true nor false", value)}
	}
}

// fileStat is a guestapi.FileStat as it is sent: public times have milliseconds,
// always three digits.
type fileStat struct {
	guestapi.FileStat
	ModifiedAt string `json:"modified_at"`
}

const milliseconds = "2006-01-02T15:04:05.000Z07:00"

// A file may have any time, but RFC 3339 has only the years 1 to 9999.
var (
	earliest = time.Date(1, time.January, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_999, time.UTC)
)

func onWire(st guestapi.FileStat) fileStat {
	at := st.ModifiedAt
	switch {
	case at.Before(earliest):
		at = earliest
	case at.After(latest):
		at = latest
	}
	return fileStat{st, at.Format(milliseconds)}
}

func (s *Server) statFile(w http.ResponseWriter, _ *http.Request, path string) error {
	st, err := files.Stat(path)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, onWire(st))
	return nil
}

// listDir sends a guestapi.Directory, entry by entry: a whole one may be larger
// than the agent.
func (s *Server) listDir(w http.ResponseWriter, r *http.Request, path string) error {
	l, err := files.List(path)
	if err != nil {
		return err
	}
	defer l.Close()
	quoted, err := json.Marshal(path)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 16<<10)
	fmt.Fprintf(out, `{"path":%s,"entries":[`, quoted)
	first := true
	err = l.Each(r.Context(), func(st guestapi.FileStat) error {
		raw, err := json.Marshal(onWire(st))
		if err != nil {
			return err
		}
		if !first {
			_ = out.WriteByte(',')
		}
		first = false
		_, err = out.Write(raw)
		return err
	})
	abortOn(err)
	_, _ = out.WriteString("]}")
	abortOn(out.Flush())
	return nil
}

func (s *Server) makeDir(w http.ResponseWriter, _ *http.Request, path string) error {
	if err := files.MakeDir(path); err != nil {
		return err
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusCreated)
	return nil
}
