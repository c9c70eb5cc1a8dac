package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

const (
	// maxHeard is how much of a body is read, in bytes: what GitHub sends at most.
	maxHeard = 25 << 20
	// listenEnd is how long requests may still take once Ctrl-C was pressed.
	listenEnd = time.Second
)

func (a *app) webhookListen() *cobra.Command {
	var port, answer int
	cmd := &cobra.Command{
		Use: "listen", Short: "Print the webhooks that arrive on a local port", Args: wants(0, 0, ""),
		Long: `Listens on a port of this machine alone, answers every request with one status, and
prints it: its method and path, its type and id, whether its signature is that of
the secret in ` + envWebhookSecret + `, and its body. No Berth is called; webhooks
of GitHub and others are printed too.`,
		Example: `  BERTH_WEBHOOK_SECRET=whsec_… berth webhook listen --port 9000
  berth webhook listen --port 9000 --answer 503     # see what is tried again, and when
  berth webhook listen --port 9000 --json | jq .body`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case port < 0 || port > 65535:
				return usage(cmd, "--port %d is no port", port)
			case answer < 200 || answer > 599:
				return usage(cmd, "--answer %d is no status from 200 to 599", answer)
			}
			listener, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				return err
			}
			a.note("listening on http://%s; Ctrl-C ends it", listener.Addr())
			return a.listen(cmd.Context(), listener, a.env(envWebhookSecret), answer)
		},
	}
	f := cmd.Flags()
	f.IntVar(&port, "port", 9000, "port of 127.0.0.1; 0 for any that is free")
	f.IntVar(&answer, "answer", http.StatusNoContent, "status of every answer")
	return cmd
}

// envWebhookSecret names the secret of an endpoint for berth webhook listen. It is no flag:
// everybody on the machine sees arguments.
const envWebhookSecret = "BERTH_WEBHOOK_SECRET"

// listen prints requests until ctx ends or nothing can be printed any more.
func (a *app) listen(ctx context.Context, listener net.Listener, secret string, answer int) error {
	arrived := make(chan heard)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHeard))
			if err != nil {
				http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
				return
			}
			select {
			case arrived <- hear(r, body, secret):
				w.WriteHeader(answer)
			case <-ctx.Done(): // it was not printed, so it is not taken
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	err := func() error {
		for {
			select {
			case h := <-arrived:
				if err := a.printHeard(h); err != nil {
					return err
				}
			case err := <-served:
				served <- err
				return err
			case <-ctx.Done():
				return nil
			}
		}
	}()
	cancel()
	ending, end := context.WithTimeout(context.WithoutCancel(ctx), listenEnd)
	defer end()
	if server.Shutdown(ending) != nil {
		_ = server.Close()
	}
	if stopped := <-served; err == nil && !errors.Is(stopped, http.ErrServerClosed) {
		err = stopped
	}
	return err
}

// heard is a request that has arrived.
type heard struct {
	At        time.Time `json:"at"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Type      string    `json:"type,omitempty"`
	ID        string    `json:"id,omitempty"`
	Signature string    `json:"signature"` // valid, unchecked, or what is wrong with it
	Body      string    `json:"body"`
}

func hear(r *http.Request, body []byte, secret string) heard {
	h := heard{
		At: time.Now().UTC(), Method: r.Method, Path: r.URL.RequestURI(), Signature: "unchecked", Body: strings.ToValidUTF8(string(body), "\uFFFD"),
		Type: cmp.Or(r.Header.Get(api.HeaderWebhookEvent), r.Header.Get("X-GitHub-Event")),
		ID:   cmp.Or(r.Header.Get(api.HeaderWebhookDelivery), r.Header.Get("X-GitHub-Delivery")),
	}
	if secret != "" {
		h.Signature = "valid"
		if _, err := api.VerifyWebhook(secret, r.Header, body, h.At); err != nil {
			h.Signature = err.Error()
		}
	}
	return h
}

// printHeard prints a request: with --json on a line.
func (a *app) printHeard(h heard) error {
	if a.json {
		return a.printLine(h)
	}
	_, err := fmt.Fprintf(a.stdout, "%s %s %s %s %s (signature: %s)\n%s\n\n", h.At.Format(time.TimeOnly), h.Method, plain(h.Path), orDash(plain(h.Type)), orDash(plain(h.ID)),
		h.Signature, plain(h.Body))
	return err
}
