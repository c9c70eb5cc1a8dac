package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// routerOfItsOwn runs a PostgreSQL router beside the stack, which is no replica, until
// the test ends. It returns the port for clients.
func routerOfItsOwn(t *testing.T) uint16 {
	t.Helper()
	root, err := stack.FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(root, "bin", "controlplane")
	keys, err := filepath.Glob(filepath.Join(theStack.Dir, "pki", "*", "ca.key"))
	if err != nil || len(keys) == 0 {
		t.Fatalf("no replica's keys: %v", err)
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), program, "init", "--dir", dir, "--ca", filepath.Dir(keys[0]), "--router", "r1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	clients, status := freePort(t), freePort(t)
	cmd := exec.Command(program, "router")
	cmd.Env = append(os.Environ(),
		"BERTH_PKI_DIR="+filepath.Join(dir, "r1"), "BERTH_DB_DOMAIN=db.localhost", "BERTH_DB_DEV_CA="+filepath.Dir(theStack.DBCA()),
		fmt.Sprintf("BERTH_DB_LISTEN=127.0.0.1:%d", clients), fmt.Sprintf("BERTH_STATUS_LISTEN=127.0.0.1:%d", status),
	)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the router: %v", err)
		}
	})
	eventually(t, time.Minute, "the router takes clients", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(int(status))+"/healthz", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("healthz: %d", resp.StatusCode)
		}
		return nil
	})
	return clients
}

// freePort is a port of loopback that nobody has now.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
