package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/pki"
)

const replicas = 3

// cell is three replicas.
type cell struct {
	o        options
	admin    string // token
	replicas []*replica
	ca       *pki.CA
}

// replica is one process.
type replica struct {
	bin, id, url, peer string
	dir                string
	env                []string
	cmd                *exec.Cmd
	exited             chan struct{} // closed when the process has ended
}

func startCell(ctx context.Context, o options) (*cell, error) {
	c := &cell{o: o, admin: "bradm_" + rand.Text()}
	root := filepath.Join(o.dir, "cell")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	initArgs := []string{"init", "--dir", filepath.Join(root, "pki")}
	for i := range replicas {
		id := "r" + strconv.Itoa(i+1)
		r := &replica{
			bin: o.bin, id: id, dir: filepath.Join(root, id),
			peer: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port+i)),
			url:  "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port+replicas+i)),
		}
		r.env = append(os.Environ(),
			"BERTH_PKI_DIR="+filepath.Join(root, "pki", id), "BERTH_DATA_DIR="+r.dir, "BERTH_LISTEN="+strings.TrimPrefix(r.url, "http://"),
			"BERTH_ADMIN_TOKEN="+c.admin, "BERTH_HEARTBEAT_INTERVAL="+o.heartbeat.String(), "BERTH_LOG_LEVEL=warn",
		)
		c.replicas = append(c.replicas, r)
		initArgs = append(initArgs, "--replica", id+"="+r.peer)
	}
	if out, err := exec.CommandContext(ctx, o.bin, initArgs...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s init: %w: %s", o.bin, err, out)
	}
	var err error
	if c.ca, err = pki.LoadCA(filepath.Join(root, "pki", c.replicas[0].id)); err != nil {
		return nil, err
	}
	for _, r := range c.replicas {
		if err := r.start(); err != nil {
			c.stop()
			return nil, err
		}
	}
	if _, err := c.leader(ctx); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (r *replica) start() error {
	log, err := os.OpenFile(r.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	r.cmd = exec.Command(r.bin, "serve")
	r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = r.env, log, log
	// It ends with this program, however that ends.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	r.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // that it was killed is no error
		close(exited)
	}(r.cmd, r.exited)
	return nil
}

// kill ends the process as the loss of its machine would.
func (r *replica) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.exited
}

func (c *cell) stop() {
	for _, r := range c.replicas {
		if r.cmd != nil {
			r.kill()
		}
	}
}

func (c *cell) urls() (urls []string) {
	for _, r := range c.replicas {
		urls = append(urls, r.url)
	}
	return urls
}

func (c *cell) peers() (peers []string) {
	for _, r := range c.replicas {
		peers = append(peers, r.peer)
	}
	return peers
}

// leader waits until a replica leads.
func (c *cell) leader(ctx context.Context) (*replica, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		for _, r := range c.replicas {
			st, err := c.status(ctx, r)
			if err == nil && st.State == "leader" {
				return r, nil
			}
		}
		if !pause(ctx, 100*time.Millisecond) {
			return nil, fmt.Errorf("no replica leads; the replicas' logs are beside %s", c.replicas[0].dir)
		}
	}
}

func (c *cell) status(ctx context.Context, r *replica) (*api.RaftStatus, error) {
	client, err := api.NewClient(nil, c.admin, r.url)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.RaftStatus(ctx)
}

// pause reports whether ctx is alive still.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
