package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// Exit codes. Codes below 124 are left to the command that exec runs; exec's own
// failures are above.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitTimedOut    = 124
	exitExecFailed  = 125
	exitInterrupted = 130
)

// app is one run of the program.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	env            func(string) string

	json        bool
	urls        []string
	contextFlag string
	failure     int  // exit code of a failure of this command
	operator    bool // the last client has the operator's credential
}

// The variables that hold credentials, each with what it is for.
const (
	envToken = "BERTH_TOKEN"
	envJWT   = "BERTH_JWT"
	envAdmin = "BERTH_ADMIN_TOKEN"
)

const (
	loadSettings = "set -a; . .berth/dev.env; set +a"
	remedy       = "on a local stack, load all settings: " + loadSettings
)

// client returns a client with the first of the named credentials that is set.
func (a *app) client(credentials ...string) (*api.Client, error) {
	from, err := a.context()
	if err != nil {
		return nil, err
	}
	urls := a.baseURLs()
	if len(urls) == 0 {
		return nil, fmt.Errorf("BERTH_URL is not set, and you are not signed in: berth login --url URL; %s", remedy)
	}
	token := a.credential(from, credentials)
	if token == "" && len(credentials) > 0 {
		if from != nil {
			return nil, fmt.Errorf("the context %s has no %s: %s", from.name, credentialName(credentials[0]), loginCommand("--context "+from.name, credentials[0]))
		}
		return nil, fmt.Errorf("%s is not set, and you are not signed in: %s; %s", credentials[0], loginCommand("--url "+strings.Join(urls, " --url "), credentials[0]), remedy)
	}
	if err := checkCredential(strings.Join(credentials, " or "), token); err != nil {
		return nil, err
	}
	c, err := api.NewClient(nil, token, urls...)
	if err != nil {
		where := "BERTH_URL, BERTH_URLS or --url"
		if from != nil {
			where = "context " + from.name
		}
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	c.UserAgent, c.Patience = "berth/"+version, electionTime
	a.operator = slices.Contains(credentials, envAdmin)
	return c, nil
}

// checkCredential refuses what no HTTP header can hold.
func checkCredential(name, credential string) error {
	if strings.ContainsFunc(credential, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("%s contains characters that no credential has: a space, a line break, or others that are not ASCII", name)
	}
	return nil
}

func credentialName(env string) string {
	for _, k := range credentialKinds {
		if k.env == env {
			return k.name
		}
	}
	return env
}

// loginCommand is the login that asks for the credential.
func loginCommand(flags, env string) string {
	if env == envAdmin {
		flags += " --operator"
	}
	return "berth login " + flags
}

// electionTime is how long a command waits for a leader: several times the length
// of an election.
const electionTime = 10 * time.Second

// baseURLs are the replicas to call: those that are given, or the context's.
func (a *app) baseURLs() []string {
	from, err := a.context()
	if err != nil { // client tells
		return nil
	}
	if from != nil {
		return from.URLs
	}
	return a.givenURLs()
}

// givenURLs are the replicas that the flags or the environment name, BERTH_URL first.
func (a *app) givenURLs() []string {
	urls := a.urls
	if len(urls) == 0 {
		urls = append([]string{a.env("BERTH_URL")}, strings.Split(a.env("BERTH_URLS"), ",")...)
	}
	var out []string
	for _, u := range urls {
		if u = strings.TrimRight(strings.TrimSpace(u), "/"); u != "" && !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

// exit ends the program with a code and without a message.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// usageError is an error in the command line.
type usageError struct {
	text string
	cmd  *cobra.Command
}

func (e *usageError) Error() string { return e.text }

func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...), cmd: cmd}
}

// wants checks the number of arguments and names them.
func wants(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least {
			return usage(cmd, "%s missing", isMissing(what, len(args), least))
		}
		if most >= 0 && len(args) > most {
			return usage(cmd, "unexpected argument %q", args[most])
		}
		return nil
	}
}

