package main

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) webhook() *cobra.Command {
	g := group("webhook", "Have events sent to URLs of your own",
		`Events of the workspace are POSTed to the URLs that you register, each signed with
the URL's secret, and again until it is answered with a 2xx. docs/webhooks.md
says what they contain and how a receiver verifies them.`,
		a.webhookCreate(), a.webhookList(), a.webhookUpdate(), a.webhookRemove(), a.webhookRotate(), a.webhookTest(),
		a.webhookDeliveries(), a.webhookReplay(), a.webhookEvents(), a.webhookListen())
	g.Aliases = []string{"webhooks"}
	return g
}

// eventTypes are the values of --event.
func eventTypes(names []string) []api.WebhookEventType {
	out := make([]api.WebhookEventType, len(names))
	for i, n := range names {
		out[i] = api.WebhookEventType(n)
	}
	return out
}

func subscribed(events []api.WebhookEventType) string {
	if len(events) == 0 {
		return "all"
	}
	names := make([]string, len(events))
	for i, e := range events {
		names[i] = string(e)
	}
	return strings.Join(names, ",")
}

// printSecret prints an endpoint's secret, and on stderr whose it is.
func (a *app) printSecret(e *api.NewWebhookEndpoint) error {
	if a.json {
		return a.printJSON(e)
	}
	a.note("endpoint %s; store its secret now: it is not shown again", e.ID)
	fmt.Fprintln(a.stdout, e.Secret)
	return nil
}

func (a *app) webhookCreate() *cobra.Command {
	var events []string
	cmd := &cobra.Command{
		Use: "create URL", Short: "Register a URL and print its signing secret once", Args: wants(1, 1, "URL"),
		Example: `  berth webhook create https://hooks.example.com/berth
  berth webhook create https://hooks.example.com/berth --event quota.warning --event quota.exhausted`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			for other, err := range c.WebhookEndpoints(cmd.Context()) {
				if err != nil {
					break // the create says more
				}
				if other.URL == args[0] {
					a.note("warning: %s has this URL too: both are sent each event, each signed with its own secret; to replace it: berth webhook rm %[1]s", other.ID)
					break
				}
			}
			e, err := c.CreateWebhookEndpoint(cmd.Context(), api.CreateWebhookEndpoint{URL: args[0], Events: eventTypes(events)}, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			return a.printSecret(e)
		},
	}
	cmd.Flags().StringSliceVar(&events, "event", nil, "a type of event to send (default all); see berth webhook events")
	return cmd
}

func (a *app) webhookList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List endpoints, newest first", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.WebhookEndpoint{}
			for e, err := range c.WebhookEndpoints(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, e)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "URL", "EVENTS", "AGE"}}
			for _, e := range all {
				rows = append(rows, []string{e.ID, e.URL, subscribed(e.Events), age(e.CreatedAt.Time)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) webhookUpdate() *cobra.Command {
	var url string
	var events []string
	cmd := &cobra.Command{
		Use: "update ID", Short: "Change the URL or the events of an endpoint", Args: wants(1, 1, "ID"),
		Example: `  berth webhook update we-k7m2qz4xw3v5n6a2j7p4 --set-url https://hooks.example.com/v2
  berth webhook update we-k7m2qz4xw3v5n6a2j7p4 --event ""`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var in api.PatchWebhookEndpoint
			if cmd.Flags().Changed("set-url") {
				in.URL = api.SetTo(url)
			}
			if cmd.Flags().Changed("event") {
				in.Events = api.SetTo(eventTypes(events))
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			e, err := c.PatchWebhookEndpoint(cmd.Context(), args[0], in)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(e)
			}
			return a.fields("id", e.ID, "url", e.URL, "events", subscribed(e.Events))
		},
	}
	cmd.Flags().StringVar(&url, "set-url", "", "where events go from now on")
	cmd.Flags().StringSliceVar(&events, "event", nil, `a type of event to send; "" for all`)
	return cmd
}

func (a *app) webhookRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Aliases: []string{"delete"}, Short: "Delete endpoints and their deliveries", Args: wants(1, -1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return c.DeleteWebhookEndpoint(cmd.Context(), id) })
		},
	}
}

func (a *app) webhookRotate() *cobra.Command {
	return &cobra.Command{
		Use: "rotate ID", Short: "Give an endpoint another signing secret and print it once", Args: wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			e, err := c.RotateWebhookSecret(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printSecret(e)
		},
	}
}

func (a *app) webhookTest() *cobra.Command {
	return &cobra.Command{
		Use: "test ID", Short: "Send a test event to an endpoint", Args: wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			d, err := c.TestWebhookEndpoint(cmd.Context(), args[0])
			return a.printDelivery(d, err)
		},
	}
}

func (a *app) webhookReplay() *cobra.Command {
	return &cobra.Command{
		Use: "replay ID DELIVERY", Short: "Send a delivery again", Args: wants(2, 2, "ID and DELIVERY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			d, err := c.ReplayWebhookDelivery(cmd.Context(), args[0], args[1])
			return a.printDelivery(d, err)
		},
	}
}

func (a *app) printDelivery(d *api.WebhookDelivery, err error) error {
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(d)
	}
	fmt.Fprintln(a.stdout, d.ID)
	return nil
}

func (a *app) webhookDeliveries() *cobra.Command {
	return &cobra.Command{
		Use: "deliveries ID", Short: "List the deliveries to an endpoint, newest first", Args: wants(1, 1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.WebhookDelivery{}
			for d, err := range c.WebhookDeliveries(cmd.Context(), args[0]) {
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"ID", "TYPE", "STATUS", "ATTEMPTS", "LAST", "AGE", "NEXT"}}
			for _, d := range all {
				next := ""
				if d.NextAttemptAt != nil {
					next = d.NextAttemptAt.String()
				}
				rows = append(rows, []string{
					d.ID, string(d.Type), string(d.Status), strconv.Itoa(len(d.Attempts)), lastAttempt(d.Attempts), age(d.CreatedAt.Time), orDash(next),
				})
			}
			return a.table(rows)
		},
	}
}

// lastAttempt says what became of the last of some attempts.
func lastAttempt(all []api.WebhookAttempt) string {
	if len(all) == 0 {
		return "-"
	}
	switch last := all[len(all)-1]; {
	case last.StatusCode != nil:
		return strconv.Itoa(*last.StatusCode)
	case last.Error != nil:
		return *last.Error
	}
	return "under way"
}

func (a *app) webhookEvents() *cobra.Command {
	return &cobra.Command{
		Use: "events", Short: "List the types of events", Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			types, err := c.ListWebhookEvents(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(types)
			}
			for _, t := range types {
				fmt.Fprintln(a.stdout, t)
			}
			return nil
		},
	}
}
