package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// bootstrap is run in each database that initdb makes, without a server. Databases
// that a tenant makes are copies of template1, without its privileges.
var bootstrap = map[string]string{
	"template1": `
REVOKE CONNECT, TEMPORARY ON DATABASE template1 FROM PUBLIC;
REVOKE CONNECT, TEMPORARY ON DATABASE postgres FROM PUBLIC;
CREATE EXTENSION pg_stat_statements;
`,
	// Which role and database are the tenant's, whatever their names: a backup has
	// this in it, and a rename does not change it.
	"postgres": `
CREATE SCHEMA berth;
CREATE TABLE berth.tenant (one bool PRIMARY KEY DEFAULT true CHECK (one), role oid NOT NULL, database oid NOT NULL);
`,
}

// Init makes a data directory, whole or not at all. One that is there stays.
func Init(ctx context.Context, c Config) error {
	if _, err := os.Stat(filepath.Join(c.Data(), "PG_VERSION")); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	made := c.Data() + ".new"
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := c.MakeDir(made); err != nil {
		return err
	}
	if err := c.run(ctx, "", filepath.Join(c.Bin, "initdb"), "-D", made, "-U", Superuser, "--auth=reject", "--data-checksums",
		"--encoding=UTF8", "--locale-provider=libc", "--locale="+locale(), "--no-instructions", "--no-sync"); err != nil {
		return err
	}
	for _, database := range []string{"template1", "postgres"} {
		// In single-user mode a newline ends a statement.
		sql := strings.TrimSpace(bootstrap[database]) + "\n"
		if err := c.run(ctx, sql, filepath.Join(c.Bin, "postgres"), "--single", "-D", made, "-c", "exit_on_error=on", database); err != nil {
			return fmt.Errorf("prepare %s: %w", database, err)
		}
	}
	syscall.Sync()
	if err := os.Remove(c.Data()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // not empty: of a kind that is not PostgreSQL's
	}
	if err := os.Rename(made, c.Data()); err != nil {
		return err
	}
	syscall.Sync()
	return nil
}

// MakeDir makes a directory that the server's user alone may enter, and those above
// it that are missing.
func (c Config) MakeDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return c.own(path)
}

// run runs a program of PostgreSQL's as the server's user.
func (c Config) run(ctx context.Context, input, program string, args ...string) error {
	cred, err := c.Credential()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = c.Dir, []string{"PATH=/usr/bin:/bin", "LANG=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(program), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// locale is one that sorts by code point and knows all letters; every Debian has it.
func locale() string { return "C.UTF-8" }

// Version is that of the server's program: "16.14".
func Version(c Config) (string, error) {
	out, err := exec.Command(filepath.Join(c.Bin, "postgres"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("postgres --version: %w", err)
	}
	fields := strings.Fields(string(out)) // postgres (PostgreSQL) 16.14
	if len(fields) < 3 {
		return "", fmt.Errorf("postgres --version says %.100q", out)
	}
	return fields[2], nil
}
