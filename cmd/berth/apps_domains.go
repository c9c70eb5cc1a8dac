package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) appDomains() *cobra.Command {
	g := group("domains", "Serve an app at host names of your own",
		`A domain is claimed with add, which says what to set in DNS: a TXT record that proves
the name, and a CNAME that leads to the app. Berth looks for the TXT record by itself,
and gets a certificate once it is there.`,
		a.domainAdd(), a.domainList(), a.domainVerify(), a.domainRemove())
	g.Aliases = []string{"domain"}
	return g
}

func (a *app) domainAdd() *cobra.Command {
	return &cobra.Command{
		Use: "add APP DOMAIN", Short: "Claim a domain for an app, and print what to set in DNS",
		Example: "  berth app domains add shop shop.example.com",
		Args:    wants(2, 2, "APP and DOMAIN"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			d, err := c.CreateAppDomain(cmd.Context(), one.ID, api.CreateAppDomain{Domain: args[1]}, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(d)
			}
			if err := a.table(dnsRows(d)); err != nil {
				return err
			}
			a.note("set these at your DNS provider; then: berth app domains verify %s %s", args[0], d.Domain)
			return nil
		},
	}
}

func dnsRows(d *api.AppDomain) [][]string {
	rows := [][]string{{"TYPE", "NAME", "VALUE"}}
	for _, r := range d.DNS {
		rows = append(rows, []string{r.Type, r.Name, r.Value})
	}
	return rows
}

func (a *app) domainList() *cobra.Command {
	var dns bool
	cmd := &cobra.Command{
		Use: "ls APP", Aliases: []string{"list"}, Short: "List the domains of an app",
		Args: wants(1, 1, "APP"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			all := []api.AppDomain{}
			for d, err := range c.AppDomains(cmd.Context(), one.ID) {
				if err != nil {
					return err
				}
				all = append(all, d)
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"DOMAIN", "STATUS", "CERTIFICATE", "ERROR"}}
			if dns {
				rows = [][]string{{"TYPE", "NAME", "VALUE"}}
			}
			for _, d := range all {
				if dns {
					rows = append(rows, dnsRows(&d)[1:]...)
					continue
				}
				rows = append(rows, []string{d.Domain, string(d.Status), string(d.Certificate.Status), orDash(whatIsAmiss(&d))})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().BoolVar(&dns, "dns", false, "show what has to be in DNS instead")
	return cmd
}

// whatIsAmiss is what keeps a domain from being served by TLS; "": nothing.
func whatIsAmiss(d *api.AppDomain) string {
	if d.Error != "" {
		return d.Error
	}
	return d.Certificate.Error
}

// verifyPause is between two looks; the service refuses those that come sooner.
const verifyPause = 3 * time.Second

func (a *app) domainVerify() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "verify APP DOMAIN", Short: "Look for the proof of a domain in DNS now",
		Long: `Look for the proof of a domain in DNS now. With --wait, until it is there and the
domain has a certificate. It exits with 1 if the domain is not verified.`,
		Example: "  berth app domains verify shop shop.example.com --wait 10m",
		Args:    wants(2, 2, "APP and DOMAIN"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			d, err := verifyUntil(cmd.Context(), c, one.ID, args[1], wait)
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(d)
			} else {
				out := []string{"domain", d.Domain, "status", string(d.Status), "url", d.URL, "certificate", string(d.Certificate.Status)}
				if e := whatIsAmiss(d); e != "" {
					out = append(out, "error", e)
				}
				err = a.fields(out...)
			}
			if err == nil && d.Status != api.DomainVerified {
				return fmt.Errorf("%s is not verified: %s", d.Domain, d.Error)
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to look again and again, for example 10m")
	return cmd
}

// verifyUntil looks until the domain has all that it can have, or the time is over.
func verifyUntil(ctx context.Context, c *api.Client, appID, domain string, wait time.Duration) (*api.AppDomain, error) {
	deadline := time.Now().Add(wait)
	verified := false
	for {
		var d *api.AppDomain
		var err error
		if verified { // what is missing is the certificate
			d, err = c.GetAppDomain(ctx, appID, domain)
		} else {
			d, err = c.VerifyAppDomain(ctx, appID, domain)
		}
		tooSoon := api.StatusOf(err) == http.StatusTooManyRequests
		over := !time.Now().Add(verifyPause).Before(deadline)
		switch {
		case tooSoon && over:
			return c.GetAppDomain(ctx, appID, domain)
		case err != nil && !tooSoon:
			return nil, err
		case err == nil:
			verified = d.Status == api.DomainVerified
			if over || verified && d.Certificate.Status != api.CertificatePending && d.Certificate.Status != api.CertificateFailed {
				return d, nil
			}
		}
		select {
		case <-time.After(verifyPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (a *app) domainRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm APP DOMAIN…", Aliases: []string{"delete"}, Short: "Give domains of an app up",
		Args: wants(2, -1, "APP and DOMAIN"), ValidArgsFunction: a.completeApps,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, one, err := a.theApp(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.removeEach(args[1:], func(domain string) error { return c.DeleteAppDomain(cmd.Context(), one.ID, domain) })
		},
	}
}
