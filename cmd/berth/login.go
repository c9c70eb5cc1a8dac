package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-cloud/berth/controlplane/api"
)

// credentialKind is a kind of credential, and how one of it is tried.
type credentialKind struct {
	env, name string
	try       func(ctx context.Context, c *api.Client) error
}

var credentialKinds = []credentialKind{
	{envToken, "API key", func(ctx context.Context, c *api.Client) error {
		_, _, err := c.ListSandboxes(ctx, api.Page{Limit: 1})
		return err
	}},
	{envJWT, "JWT", func(ctx context.Context, c *api.Client) error { _, err := c.Me(ctx); return err }},
	{envAdmin, "operator's token", func(ctx context.Context, c *api.Client) error { _, err := c.RaftStatus(ctx); return err }},
}

// kindOf tells a credential's kind by its form.
func kindOf(credential string, operator bool) credentialKind {
	switch {
	case operator:
		return credentialKinds[2]
	case strings.Count(credential, ".") == 2 && strings.HasPrefix(credential, "ey"):
		return credentialKinds[1]
	}
	return credentialKinds[0]
}

func (a *app) login() *cobra.Command {
	var operator bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Check a credential and keep it, with the service's address",
		Long: `Ask for an API key (brt_…) or a JWT, check it at the service, and keep it with the
service's address as a context, which becomes the current one. What the service does not
accept is not kept. The key is not shown while you paste it; a program passes it on stdin.
A second login to the same context adds or replaces the credential of that kind.`,
		Example: `  berth login --url https://berth.example.com
  berth login --url https://staging.example.com --context staging <key.txt
  berth login --operator --context staging`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.loadContexts()
			if err != nil {
				return err
			}
			name, urls, err := a.loginTo(all)
			if err != nil {
				return err
			}
			credential, err := a.askCredential(cmd.Context(), operator, urls)
			if err != nil {
				return err
			}
			kind := kindOf(credential, operator)
			if err := a.tryCredential(cmd.Context(), kind, credential, urls); err != nil {
				return err
			}
			s := all.Contexts[name]
			if s == nil || strings.Join(s.URLs, ",") != strings.Join(urls, ",") {
				s = &saved{} // what was kept is of another service
				all.Contexts[name] = s
			}
			s.URLs, *s.credential(kind.env), all.Current = urls, credential, name
			if err := a.saveContexts(all); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(listedContext{Name: name, Current: true, URLs: urls, Credentials: s.kinds()})
			}
			a.note("signed in to %s with your %s; the context is %s", strings.Join(urls, ", "), kind.name, name)
			return nil
		},
	}
	cmd.Flags().BoolVar(&operator, "operator", false, "the credential is the operator's token (BERTH_ADMIN_TOKEN)")
	return cmd
}

// loginTo returns the context that a login makes or extends, and its addresses.
func (a *app) loginTo(all *contexts) (name string, urls []string, err error) {
	urls = a.givenURLs()
	name = a.contextFlag
	if s := all.Contexts[name]; s != nil && len(a.urls) == 0 {
		urls = s.URLs // its credential is not for what the environment names
	}
	if name == "" {
		name = a.env(envContext)
	}
	if name == "" && len(urls) == 0 {
		name = all.Current
	}
	if s := all.Contexts[name]; s != nil && len(urls) == 0 {
		urls = s.URLs
	}
	if len(urls) == 0 {
		return "", nil, errors.New("which service? berth login --url https://berth.example.com")
	}
	for i, u := range urls {
		parsed, err := url.Parse(u)
		if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
			why := ""
			if !strings.Contains(u, "://") {
				why = ": it lacks https:// or http://"
			}
			return "", nil, fmt.Errorf("%q is no address of a service: want https://host or http://host:port%s", u, why)
		}
		if i == 0 && name == "" {
			name = strings.ReplaceAll(strings.Trim(parsed.Host, "[]"), ":", "-")
		}
	}
	if !contextName.MatchString(name) {
		return "", nil, fmt.Errorf("%q is no name of a context: want at most 64 letters, digits, -, _ and dots; choose one with --context", name)
	}
	return name, urls, nil
}

// maxCredential bounds what is read of stdin.
const maxCredential = 16 << 10

// askCredential reads one line: hidden from a terminal, or from what is piped in.
func (a *app) askCredential(ctx context.Context, operator bool, urls []string) (string, error) {
	what := "API key"
	if operator {
		what = "Operator's token"
	}
	var line string
	if fd := int(a.stdin.Fd()); term.IsTerminal(fd) {
		fmt.Fprintf(a.stderr, "%s for %s: ", what, strings.Join(urls, ", "))
		raw, err := a.readHidden(ctx, fd)
		fmt.Fprintln(a.stderr)
		if err != nil {
			return "", err
		}
		line = raw
	} else {
		text, err := bufio.NewReader(io.LimitReader(a.stdin, maxCredential)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read stdin: %w", err)
		}
		line = text
	}
	line = strings.TrimSpace(line)
	if line == "" {
		return "", errors.New("no credential was given; make an API key: berth token create, or ask your operator for one")
	}
	return line, checkCredential("the credential", line)
}

// readHidden reads a line without showing it. Ctrl-C ends the program with the terminal
// as it was.
func (a *app) readHidden(ctx context.Context, fd int) (string, error) {
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type got struct {
		line []byte
		err  error
	}
	read := make(chan got, 1)
	go func() { // not waited for after Ctrl-C: a read of a terminal cannot be ended
		line, err := term.ReadPassword(fd)
		read <- got{line, err}
	}()
	select {
	case g := <-read:
		if errors.Is(g.err, io.EOF) {
			g.err = nil
		}
		return string(g.line), g.err
	case <-ctx.Done():
		_ = term.Restore(fd, before)
		return "", ctx.Err()
	}
}

// tryCredential asks the service. That a key may not do what is tried (403), or that
// its workspace has no credit left (402), shows that it is known.
func (a *app) tryCredential(ctx context.Context, kind credentialKind, credential string, urls []string) error {
	c, err := api.NewClient(nil, credential, urls...)
	if err != nil {
		return err
	}
	c.UserAgent, c.Patience = "berth/"+version, electionTime
	switch err := kind.try(ctx, c); api.StatusOf(err) {
	case 402, 403:
		return nil
	case 401:
		return fmt.Errorf("%s does not accept this %s, so it was not kept: copy it whole, or make another (berth token create)", strings.Join(urls, ", "), kind.name)
	default:
		var refused *api.Error
		switch {
		case errors.As(err, &refused): // whose text would be all that is shown
			return fmt.Errorf("the %s could not be checked, so it was not kept: %s", kind.name, refused.Error())
		case err != nil:
			return fmt.Errorf("the %s could not be checked, so it was not kept: %w", kind.name, err)
		}
		return nil
	}
}
