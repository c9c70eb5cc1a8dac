// Command guestapp is Berth's program in an app's guest: it builds the app from its
// source, starts it, and keeps it running. The host tells it what to do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/app/agent"
	"github.com/berth-cloud/berth/guest/app/build"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/app/contain"
	"github.com/berth-cloud/berth/guest/app/static"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/guest/proc"
)

var version = "dev"

const usage = `guestapp is Berth's program in an app's guest.

  guestapp serve [flags]       build and run an app as the host says
  guestapp static [flags]      serve a directory as a site
  guestapp install-go [flags]  install Go from the proxy of its modules; guestapp does
  guestapp contain [flags]     run a command in namespaces of its own; guestapp does
  guestapp version             print the version
`

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	if mode == contain.InsideMode { // process 1 of its namespace, whose signals are not this program's
		os.Exit(contain.Inside())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch mode {
	case "serve":
		err = serve(ctx, log, os.Args[2:])
	case "static":
		err = site(ctx, os.Args[2:])
	case build.InstallGoMode:
		err = installGo(ctx, os.Args[2:])
	case contain.OutsideMode:
		err = outside(os.Args[2:])
	case "version", "--version":
		fmt.Printf("guestapp %s\n", version)
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		log.Error("guestapp ends", "mode", mode, "error", err)
		os.Exit(1)
	}
}

// maxProcesses is how many processes and threads the tenant's commands may have: a fork
// bomb ends there, and neither the guest nor its memory does.
const maxProcesses = 4096

func serve(ctx context.Context, log *slog.Logger, args []string) error {
	cfg := agent.Config{Version: version, Log: log, Runner: &command.Runner{MemoryEvents: command.DefaultMemoryEvents}}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	cfg.Listen = netip.MustParseAddrPort(fmt.Sprintf("198.18.0.2:%d", appapi.Port))
	flags.TextVar(&cfg.Listen, "listen", cfg.Listen, "where the host is answered")
	gateway := flags.String("gateway", "198.18.0.1", "the only address that is answered")
	flags.StringVar(&cfg.Dir, "dir", "/var/lib/berth/app", "directory of its own")
	flags.StringVar(&cfg.WorkDir, "work", appapi.WorkDir, "directory of the app")
	flags.StringVar(&cfg.Cache, "cache", "/var/cache/app", "directory of the commands' caches")
	flags.StringVar(&cfg.Home, "home", "/home/app", "home directory of the commands")
	flags.StringVar(&cfg.Temp, "temp", "/tmp", "directory that is emptied after a build")
	flags.StringVar(&cfg.Runner.User, "user", appapi.User, "whom commands run as")
	flags.StringVar(&cfg.GitUser, "git-user", "appsource", "whom git runs as")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if cfg.Peer, err = netip.ParseAddr(*gateway); err != nil {
		return err
	}
	if cfg.Program, err = os.Executable(); err != nil {
		return err
	}
	if cfg.Runner.Groups, err = proc.OpenGroups(); err != nil {
		log.Warn("no control groups", "error", err)
	}
	protect(log)
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// protect has the kernel kill the tenant's commands, not this program, for want of
// memory, and bounds what they inherit.
func protect(log *slog.Logger) {
	if err := proc.SetOOMScore(os.Getpid(), proc.AgentOOMScore); err != nil {
		log.Warn("not protected from the kernel's killer", "error", err)
	}
	for what, limit := range map[int]uint64{unix.RLIMIT_NPROC: maxProcesses, unix.RLIMIT_CORE: 0} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			log.Warn("commands are not limited", "resource", what, "error", err)
		}
	}
}

// installGo prints where Go is then.
func installGo(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(build.InstallGoMode, flag.ContinueOnError)
	proxy := flags.String("proxy", build.GoProxy, "the proxy of Go's modules")
	version := flags.String("version", "", "the version, as 1.22, 1.22.3 or >=1.22; empty for the newest")
	dir := flags.String("dir", "", "directory that Go's is made below")
	if err := flags.Parse(args); err != nil {
		return err
	}
	goroot, err := build.InstallGo(ctx, *proxy, *version, *dir)
	if err == nil {
		fmt.Println(goroot)
	}
	return err
}

func outside(args []string) error {
	flags := flag.NewFlagSet(contain.OutsideMode, flag.ContinueOnError)
	spec := flags.String("spec", "", "file that says what is run")
	as := flags.String("as", appapi.User, "whose rights it has")
	if err := flags.Parse(args); err != nil {
		return err
	}
	code, err := contain.Outside(*spec, *as)
	if err == nil {
		os.Exit(code)
	}
	return err
}

// Time limits of a site's server, which anybody reaches.
const (
	headerWait = 30 * time.Second
	idleWait   = 2 * time.Minute
)

func site(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("static", flag.ContinueOnError)
	listen := flags.String("listen", "0.0.0.0:3000", "address")
	dir := flags.String("dir", ".", "directory")
	spa := flags.Bool("spa", false, "answer with index.html for what is no file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s, err := static.New(*dir, *spa)
	if err != nil {
		return err
	}
	defer s.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: headerWait, IdleTimeout: idleWait, MaxHeaderBytes: 64 << 10}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	fmt.Printf("Serving %s on %s\n", *dir, listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
