package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// firstCommand is the first command that a newcomer sees in a microVM.
const firstCommand = `uname -a && python3 -c 'print(6*7)'`

// firstSandbox creates a sandbox through the public API, runs a command in it,
// and prints how long each took.
func firstSandbox(ctx context.Context, s *stack.Stack, w io.Writer) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	began := time.Now()
	sandbox, err := client.CreateSandbox(ctx, api.CreateSandbox{Template: stack.BaseTemplate}, "the first sandbox")
	if err != nil {
		return err
	}
	created := time.Since(began)
	fmt.Fprintf(w, "Sandbox %s is running on host %s: %d vCPU, %d MB, restored from template %q in %d ms.\n",
		sandbox.ID, sandbox.AgentID, sandbox.CPU, sandbox.MemoryMB, sandbox.Template, created.Milliseconds())
	began = time.Now()
	result, err := client.Exec(ctx, sandbox.ID, api.Exec{Cmd: api.Shell(firstCommand)})
	if err != nil {
		return err
	}
	took := time.Since(began)
	fmt.Fprintf(w, "$ %s\n%s%s", firstCommand, result.Stdout, result.Stderr)
	if result.ExitCode != 0 || !strings.HasSuffix(result.Stdout, "\n42\n") {
		return fmt.Errorf("the command ended with %d and wrote %q", result.ExitCode, result.Stdout)
	}
	fmt.Fprintf(w, "(exit code 0; exec took %d ms, %d ms of them inside the guest)\n", took.Milliseconds(), result.DurationMS)
	return nil
}

func joinURLs(urls []string) string { return strings.Join(urls, " and ") }
