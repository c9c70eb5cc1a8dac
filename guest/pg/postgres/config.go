// Package postgres keeps one PostgreSQL server running as it should be: its files
// of configuration, its process, and the platform's own way in.
package postgres

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/guest/pg/tune"
	"github.com/berth-cloud/berth/guest/pgapi"
)

// Superuser is the platform's role: the one that initdb makes. Nobody logs in as it
// but who is guestpg's user, by the local socket.
const Superuser = "berth"

// AppName is the application_name of the platform's sessions.
const AppName = "berth"

// Config says where a server is and who may reach it.
type Config struct {
	Bin     string     // directory of initdb and postgres
	Dir     string     // on the database's volume; data/, conf/ and more
	Run     string     // directory of the local sockets
	User    string     // whom the server runs as; "": who runs guestpg
	Listen  netip.Addr // PostgreSQL's address, and the one from which log-ins are proven
	Port    uint16
	Gateway netip.Addr // where clients come from, and nobody else
	Program string     // guestpg, for archive_command and restore_command
	Output  io.Writer  // gets what the server writes
	Log     *slog.Logger
}

// Data is PostgreSQL's data directory.
func (c Config) Data() string { return filepath.Join(c.Dir, "data") }

func (c Config) conf(name string) string { return filepath.Join(c.Dir, "conf", name) }

// Mode is how a server runs.
type Mode struct {
	// Limited makes transactions read-only unless they ask not to be.
	Limited bool
	// Standby runs the server as a standby without a primary: no session can write,
	// whoever it is, and what is pending is archived all the same.
	Standby bool
	// Closed lets nobody in but the platform.
	Closed bool
	// Recovery replays the archive and then begins a new timeline.
	Recovery *Recovery
}

// Recovery is how far the archive is replayed.
type Recovery struct {
	TargetTime string // for recovery_target_time; "": to the end
}

// writeConf writes all that the server reads, and returns what it would have to
// start again for.
func (c Config) writeConf(s pgapi.Settings, m Mode) (startPart string, err error) {
	atStart, atReload := c.params(s, m)
	files := map[string]string{
		"postgresql.conf": header + render(atStart) + "\n" + render(atReload),
		"pg_hba.conf":     c.hba(m),
		"pg_ident.conf":   c.ident(),
	}
	if err := os.MkdirAll(c.conf(""), 0o755); err != nil {
		return "", err
	}
	for name, content := range files {
		if err := atomicfile.Write(c.conf(name), []byte(content), 0o644); err != nil {
			return "", fmt.Errorf("write %s: %w", name, err)
		}
	}
	return render(atStart), nil
}

const header = "# Written by guestpg at each start and change. Nothing else has a say: see\n# clearOverrides.\n\n"

// params are the platform's settings, the first of which are taken at a start alone.
func (c Config) params(s pgapi.Settings, m Mode) (start, reload []tune.Param) {
	start, reload = tune.Params(s)
	archiveMode := "on"
	if m.Standby {
		archiveMode = "always" // with "on" a standby archives nothing, and removes what is pending
	}
	start = append(start, []tune.Param{
		{Name: "data_directory", Value: c.Data()},
		{Name: "hba_file", Value: c.conf("pg_hba.conf")},
		{Name: "ident_file", Value: c.conf("pg_ident.conf")},
		{Name: "listen_addresses", Value: c.Listen.String()},
		{Name: "port", Value: strconv.Itoa(int(c.Port))},
		{Name: "unix_socket_directories", Value: c.Run},
		{Name: "superuser_reserved_connections", Value: "5"},
		{Name: "max_wal_senders", Value: "4"},
		{Name: "max_replication_slots", Value: "0"},
		{Name: "wal_level", Value: "replica"},
		{Name: "wal_buffers", Value: "16MB"},
		{Name: "archive_mode", Value: archiveMode},
		// Recovery of what a larger server wrote would stop for max_connections.
		{Name: "hot_standby", Value: onOff(m.Recovery == nil)},
		{Name: "shared_preload_libraries", Value: "pg_stat_statements"},
		{Name: "huge_pages", Value: "off"},
		{Name: "logging_collector", Value: "off"},
	}...)
	reload = append(reload, []tune.Param{
		{Name: "archive_command", Value: c.command("archive %p %f")},
		{Name: "restore_command", Value: c.restoreCommand(m)},
		// One call, and not one for each of some thousand files, before a recovery.
		{Name: "recovery_init_sync_method", Value: "syncfs"},
		{Name: "password_encryption", Value: "scram-sha-256"},
		{Name: "ssl", Value: "off"}, // ends at the router; the link to the host is private
		{Name: "authentication_timeout", Value: "20s"},
		{Name: "client_connection_check_interval", Value: "10s"},
		{Name: "tcp_keepalives_idle", Value: "120"},
		{Name: "default_transaction_read_only", Value: onOff(m.Limited)},
		{Name: "createrole_self_grant", Value: "set, inherit"},
		{Name: "wal_compression", Value: "on"},
		{Name: "random_page_cost", Value: "1.1"},
		{Name: "checkpoint_completion_target", Value: "0.9"},
		{Name: "log_destination", Value: "stderr"},
		{Name: "log_line_prefix", Value: "%m [%p] %q%u@%d "},
		{Name: "log_timezone", Value: "UTC"},
		{Name: "timezone", Value: "UTC"},
		{Name: "lc_messages", Value: "C"},
	}...)
	if r := m.Recovery; r != nil {
		start = append(start, []tune.Param{
			{Name: "recovery_target_timeline", Value: "latest"},
			{Name: "recovery_target_action", Value: "promote"},
			{Name: "recovery_target_inclusive", Value: "on"},
			{Name: "recovery_target_time", Value: r.TargetTime},
		}...)
		reload = append(reload, c.recoveryWAL(s)...)
	}
	return start, reload
}

