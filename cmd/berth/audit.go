package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// auditFlags are what the two commands have in common.
type auditFlags struct {
	q            api.AuditQuery
	since, until string
	last         int
	verify       bool
	file, expect string
}

func (f *auditFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.q.ActorID, "actor", "", "only what this user, key (by its prefix) or operator did")
	cmd.Flags().StringVar(&f.q.Action, "action", "", "only this action, such as deleteDatabase")
	cmd.Flags().StringVar(&f.q.Outcome, "outcome", "", "only what ended so: ok, refused or failed")
	cmd.Flags().StringVar(&f.since, "since", "", "only this and later: a time (RFC 3339) or a duration before now, such as 24h")
	cmd.Flags().StringVar(&f.until, "until", "", "only earlier, likewise")
	cmd.Flags().IntVar(&f.last, "last", 0, "only the newest so many")
	cmd.Flags().BoolVar(&f.verify, "verify", false, "check the chains of hashes of all entries, and print where they begin and end")
	cmd.Flags().StringVar(&f.file, "file", "", "with --verify: check this file of JSON lines, - for standard input, instead of the log")
	cmd.Flags().StringVar(&f.expect, "expect", "", "with --verify: SEQUENCE:HASH of an entry that was noted before, and must be there unchanged")
}

// auditMoment reads a time, or a duration before now.
func auditMoment(cmd *cobra.Command, flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return t, usage(cmd, "--%s %q: want a time such as 2026-11-01T09:30:00Z, or a duration such as 24h", flag, text)
	}
	return t, nil
}

func (f *auditFlags) read(cmd *cobra.Command) (err error) {
	if f.q.Since, err = auditMoment(cmd, "since", f.since); err != nil {
		return err
	}
	if f.q.Until, err = auditMoment(cmd, "until", f.until); err != nil {
		return err
	}
	filtered := f.q.ActorID != "" || f.q.Action != "" || f.q.Outcome != "" || f.since != "" || f.until != "" || f.last != 0
	switch {
	case f.verify && filtered:
		return usage(cmd, "--verify is about all entries: leave out --actor, --action, --outcome, --since, --until and --last")
	case !f.verify && (f.file != "" || f.expect != ""):
		return usage(cmd, "--file and --expect go with --verify")
	case f.last < 0:
		return usage(cmd, "--last must be more than 0")
	}
	return nil
}

