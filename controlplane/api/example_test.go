package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A sandbox is made, runs a command, and is deleted.
func Example() {
	berth := httptest.NewServer(played()) // a real one is at BERTH_URL, and takes BERTH_TOKEN
	defer berth.Close()
	if err := run(context.Background(), berth.URL, "brt_x_y"); err != nil {
		fmt.Println(err)
	}
	// Output: 42, exit code 0
}

func run(ctx context.Context, url, token string) error {
	client, err := api.NewClient(nil, token, url) // or the URLs of all replicas
	if err != nil {
		return err
	}
	defer client.Close()
	sandbox, err := client.CreateSandbox(ctx, api.CreateSandbox{Template: "base"}, "")
	if err != nil {
		return err
	}
	result, err := client.Exec(ctx, sandbox.ID, api.Exec{Cmd: api.Argv("python3", "-c", "print(6*7, end='')")})
	if err == nil {
		fmt.Printf("%s, exit code %d\n", result.Stdout, result.ExitCode)
	}
	return errors.Join(err, client.DeleteSandbox(ctx, sandbox.ID))
}

// played answers these three calls as Berth does.
func played() http.Handler {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /v1/sandboxes", answer(http.StatusCreated, `{"id":"a","status":"running"}`))
	routes.HandleFunc("POST /v1/sandboxes/a/exec", answer(http.StatusOK, `{"stdout":"42","exit_code":0}`))
	routes.HandleFunc("DELETE /v1/sandboxes/a", answer(http.StatusNoContent, ""))
	return routes
}
