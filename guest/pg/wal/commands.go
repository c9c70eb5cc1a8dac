package wal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Exit codes of archive_command and restore_command. PostgreSQL takes every code up to
// 125 of a restore_command for "there is no such file", and ends recovery; above that
// it gives up. An archive_command that ends above 128 ends the archiver, which is
// started anew: a server that stops does not wait for its retries.
const (
	exitDone    = 0
	exitRefused = 1
	exitGiveUp  = 200
)

// Commands serves archive_command and restore_command on a local socket.
type Commands struct {
	Archive *Archive
	Fetch   func() *Fetch // of the restore that is under way, or nil
	UID     uint32        // whose calls are answered, beside root's
	Log     *slog.Logger
}

// Serve answers on the socket at path until ctx ends.
func (c *Commands) Serve(ctx context.Context, path string) error {
	_ = os.Remove(path) // of a guestpg before
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o666); err != nil { // who calls is looked at below
		listener.Close()
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /archive/{name}", c.archive)
	mux.HandleFunc("GET /restore/{name}", c.restore)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	err = server.Serve(fromUser{listener, c.UID})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (c *Commands) archive(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	switch err := c.Archive.Offer(r.Context(), name); {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, ErrStopping) || r.Context().Err() != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		c.Log.Error("WAL file not archived", "name", name, "error", err)
		http.Error(w, err.Error(), http.StatusConflict)
	}
}

func (c *Commands) restore(w http.ResponseWriter, r *http.Request) {
	fetch := c.Fetch()
	if fetch == nil {
		http.Error(w, ErrNoRestore.Error(), http.StatusServiceUnavailable)
		return
	}
	name := r.PathValue("name")
	bytes, found, err := fetch.Need(r.Context(), name)
	switch {
	case err != nil:
		c.Log.Error("WAL file not restored", "name", name, "error", err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case !found:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("Content-Length", fmt.Sprint(len(bytes)))
		_, _ = w.Write(bytes)
	}
}

// fromUser accepts the connections of one user and of root.
type fromUser struct {
	*net.UnixListener
	uid uint32
}

func (l fromUser) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if uid, err := peer(conn); err == nil && (uid == 0 || uid == l.uid) {
			return conn, nil
		}
		conn.Close()
	}
}

func peer(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if errControl := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); errControl != nil {
		return 0, errControl
	}
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

// Command is RunCommand with a command line: archive or restore, -socket S, two arguments.
func Command(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("guestpg", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	socket := flags.String("socket", "", "")
	_ = flags.Parse(args[1:]) // what is missing is said below
	return RunCommand(args[0], *socket, flags.Args(), stderr)
}

// RunCommand is archive_command and restore_command: it asks guestpg at a socket,
// says on stderr what went wrong, and returns the exit code. For an archive args are
// the path, which guestpg knows, and the name; for a restore the name and the path.
func RunCommand(mode, socket string, args []string, stderr io.Writer) int {
	if len(args) != 2 {
		fmt.Fprintf(stderr, "guestpg %s: want two arguments\n", mode)
		return exitGiveUp
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	var code int
	var err error
	switch mode {
	case "archive":
		code, err = askArchive(client, args[1])
	case "restore":
		code, err = askRestore(client, args[0], args[1])
	default:
		code, err = exitGiveUp, errors.New("no such command")
	}
	if err != nil {
		fmt.Fprintf(stderr, "guestpg %s: %v\n", mode, err)
	}
	return code
}

func askArchive(client *http.Client, name string) (int, error) {
	if _, err := pgapi.ParseWALName(name); err != nil {
		return exitRefused, err
	}
	resp, err := client.Post("http://guestpg/archive/"+name, "", nil)
	if err != nil {
		return exitGiveUp, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return exitDone, nil
	case http.StatusServiceUnavailable:
		return exitGiveUp, refusal(resp)
	}
	return exitRefused, refusal(resp)
}

func askRestore(client *http.Client, name, path string) (int, error) {
	if _, err := pgapi.ParseWALName(name); err != nil {
		return exitGiveUp, err
	}
	resp, err := client.Get("http://guestpg/restore/" + name)
	if err != nil {
		return exitGiveUp, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return exitRefused, nil
	default:
		return exitGiveUp, refusal(resp)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return exitGiveUp, err
	}
	if _, err = io.Copy(f, resp.Body); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return exitGiveUp, err
	}
	return exitDone, nil
}

func refusal(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return errors.New(string(raw))
}