func (a *app) orgAudit() *cobra.Command {
	var f auditFlags
	var org string
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who did what in an organization (owners and admins)",
		Long: "Audit lists logins, and what was done with keys and people and deleted, oldest first.\nWith --json it prints JSON lines, for an archive. This command needs BERTH_JWT.",
		Example: `  berth audit --last 20
  berth audit --action deleteDatabase --since 24h
  berth audit --json > audit.jsonl
  berth audit --verify --file audit.jsonl`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runAudit(cmd, &f, func(ctx context.Context) (func(api.Page) ([]api.AuditEntry, string, error), error) {
				c, err := a.client(envJWT)
				if err != nil {
					return nil, err
				}
				if org == "" {
					me, err := c.Me(ctx)
					if err != nil {
						return nil, err
					}
					if me.CurrentOrg == nil {
						return nil, errors.New("you are a member of no organization; create one: berth org create NAME")
					}
					org = me.CurrentOrg.ID
				}
				return func(p api.Page) ([]api.AuditEntry, string, error) { return c.ListOrgAudit(ctx, org, f.q, p) }, nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&org, "org", "", "id of the organization (default: the current one)")
	return cmd
}

func (a *app) adminAudit() *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use: "audit", Short: "Show who did what in all workspaces, and what operators did",
		Long: "Audit lists the audit log, oldest first. With --json it prints JSON lines, for an archive.",
		Example: `  berth admin audit --last 50
  berth admin audit --workspace operators --since 168h
  berth admin audit --json > audit.jsonl
  berth admin audit --verify                                 # prints the last hash of each log: note it
  berth admin audit --verify --workspace ws-q5t3nz7k --expect 412:9f3c…`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runAudit(cmd, &f, func(ctx context.Context) (func(api.Page) ([]api.AuditEntry, string, error), error) {
				c, err := a.client(envAdmin)
				if err != nil {
					return nil, err
				}
				return func(p api.Page) ([]api.AuditEntry, string, error) { return c.ListAudit(ctx, f.q, p) }, nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.q.WorkspaceID, "workspace", "", "only the log of this workspace; operators: what concerns none")
	return cmd
}

// runAudit prints or verifies the log that open gives access to.
func (a *app) runAudit(cmd *cobra.Command, f *auditFlags, open func(context.Context) (func(api.Page) ([]api.AuditEntry, string, error), error)) error {
	if err := f.read(cmd); err != nil {
		return err
	}
	if f.file != "" {
		entries, err := readAudit(f.file)
		if err != nil {
			return err
		}
		return a.verifyAudit(entries, f)
	}
	list, err := open(cmd.Context())
	if err != nil {
		return err
	}
	entries, err := auditPages(list, f.last)
	if err != nil {
		return err
	}
	slices.Reverse(entries)
	switch {
	case f.verify:
		return a.verifyAudit(entries, f)
	case a.json:
		out := json.NewEncoder(a.stdout)
		out.SetEscapeHTML(false)
		for _, e := range entries {
			if err := out.Encode(e); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"TIME", "LOG", "ACTOR", "ACTION", "RESOURCE", "OUTCOME"}}
	for _, e := range entries {
		outcome := e.Outcome
		if e.Error != "" {
			outcome += ": " + e.Error
		}
		rows = append(rows, []string{
			e.Time.String(), orDefault(e.WorkspaceID, api.AuditOperators), strings.TrimSuffix(e.ActorType+" "+e.ActorID, " "), e.Action, orDash(e.Resource), outcome,
		})
	}
	return a.table(rows)
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// auditPages collects the newest entries; 0: all.
func auditPages(list func(api.Page) ([]api.AuditEntry, string, error), last int) (all []api.AuditEntry, err error) {
	page := api.Page{Limit: api.MaxListLimit}
	if last > 0 {
		page.Limit = min(last, page.Limit)
	}
	for {
		items, next, err := list(page)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if last > 0 && len(all) >= last {
			return all[:last], nil
		}
		if next == "" {
			return all, nil
		}
		page.Cursor = next
	}
}

// maxAuditLine limits a line of a file, in bytes; an entry has less than 2 KB.
const maxAuditLine = 64 << 10

func readAudit(name string) (out []api.AuditEntry, err error) {
	var in io.Reader = os.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxAuditLine)
	for n := 1; lines.Scan(); n++ {
		if len(strings.TrimSpace(lines.Text())) == 0 {
			continue
		}
		var e api.AuditEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		out = append(out, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return out, nil
}

func (a *app) verifyAudit(entries []api.AuditEntry, f *auditFlags) error {
	heads, err := api.VerifyAudit(entries)
	if err != nil {
		return fmt.Errorf("the audit log does not hold: %w", err)
	}
	if f.expect != "" {
		sequence, hash, _ := strings.Cut(f.expect, ":")
		n, err := strconv.ParseUint(sequence, 10, 64)
		if err != nil || hash == "" {
			return fmt.Errorf("--expect %q: want SEQUENCE:HASH, as --verify prints them", f.expect)
		}
		if len(heads) > 1 {
			return errors.New("--expect is about one log: name it with --workspace")
		}
		if !slices.ContainsFunc(entries, func(e api.AuditEntry) bool { return e.Sequence == n && e.Hash == hash }) {
			return fmt.Errorf("the audit log does not hold: it has no entry %d with the hash %s", n, hash)
		}
	}
	if a.json {
		if heads == nil {
			heads = []api.AuditHead{}
		}
		return a.printJSON(heads)
	}
	a.note("the audit log holds: %d entries, none changed or missing between the first and the last of each log", len(entries))
	rows := [][]string{{"LOG", "FIRST", "LAST", "HASH"}}
	for _, h := range heads {
		rows = append(rows, []string{
			orDefault(h.WorkspaceID, api.AuditOperators), strconv.FormatUint(h.First, 10), strconv.FormatUint(h.Last, 10), h.Hash,
		})
	}
	return a.table(rows)
}
