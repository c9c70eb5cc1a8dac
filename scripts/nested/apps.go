package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
)

// appSettings have an app sleep soon, and give a deployment and a start the time that they
// take here: these settings are not multiplied.
var appSettings = []string{
	"BERTH_APP_MIN_IDLE=1s", "BERTH_APP_SWEEP=1s", "BERTH_APP_DRAIN=30s", "BERTH_APP_WAKE_HOLD=2m", "BERTH_DEPLOY_BUDGET=3h", "BERTH_APP_HEALTH=30m",
}

// appRun is one pass over the operations of an app.
type appRun struct {
	run
	app *api.App
}

// performApps runs the operations of an app.
func performApps(ctx context.Context, s *stack.Stack, t *table) error {
	client, err := s.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	r := &appRun{run: run{stack: s, client: client}}
	return t.perform(ctx, []operation{
		{"create an app, and upload its source", r.create},
		{"deploy", r.deploy},
		{"visit", r.visit},
		{"kill -9 of the VMM: another instance", r.killVMM},
		{"kill -9 of hostd, and adoption", r.killHostd},
		{"sleep", r.sleep},
		{"wake, by a visit", r.visit},
		{"delete the app", r.remove},
	})
}

// The app is one file, served by a command.
const (
	appFile  = "page"
	appText  = "seen\n"
	appStart = "exec python3 -m http.server $PORT --bind 0.0.0.0"
)

func (r *appRun) create(ctx context.Context) (string, error) {
	app, err := r.client.CreateApp(ctx, api.CreateApp{
		Name: "nested", Source: new(api.AppFromUpload), StartCommand: appStart, AutoHibernate: new(false), IdleTimeoutSeconds: new(1),
	}, "")
	if err != nil {
		return "", err
	}
	r.app = app
	source, err := appSource()
	if err == nil {
		_, err = r.client.PutAppSource(ctx, app.ID, bytes.NewReader(source), int64(len(source)))
	}
	return "", err
}

func appSource() ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	err := w.WriteHeader(&tar.Header{Name: appFile, Mode: 0o644, Size: int64(len(appText)), Typeflag: tar.TypeReg})
	if err == nil {
		_, err = w.Write([]byte(appText))
	}
	err = errors.Join(err, w.Close(), zip.Close())
	return out.Bytes(), err
}

func (r *appRun) deploy(ctx context.Context) (string, error) {
	d, err := r.client.DeployApp(ctx, r.app.ID, api.CreateDeployment{}, "")
	if err != nil {
		return "", err
	}
	end, err := r.client.FollowDeployment(ctx, r.app.ID, d.ID, func(_ string, l api.LogLine) error { say("build: %s", l.Line); return nil })
	if err == nil && end.Status != api.DeploymentLive {
		err = fmt.Errorf("it is %s: %s", end.Status, end.Error)
	}
	return "", err
}

func (r *appRun) visit(ctx context.Context) (string, error) {
	return "", await(ctx, "the app is seen", func(ctx context.Context) error { return sees(ctx, r.app.URL+appFile, appText) })
}

func (r *appRun) killVMM(ctx context.Context) (string, error) {
	pid, err := r.vmmOf(ctx, r.app.ID)
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		return "", err
	}
	return "", await(ctx, "another VMM serves the app", func(ctx context.Context) error {
		if err := sees(ctx, r.app.URL+appFile, appText); err != nil {
			return err
		}
		now, err := r.vmmOf(ctx, r.app.ID)
		if err == nil && now == pid {
			err = errors.New("it is the one that was killed")
		}
		return err
	})
}

func (r *appRun) killHostd(ctx context.Context) (string, error) {
	host := r.stack.HostProc[0]
	if err := errors.Join(host.Kill9(), host.Restart(ctx), r.stack.WaitHosts(ctx)); err != nil {
		return "", err
	}
	return r.visit(ctx)
}

// sleep waits until the app sleeps and its sandbox is gone: the next visit starts it from
// its artifact.
func (r *appRun) sleep(ctx context.Context) (string, error) {
	if _, err := r.client.PatchApp(ctx, r.app.ID, api.PatchApp{AutoHibernate: api.SetTo(true)}); err != nil {
		return "", err
	}
	return "", r.empty(ctx, "the app sleeps", func(ctx context.Context) error {
		app, err := r.client.GetApp(ctx, r.app.ID)
		if err == nil && app.Status != api.AppHibernated {
			err = fmt.Errorf("it is %s", app.Status)
		}
		return err
	})
}

func (r *appRun) remove(ctx context.Context) (string, error) {
	if err := r.client.DeleteApp(ctx, r.app.ID); err != nil {
		return "", err
	}
	return "", r.empty(ctx, "the app is gone", func(ctx context.Context) error {
		_, err := r.client.GetApp(ctx, r.app.ID)
		if refusal, ok := errors.AsType[*api.Error](err); ok && refusal.Status == http.StatusNotFound {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

// empty waits until a condition holds and no VMM runs for the app.
func (r *appRun) empty(ctx context.Context, what string, check func(context.Context) error) error {
	return stack.Await(ctx, timescale.Limit(2*time.Minute), time.Second, what, func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		pid, err := r.vmmOf(ctx, r.app.ID)
		if errors.Is(err, errNoSandbox) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("its VMM is process %d", pid))
	})
}