// isMissing names those of the arguments that were not given, with the verb.
func isMissing(what string, given, least int) string {
	names := strings.FieldsFunc(strings.ReplaceAll(what, " and ", " "), func(r rune) bool { return r == ' ' || r == ',' })
	if len(names) != least { // not a list of them
		return what + " is"
	}
	names = names[given:]
	last := len(names) - 1
	if last == 0 {
		return names[0] + " is"
	}
	return strings.Join(names[:last], ", ") + " and " + names[last] + " are"
}

// report prints an error to stderr and returns the exit code.
func (a *app) report(ctx context.Context, err error) int {
	var code exit
	var misuse *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		a.say("interrupted", "", nil)
		return exitInterrupted
	case errors.As(err, &misuse):
		hint := "see: " + misuse.cmd.CommandPath() + " --help"
		a.say(misuse.text, hint, nil)
		if misuse.cmd.Name() == "exec" {
			return exitExecFailed
		}
		return exitUsage
	}
	var refused *api.Error
	if errors.As(err, &refused) {
		a.say(refused.Message, a.hint(err), refused)
	} else {
		a.say(err.Error(), a.hint(err), nil)
	}
	return a.failure
}

// say prints one error.
func (a *app) say(text, hint string, refused *api.Error) {
	if a.json {
		out := map[string]any{"error": text}
		if hint != "" {
			out["hint"] = hint
		}
		if refused != nil {
			for k, v := range refused.Fields {
				out[k] = v
			}
			out["status"] = refused.Status
			out["request_id"] = refused.RequestID
			if refused.Detail != "" {
				out["detail"] = refused.Detail
			}
		}
		_ = json.NewEncoder(a.stderr).Encode(out)
		return
	}
	fmt.Fprintf(a.stderr, "berth: %s\n", plain(text))
	if refused != nil {
		if refused.Detail != "" {
			fmt.Fprintf(a.stderr, "  detail:     %s\n", plain(refused.Detail))
		}
		for _, k := range sortedKeys(refused.Fields) {
			fmt.Fprintf(a.stderr, "  %-11s %s\n", k+":", plain(fmt.Sprint(refused.Fields[k])))
		}
		if refused.RequestID != "" {
			fmt.Fprintf(a.stderr, "  request id: %s\n", refused.RequestID)
		}
	}
	if hint != "" {
		fmt.Fprintf(a.stderr, "  %s\n", hint)
	}
}

const (
	// diskFull is a sandbox's error about its own disk. Its status is also used for
	// hosts that are full.
	diskFull = "no space left on device"
	noSource = "no source uploaded yet"

	unknownEvent = "unknown event type"
)

// hint returns what to do about an error, if that is known.
func (a *app) hint(err error) string {
	var op *net.OpError
	var unknown x509.UnknownAuthorityError
	var refused *api.Error
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		urls := a.baseURLs()
		if len(urls) == 0 { // a login makes the context that is named
			urls = a.givenURLs()
		}
		return "is Berth running at " + strings.Join(urls, ", ") + "? make up starts a local stack"
	case errors.As(err, &unknown):
		return "for a certificate of an authority of your own, SSL_CERT_FILE names the authority's file"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "the service at this address has no TLS: use http://"
	case errors.As(err, &refused) && refused.Message == noSource:
		return "give a folder: berth app deploy APP --dir ."
	case errors.As(err, &refused) && refused.Message == unknownEvent:
		return "those that there are: berth webhook events"
	case api.StatusOf(err) == 401:
		login := "berth login"
		if a.operator {
			login += " --operator"
		}
		return "the service does not accept this credential: it is wrong, expired or revoked; sign in with another (" + login + "); a local stack creates new ones whenever it starts: " + loadSettings
	case errors.As(err, &refused) && refused.Message == diskFull:
		return "the sandbox's own disk is full: delete files in it; its size is the template's disk_mb"
	case api.StatusOf(err) == 502 || api.StatusOf(err) == 507:
		return "the hosts are full or unreachable: try again in a moment, or delete a sandbox"
	}
	if refused != nil && refused.RetryAfter > 0 {
		return fmt.Sprintf("try again in %s", refused.RetryAfter.Round(time.Second))
	}
	return ""
}
