package chvemu

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm"
)

// Main runs the program and returns its exit code: 0 when it was asked to end or
// the guest ended, 1 for an error, 2 for a command line that makes no sense. When
// QEMU is killed by SIGKILL so is this process, unless it is the first of its PID
// namespace, which nothing in there can kill. After another signal, and then, the
// code is 128 and its number, as a shell has it.
func Main(args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "error: %s\n\nFor more information, try '--help'.\n", err)
		return 2
	case o.version:
		return printVersion(stdout, stderr)
	}
	// Nothing this process makes is for anyone but its own user (main in
	// cloud-hypervisor/src/main.rs).
	unix.Umask(0o077)
	// A write beyond the file size limit fails, here and in QEMU. Go resets the
	// parent's setting of the signal.
	signal.Ignore(unix.SIGXFSZ)
	// There is one process a VM: its size matters more than its speed.
	debug.SetGCPercent(25)
	ex, err := run(o, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "Error: chvemu exited with the following error:\n  %s\n", err)
		return 1
	}
	switch ex.Signal {
	case 0:
		return ex.Code
	case syscall.SIGKILL:
		// Most likely the kernel's out-of-memory killer: the parent must see it.
		_ = unix.Kill(os.Getpid(), syscall.SIGKILL)
	}
	// The runtime would make a dump of its own of most others.
	return 128 + int(ex.Signal)
}

func printVersion(stdout, stderr io.Writer) int {
	fmt.Fprintf(stdout, "chvemu %s\n", BuildVersion)
	qemu := vmm.QEMU()
	out, err := exec.Command(qemu, "--version").Output()
	if err != nil {
		fmt.Fprintf(stderr, "Error: run %s --version: %s\n", qemu, err)
		return 1
	}
	line, _, _ := strings.Cut(string(out), "\n")
	fmt.Fprintf(stdout, "QEMU Version: %s\n", strings.TrimPrefix(line, "QEMU emulator version "))
	fmt.Fprintf(stdout, "State Format: %d\n", stateFormat)
	return 0
}

func run(o options, stderr io.Writer) (Exit, error) {
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	accel, err := accelerator(os.Getenv(EnvAccel))
	if err != nil {
		return Exit{}, err
	}
	events := &monitor{log: log, start: time.Now()}
	if o.eventMonitor != "" {
		f, err := os.OpenFile(o.eventMonitor, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o666)
		if err != nil {
			return Exit{}, fmt.Errorf("open event monitor: %w", err)
		}
		defer f.Close()
		events.w = f
	}
	events.event("vmm", "starting")
	l, lock, err := listen(o.apiSocket)
	if err != nil {
		return Exit{}, err
	}
	defer lock.Close()
	// Only a process that ran removes the socket: one that failed to start may
	// have failed because another one owns it.
	defer os.Remove(o.apiSocket)
	v := NewVMM(log, events, accel, lock)
	return serve(v, l)
}

// serve answers the API until the VM or the VMM is told to end, or does so by
// itself.
func serve(v *VMM, l net.Listener) (Exit, error) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	srv := &http.Server{
		Handler: v, ErrorLog: slog.NewLogLogger(v.log.Handler(), slog.LevelWarn),
		MaxHeaderBytes: 16 << 10, ReadHeaderTimeout: time.Minute,
	}
	served := make(chan struct{})
	var failed error
	go func() { defer close(served); failed = srv.Serve(l) }()
	var ex Exit
	var err error
	select {
	case ex = <-v.exit:
	case <-signals:
		v.mu.Lock()
		_ = v.shutdownVMM() // no step of it can fail
		v.mu.Unlock()
		ex = <-v.exit
	case <-served:
		err = failed
	}
	// The answer to vmm.shutdown is still being sent.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if srv.Shutdown(ctx) != nil {
		srv.Close()
	}
	<-served
	v.Close()
	return ex, err
}

// listen takes the socket (acquire_api_socket_lock and start_http_path_thread in
// vmm/src/api/http/mod.rs): whoever holds the lock beside it owns it, and a
// socket that is there then was left by a process that is gone.
func listen(path string) (net.Listener, *os.File, error) {
	lock, err := os.OpenFile(path+".lock", os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, nil, fmt.Errorf("create API socket: %w", err)
	}
	if err := lockFile(lock, true, 0); err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("API socket %q is already in use by another running instance: %w", path, err)
	}
	_ = os.Remove(path) // mostly not there
	l, err := net.Listen("unix", path)
	if err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("create API socket: %w", err)
	}
	return l, lock, nil
}
