package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const (
	appDeploys   = 10
	appRollbacks = 2
	appWakes     = 15
	appPort      = 3000
	appWarmUp    = 8 // rounds that do not count
	appRounds    = 40
	appTurn      = 500 * time.Millisecond // of one path in one round

	appWithin     = 15 * time.Minute // the first deployment builds the template
	appWakeWithin = 2 * time.Minute
)

// appSettings let an app sleep at once, and a request wait as long as its wake takes.
var appSettings = []string{"BERTH_APP_MIN_IDLE=1s", "BERTH_APP_SWEEP=1s", "BERTH_APP_WAKE_HOLD=2m"}

// headerStarted is how long the app's process took from its start until it listened.
const headerStarted = "X-Started-After-Us"

// measureApps measures what the visitors of an app meet: deployments under load, a wake, and
// the edge beside a plain proxy.
func measureApps(ctx context.Context, b *bench) error {
	source, err := appSource()
	if err != nil {
		return err
	}
	progress("the first deployment of an app")
	app, err := b.c.CreateApp(ctx, api.CreateApp{
		Name: "bench", Source: new(api.AppFromUpload), Port: new(appPort), AutoHibernate: new(false), IdleTimeoutSeconds: new(1),
	}, rand.Text())
	if err != nil {
		return err
	}
	if _, err := b.c.PutAppSource(ctx, app.ID, bytes.NewReader(source), int64(len(source))); err != nil {
		return err
	}
	if _, err := b.deployApp(ctx, app.ID); err != nil {
		return err
	}
	return errors.Join(b.measureDeploys(ctx, app.ID), b.measureEdge(ctx, app.ID), b.measureWakes(ctx, app.ID), b.c.DeleteApp(ctx, app.ID))
}

// appSource is a source whose program is this one, which serves a page.
func appSource() ([]byte, error) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zip)
	for _, f := range []struct {
		name string
		mode int64
		text []byte
	}{{"serve", 0o755, self}, {"Procfile", 0o644, []byte("web: exec ./serve -serve 0.0.0.0:$PORT\n")}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	err = errors.Join(w.Close(), zip.Close())
	return out.Bytes(), err
}

// deployApp deploys the last upload, and waits until it is live.
func (b *bench) deployApp(ctx context.Context, id string) (time.Duration, error) {
	return b.deployed(ctx, id, func() (*api.Deployment, error) { return b.c.DeployApp(ctx, id, api.CreateDeployment{}, rand.Text()) })
}

// deployed waits until what begin begins is live, and returns how long it took.
func (b *bench) deployed(ctx context.Context, id string, begin func() (*api.Deployment, error)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, appWithin)
	defer cancel()
	d, err := begin()
	if err != nil {
		return 0, err
	}
	end, err := b.c.FollowDeployment(ctx, id, d.ID, func(string, api.LogLine) error { return nil })
	switch {
	case err != nil:
		return 0, err
	case end.Status != api.DeploymentLive || end.FinishedAt == nil:
		return 0, fmt.Errorf("deployment %s is %s: %s", end.ID, end.Status, end.Error)
	}
	return end.FinishedAt.Sub(end.CreatedAt.Time), nil
}

// measureDeploys deploys and rolls back while visitors come through every replica.
func (b *bench) measureDeploys(ctx context.Context, id string) error {
	progress("%d deployments and %d rollbacks under load", appDeploys, appRollbacks)
	visitors := b.visitApp(id)
	var took samples
	err := func() error {
		for range appDeploys {
			d, err := b.deployApp(ctx, id)
			if err != nil {
				return err
			}
			took.add("app_deploy", d)
		}
		for range appRollbacks {
			d, err := b.deployed(ctx, id, func() (*api.Deployment, error) { return b.c.RollBackApp(ctx, id, api.RollBackApp{}, rand.Text()) })
			if err != nil {
				return err
			}
			took.add("app_rollback", d)
		}
		return pause(ctx, visitedAfter)
	}()
	made, failed, first := visitors()
	if err != nil {
		return err
	}
	took.report(b.r)
	b.r.add("app_load_requests", float64(made), "requests")
	b.r.want("app_load_failed", float64(failed), "requests", atMost, 0)
	if failed > 0 {
		b.r.note("app_load_failed", "one of them: "+first)
	}
	return nil
}