// leastWAL is the least that max_wal_size may be, in MB.
const leastWAL = 2 * pgapi.SegmentBytes >> 20

// recoveryWAL bounds the WAL that a recovery keeps by what is free: it keeps what it has
// replayed until a restartpoint, which is begun by max_wal_size. That may be more than the
// database, which knows its disk to be nearly full, ever had at once.
func (c Config) recoveryWAL(s pgapi.Settings) []tune.Param {
	var st syscall.Statfs_t
	if err := syscall.Statfs(c.Dir, &st); err != nil {
		return nil
	}
	part := int64(st.Bavail) * st.Bsize >> 20 / 4
	if part >= int64(tune.MaxWAL(s)) {
		return nil
	}
	return []tune.Param{{Name: "max_wal_size", Value: fmt.Sprintf("%dMB", max(part, leastWAL))}}
}

// command is a shell command that runs guestpg. PostgreSQL replaces %p and %f, and
// takes %% for a percent sign.
func (c Config) command(args string) string {
	quote := func(s string) string {
		return "'" + strings.NewReplacer("'", `'\''`, "%", "%%").Replace(s) + "'"
	}
	return "exec " + quote(c.Program) + " " + strings.Replace(args, " ", " -socket "+quote(c.CommandSocket())+" ", 1)
}

func (c Config) restoreCommand(m Mode) string {
	if m.Recovery == nil {
		return "false" // a standby without a primary looks for nothing
	}
	return c.command("restore %f %p")
}

// CommandSocket is where archive_command and restore_command find guestpg.
func (c Config) CommandSocket() string { return filepath.Join(c.Run, "guestpg.sock") }

// hba lets in: the platform by the local socket, and roles with a password from the
// gateway, or from the guest's own address, whence guestpg proves that they can log in.
// "all" does not mean replication.
func (c Config) hba(m Mode) string {
	lines := []string{
		"local all         all peer map=platform",
		"local replication " + Superuser + " peer map=platform",
		"host  all         " + Superuser + " 0.0.0.0/0 reject",
		"host  all         " + Superuser + " ::/0 reject",
	}
	if !m.Closed {
		for _, addr := range []netip.Addr{c.Gateway, c.Listen} {
			lines = append(lines, fmt.Sprintf("host  all         all %s scram-sha-256", netip.PrefixFrom(addr, addr.BitLen())))
		}
	}
	lines = append(lines, "host  all         all 0.0.0.0/0 reject", "host  all         all ::/0 reject")
	return strings.Join(lines, "\n") + "\n"
}

// ident has guestpg's user be whatever role it asks for: the platform's, or the
// tenant's for the broker. The server's own user, whom a database session could act
// as, is none.
func (c Config) ident() string {
	self := strconv.Itoa(os.Getuid())
	if u, err := user.LookupId(self); err == nil {
		self = u.Username
	}
	return fmt.Sprintf("platform %q all\n", self)
}

// clearOverrides empties postgresql.auto.conf, which the server reads last, and which
// came with the data, and the recovery settings that a base backup may hold.
func (c Config) clearOverrides(m Mode) error {
	for name, wanted := range map[string]bool{
		"postgresql.auto.conf": true, "standby.signal": m.Standby, "recovery.signal": m.Recovery != nil,
	} {
		path := filepath.Join(c.Data(), name)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
		if !wanted {
			continue
		}
		if err := c.ownFile(path, nil); err != nil {
			return err
		}
	}
	return nil
}

// ownFile makes a file that belongs to the server.
func (c Config) ownFile(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return c.own(path)
}

// own gives a file to the server's user.
func (c Config) own(path string) error {
	cred, err := c.Credential()
	if err != nil || cred == nil {
		return err
	}
	return os.Lchown(path, int(cred.Uid), int(cred.Gid))
}

// Credential is the server's user, or nil where it is guestpg's own.
func (c Config) Credential() (*syscall.Credential, error) {
	if c.User == "" {
		return nil, nil
	}
	u, err := user.Lookup(c.User)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func render(params []tune.Param) string {
	var b strings.Builder
	for _, p := range params {
		fmt.Fprintf(&b, "%s = '%s'\n", p.Name, strings.NewReplacer("'", "''", `\`, `\\`).Replace(p.Value))
	}
	return b.String()
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
