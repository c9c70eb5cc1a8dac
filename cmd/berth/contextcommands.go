package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) contextCommands() *cobra.Command {
	g := group("context", "Switch between services that you signed in to",
		`A context is a service with your credentials for it. berth login makes one. They are
in $XDG_CONFIG_HOME/berth/config.yaml (~/.config/berth/config.yaml), which only you may
read. --context names the one of a command, BERTH_CONTEXT that of a shell. If BERTH_URL
or --url is set, no context is used; BERTH_TOKEN, BERTH_JWT and BERTH_ADMIN_TOKEN come
before what a context has, except with --context.`,
		a.contextList(), a.contextUse(), a.contextRemove())
	g.Aliases = []string{"contexts", "ctx"}
	return g
}

// listedContext is a context without its credentials.
type listedContext struct {
	Name        string   `json:"name"`
	Current     bool     `json:"current"`
	URLs        []string `json:"urls"`
	Credentials []string `json:"credentials"`
}

func (a *app) contextList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the contexts; * marks the current one",
		Example: `  berth context ls`,
		Args:    wants(0, 0, ""),
		RunE: func(*cobra.Command, []string) error {
			all, err := a.loadContexts()
			if err != nil {
				return err
			}
			list := []listedContext{}
			rows := [][]string{{"NAME", "URL", "CREDENTIALS"}}
			for _, name := range sortedKeys(all.Contexts) {
				s := all.Contexts[name]
				c := listedContext{Name: name, Current: name == all.Current, URLs: s.URLs, Credentials: s.kinds()}
				list = append(list, c)
				if c.Current {
					name += " *"
				}
				rows = append(rows, []string{name, strings.Join(s.URLs, ","), orDash(strings.Join(c.Credentials, ", "))})
			}
			if a.json {
				return a.printJSON(list)
			}
			return a.table(rows)
		},
	}
}

// kinds names the credentials that there are.
func (s *saved) kinds() []string {
	out := []string{}
	for _, k := range credentialKinds {
		if *s.credential(k.env) != "" {
			out = append(out, k.name)
		}
	}
	return out
}

func (a *app) contextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one",
		Example: `  berth context use staging`,
		Args:    wants(1, 1, "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := a.loadContexts()
			if err != nil {
				return err
			}
			if all.Contexts[args[0]] == nil {
				return unknownContext(all, args[0])
			}
			all.Current = args[0]
			if err := a.saveContexts(all); err != nil {
				return err
			}
			if urls := a.givenURLs(); len(urls) > 0 {
				a.note("BERTH_URL or BERTH_URLS is set, and comes before contexts: unset both to use %s", args[0])
			}
			return nil
		},
	}
}

func (a *app) contextRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Forget contexts and their credentials",
		Long:    "Forget contexts and their credentials. The credentials stay valid: to revoke an API key,\nuse berth token rm.",
		Example: `  berth context rm staging`,
		Args:    wants(1, -1, "NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			all, err := a.loadContexts()
			if err != nil {
				return err
			}
			for _, name := range args {
				if all.Contexts[name] == nil {
					return unknownContext(all, name)
				}
				delete(all.Contexts, name)
				if all.Current == name {
					all.Current = ""
				}
			}
			return a.saveContexts(all)
		},
	}
}

func unknownContext(all *contexts, name string) error {
	if len(all.Contexts) == 0 {
		return fmt.Errorf("there is no context %q, nor any other: berth login --url URL makes one", name)
	}
	return fmt.Errorf("there is no context %q, only %s", name, strings.Join(sortedKeys(all.Contexts), ", "))
}