// visitedAfter is how long visitors still come after the last change: the instance before
// drains meanwhile.
const visitedAfter = 10 * time.Second

// visitTime is after how long a request that is not answered is lost.
const visitTime = 30 * time.Second

// appVisitors is how many visitors come through each replica.
const appVisitors = 2

// visitApp has visitors ask for an app, one request after the other each, until the returned
// function is called. It says how many requests were made, and how many were lost or
// answered with anything but 2xx.
func (b *bench) visitApp(id string) (stop func() (made, failed int64, first string)) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var made, failed atomic.Int64
	var first atomic.Value
	for _, replica := range b.s.URLs {
		for range appVisitors {
			all.Go(func() {
				l := newLoad(appURL(id), dialTo(replica))
				defer l.close()
				for ctx.Err() == nil {
					asked, done := context.WithTimeout(context.Background(), visitTime) // what is under way at the end is answered
					err := l.get(asked)
					done()
					made.Add(1)
					if err != nil {
						failed.Add(1)
						first.CompareAndSwap(nil, err.Error())
					}
				}
			})
		}
	}
	return func() (int64, int64, string) {
		cancel()
		all.Wait()
		text, _ := first.Load().(string)
		return made.Load(), failed.Load(), text
	}
}

const appSuffix = "app.localhost"

func appURL(id string) string { return "http://" + id + "." + appSuffix + "/" }

// dialTo connects to a replica, whatever a name resolves to.
func dialTo(url string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	}
}

// measureEdge asks the app by the edge, from the host's side of its slot, and, if there is
// one, by a plain proxy that runs there, in turns.
func (b *bench) measureEdge(ctx context.Context, id string) error {
	box, host, err := b.boxOf(ctx, id)
	if err != nil {
		return err
	}
	fabric, err := slotsOf(host)
	if err != nil {
		return err
	}
	defer fabric.Close()
	paths := []*load{
		newLoad(appURL(id), dialTo(b.s.URLs[0])),
		newLoad(appURL(id), func(ctx context.Context) (net.Conn, error) { return fabric.Dial(ctx, box.Slot, appPort) }),
	}
	names := []string{"app_edge", "app_direct"}
	proxy, err := startNginx(ctx, fabric.Slot(box.Slot).NetNSPath)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		b.r.note("app_edge_share_of_nginx", "needs nginx (Debian: apt-get install nginx-light)")
	case err != nil:
		return err
	default:
		defer proxy.stop()
		paths, names = append(paths, newLoad(appURL(id), proxy.dial)), append(names, "app_nginx")
	}
	for _, l := range paths {
		defer l.close()
		if err := stack.Await(ctx, time.Minute, 100*time.Millisecond, "the app answers", l.get); err != nil {
			return err
		}
	}
	progress("requests to an app by %s, in turns", strings.Join(names, ", "))
	turns := slices.Clone(paths)
	for round := range appWarmUp + appRounds {
		slices.Reverse(turns)
		for _, l := range turns {
			if err := l.run(ctx, appTurn, round >= appWarmUp); err != nil {
				return err
			}
		}
	}
	for i, l := range paths {
		b.r.add(names[i]+"_requests", l.rate(), "1/s")
		b.r.add(names[i]+"_p99", ms(quantile(l.took, 0.99)), "ms")
	}
	b.r.add("app_edge_share_of_direct", 100*paths[0].rate()/paths[1].rate(), "%")
	if proxy != nil {
		b.r.want("app_edge_share_of_nginx", 100*paths[0].rate()/paths[2].rate(), "%", atLeast, 80)
	}
	return nil
}

// nginx is a plain proxy in the namespace of a slot. It listens on a Unix socket, which is
// in no namespace.
type nginx struct {
	process *exec.Cmd
	dir     string
}

