package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) logs() *cobra.Command {
	var (
		follow bool
		tail   int
		stream string
	)
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show the output of the template's start command, or the console",
		Example: `  berth logs $id -f
  berth logs $id --stream console --tail 50`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			q := api.LogQuery{Stream: stream, Tail: tail}
			if follow {
				return c.FollowLogs(cmd.Context(), args[0], q, a.printLogLine)
			}
			body, err := c.Logs(cmd.Context(), args[0], q)
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(a.stdout, body)
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "continue with new output, until Ctrl-C")
	f.IntVar(&tail, "tail", 0, "number of existing lines to show (default: all)")
	f.StringVar(&stream, "stream", "both", "stdout, stderr, both or console")
	return cmd
}

// printLogLine prints a line of a log to the stream that it is of.
func (a *app) printLogLine(stream string, l api.LogLine) error {
	if a.json {
		line := map[string]any{"stream": stream, "ts": l.TS, "line": l.Line}
		if l.Instance != "" {
			line["instance"] = l.Instance
		}
		if l.Partial {
			line["partial"] = true
		}
		return a.printLine(line)
	}
	out := a.stdout
	if stream == "stderr" {
		out = a.stderr
	}
	_, err := fmt.Fprintln(out, l.Line)
	return err
}

// printInstances prints lines of an app's instances: once there are two, each line with
// its own.
func (a *app) printInstances() func(stream string, l api.LogLine) error {
	first, several := "", false
	return func(stream string, l api.LogLine) error {
		if first == "" {
			first = l.Instance
		}
		several = several || l.Instance != first
		if several && !a.json {
			l.Line = "[" + l.Instance + "] " + l.Line
		}
		return a.printLogLine(stream, l)
	}
}

func (a *app) events() *cobra.Command {
	var (
		follow bool
		tail   int
		since  string
	)
	cmd := &cobra.Command{
		Use:   "events ID",
		Short: "Show the events of a sandbox",
		Example: `  berth events $id
  berth events $id -f --json | jq -c '[.ts, .type]'`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			var q api.EventQuery
			if cmd.Flags().Changed("tail") {
				q.Tail = &tail
			}
			if since != "" {
				if q.Since, err = instant(since, time.Now()); err != nil {
					return usage(cmd, "--since %s", err)
				}
			}
			if !follow {
				list, err := c.Events(cmd.Context(), args[0], q)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				for _, e := range list {
					a.showEvent(e)
				}
				return nil
			}
			for e, err := range c.FollowEvents(cmd.Context(), args[0], q) {
				if err != nil {
					return err
				}
				if a.json {
					if err := a.printLine(e); err != nil {
						return err
					}
					continue
				}
				a.showEvent(e)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "continue with new output, until Ctrl-C")
	f.IntVar(&tail, "tail", 100, "number of past events to show")
	f.StringVar(&since, "since", "", "only events after this time (2026-11-20T13:05:09.412Z) or this long ago (5m)")
	return cmd
}

func (a *app) showEvent(e api.Event) {
	meta := strings.TrimSpace(string(e.Metadata))
	if meta == "{}" {
		meta = ""
	}
	mark := " "
	if e.Code != api.EventOK {
		mark = "!"
	}
	fmt.Fprintf(a.stdout, "%s %s %-22s %s  %s\n", e.TS, mark, e.Type, onLine.Replace(plain(e.Message)), plain(meta))
}

// instant reads a time, or how long ago it was.
func instant(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q: want a time such as 2026-11-20T13:05:09Z, or a duration such as 5m", text)
	}
	return t, nil
}

func (a *app) port() *cobra.Command {
	list := &cobra.Command{
		Use: "ls ID", Aliases: []string{"list"}, Short: "List listening and registered ports",
		Args: wants(1, 1, "ID"), ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			ports, err := c.ListPorts(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(ports)
			}
			rows := [][]string{{"PORT", "PROTOCOL", "PROCESS", "LABEL", "URL"}}
			for _, p := range ports {
				rows = append(rows, []string{fmt.Sprint(p.Port), p.Protocol, orDash(p.Process), orDash(p.Label), orDash(p.URL)})
			}
			return a.table(rows)
		},
	}
	var label string
	add := &cobra.Command{
		Use: "add ID PORT", Short: "Register a port with a label and print its URL",
		Args: wants(2, 2, "ID and PORT"), ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, port, err := a.onPort(cmd, args)
			if err != nil {
				return err
			}
			p, err := c.AddPort(cmd.Context(), args[0], api.AddPort{Port: port, Label: label})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(p)
			}
			fmt.Fprintln(a.stdout, p.URL)
			return nil
		},
	}
	add.Flags().StringVar(&label, "label", "", "label for the port")
	remove := &cobra.Command{
		Use: "rm ID PORT", Short: "Unregister a port", Args: wants(2, 2, "ID and PORT"), ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, port, err := a.onPort(cmd, args)
			if err != nil {
				return err
			}
			return c.RemovePort(cmd.Context(), args[0], port)
		},
	}
	var life span
	open := &cobra.Command{
		Use: "token ID [PORT]", Short: "Print a link to one port of a private sandbox, or to all",
		Args: wants(1, 2, "ID"), ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := api.CreatePreviewToken{TTLSeconds: life.seconds}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if len(args) == 2 {
				_, port, err := a.onPort(cmd, args)
				if err != nil {
					return err
				}
				in.Port = &port
			}
			access, err := c.CreatePreviewToken(cmd.Context(), args[0], in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(access)
			}
			fmt.Fprintln(a.stdout, access.URL)
			return nil
		},
	}
	open.Flags().Var(&life, "ttl", "time until it expires (default 1h)")
	return group("port", "List and label the ports of a sandbox",
		`Every port of a sandbox is reachable at its preview URL, registered or not. A
server in the sandbox must listen on 0.0.0.0.`, list, add, remove, open)
}

func (a *app) onPort(cmd *cobra.Command, args []string) (*api.Client, int, error) {
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, 0, err
	}
	var port int
	if _, err := fmt.Sscanf(args[1], "%d", &port); err != nil {
		return nil, 0, usage(cmd, "%q is not a port", args[1])
	}
	return c, port, nil
}