// startNginx starts one that passes requests on to the app, on connections that it keeps. It
// is as quick as its defaults allow, without a log.
func startNginx(ctx context.Context, netns string) (*nginx, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-nginx-")
	if err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`daemon off;
user root;
worker_processes auto;
pid %[1]s/pid;
error_log stderr crit;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path %[1]s; proxy_temp_path %[1]s; fastcgi_temp_path %[1]s; uwsgi_temp_path %[1]s; scgi_temp_path %[1]s;
  keepalive_requests 1000000;
  upstream app { server %[2]s:%[3]d; keepalive %[4]d; keepalive_requests 1000000; }
  server {
    listen unix:%[1]s/socket;
    location / { proxy_pass http://app; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; }
  }
}
`, dir, slot.GuestAddr, appPort, previewConns)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+netns, program, "-e", "stderr", "-c", file, "-p", dir)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // its workers end with it
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &nginx{cmd, dir}, nil
}

func (n *nginx) dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.dir, "socket"))
}

func (n *nginx) stop() {
	_ = n.process.Process.Signal(os.Interrupt) // it may have ended
	_ = n.process.Wait()
	_ = os.RemoveAll(n.dir)
}

// measureWakes measures the first request to an app that sleeps. Of the wait, the program's
// own start is not ours: it says itself how long that took.
func (b *bench) measureWakes(ctx context.Context, id string) error {
	progress("%d wakes of an app by a request", appWakes)
	if _, err := b.c.PatchApp(ctx, id, api.PatchApp{AutoHibernate: api.SetTo(true)}); err != nil {
		return err
	}
	var all samples
	for range appWakes {
		err := stack.Await(ctx, appWakeWithin, 100*time.Millisecond, "the app sleeps, and its sandbox is gone", func(ctx context.Context) error {
			app, err := b.c.GetApp(ctx, id)
			if err == nil && app.Status != api.AppHibernated {
				err = fmt.Errorf("it is %s", app.Status)
			}
			if err != nil {
				return err
			}
			if _, _, err := b.boxOf(ctx, id); !errors.Is(err, errNoBox) {
				return errors.Join(err, errors.New("it has a sandbox"))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := awaitRateLimit(ctx); err != nil {
			return err
		}
		total, own, err := b.firstByte(ctx, id)
		if err != nil {
			return err
		}
		all.add("app_wake_to_first_byte", total)
		all.add("app_wake_own_part", total-own)
	}
	all.report(b.r)
	b.r.want("app_wake_own_part", all.p50("app_wake_own_part").Seconds(), "s", atMost, 1)
	return nil
}

// firstByte makes one request. It returns how long the answer took, and how much of that the
// program took to start.
func (b *bench) firstByte(ctx context.Context, id string) (total, start time.Duration, err error) {
	l := newLoad(appURL(id), dialTo(b.s.URLs[0]))
	defer l.close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url, http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("User-Agent", appVisitor)
	began := time.Now()
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	var first [1]byte
	_, err = io.ReadFull(resp.Body, first[:])
	total = time.Since(began)
	us, perr := strconv.ParseInt(resp.Header.Get(headerStarted), 10, 64)
	if err = errors.Join(err, perr); err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New("status " + resp.Status)
	}
	return total, time.Duration(us) * time.Microsecond, err
}

// appVisitor is a User-Agent whose requests wake an app and keep it awake.
const appVisitor = "berth-bench"

var errNoBox = errors.New("it has no sandbox")

// boxOf is the box of an app or a database, and its host.
func (b *bench) boxOf(ctx context.Context, id string) (hostapi.Box, string, error) {
	for s, err := range b.c.Sandboxes(ctx) {
		if err != nil {
			return hostapi.Box{}, "", err
		}
		if s.Owner != nil && s.Owner.ID == id {
			box, err := b.box(ctx, &s)
			return box, s.AgentID, err
		}
	}
	return hostapi.Box{}, "", fmt.Errorf("%s: %w", id, errNoBox)
}
