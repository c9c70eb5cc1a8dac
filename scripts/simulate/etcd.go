package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// kv is what is compared: a write that is on a majority of the disks when it returns, and
// a read that sees every write before it.
type kv interface {
	write(ctx context.Context, node, n int) error
	read(ctx context.Context, node, n int) error
}

// besideEtcd measures the control store beside etcd: the same machine, disk, clients and
// sizes, one after the other.
func besideEtcd(ctx context.Context, o options, r *results) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 512, IdleConnTimeout: time.Minute}
	hc := &http.Client{Transport: transport}
	defer transport.CloseIdleConnections()
	c, err := startCell(ctx, o)
	if err != nil {
		return err
	}
	err = compareBerth(ctx, o, c, hc, r)
	c.stop()
	if err != nil {
		return err
	}
	e, err := startEtcd(ctx, o, hc)
	if err != nil {
		return err
	}
	defer e.stop()
	lead, err := e.leader(ctx)
	if err != nil {
		return err
	}
	return compare(ctx, o, "etcd", e, lead, r)
}

func compareBerth(ctx context.Context, o options, c *cell, hc *http.Client, r *results) error {
	leader, err := c.leader(ctx)
	if err != nil {
		return err
	}
	b := &berthKV{}
	lead := 0
	for i, replica := range c.replicas {
		client, err := api.NewClient(hc, c.admin, replica.url)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, client)
		if replica == leader {
			lead = i
		}
	}
	return compare(ctx, o, "Berth", b, lead, r)
}

// compare measures writes and reads, through the leader and through another node.
func compare(ctx context.Context, o options, name string, store kv, lead int, r *results) error {
	if err := store.write(ctx, lead, 0); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var n atomic.Int64
	for _, node := range []struct {
		name string
		at   int
	}{{"leader", lead}, {"follower", (lead + 1) % replicas}} {
		for _, clients := range []int{1, 64, 256} {
			for _, what := range []struct {
				name string
				do   func(ctx context.Context, node, n int) error
			}{{"writes", store.write}, {"reads", store.read}} {
				var calls recorder
				began := time.Now()
				during, cancel := context.WithTimeout(ctx, o.work/6)
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						for during.Err() == nil {
							call := time.Now()
							if err := what.do(during, node.at, int(n.Add(1))); during.Err() == nil {
								calls.add(time.Since(call), err)
							}
						}
					})
				}
				all.Wait()
				cancel()
				ok, failed := calls.count()
				title := fmt.Sprintf("%s, %s through the %s, %d clients", name, what.name, node.name, clients)
				r.add(title, float64(ok)/time.Since(began).Seconds(), "/s")
				r.add(title+", p99", ms(calls.quantile(.99)), "ms")
				if failed > 0 {
					r.add(title+", failed", float64(failed), "")
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
		}
	}
	return nil
}

// berthKV writes a token by which a host may join, and reads a list of one.
type berthKV struct{ clients []*api.Client }

func (b *berthKV) write(ctx context.Context, node, _ int) error {
	_, err := b.clients[node].CreateJoinToken(ctx, api.CreateJoinToken{TTLSeconds: new(int64(60))})
	return err
}

func (b *berthKV) read(ctx context.Context, node, _ int) error {
	_, _, err := b.clients[node].ListWorkspaces(ctx, api.Page{Limit: 1})
	return err
}

// etcd is three nodes, spoken to by JSON over HTTP as Berth is.
type etcd struct {
	hc    *http.Client
	urls  []string
	nodes []*exec.Cmd
}

func startEtcd(ctx context.Context, o options, hc *http.Client) (*etcd, error) {
	e := &etcd{hc: hc}
	var cluster, peers []string
	for i := range replicas {
		e.urls = append(e.urls, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port+2*replicas+i)))
		peers = append(peers, "http://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port+3*replicas+i)))
		cluster = append(cluster, fmt.Sprintf("e%d=%s", i, peers[i]))
	}
	for i := range replicas {
		name := fmt.Sprintf("e%d", i)
		dir := filepath.Join(o.dir, "cell", name)
		log, err := os.Create(dir + ".log")
		if err != nil {
			e.stop()
			return nil, err
		}
		cmd := exec.CommandContext(ctx, o.etcd, "--name", name, "--data-dir", dir, "--initial-cluster", strings.Join(cluster, ","),
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--listen-client-urls", e.urls[i], "--advertise-client-urls", e.urls[i],
			// As Berth has it: see raftstore.Config.
			"--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap")
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		err = cmd.Start()
		log.Close()
		if err != nil {
			e.stop()
			return nil, err
		}
		e.nodes = append(e.nodes, cmd)
	}
	return e, nil
}

func (e *etcd) stop() {
	for _, cmd := range e.nodes {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // that it was killed is no error
	}
}

// leader waits until one leads, and returns which.
func (e *etcd) leader(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		for i := range e.urls {
			var st struct {
				Header struct {
					MemberID string `json:"member_id"`
				} `json:"header"`
				Leader string `json:"leader"`
			}
			if err := e.call(ctx, i, "/v3/maintenance/status", struct{}{}, &st); err == nil && st.Leader != "" && st.Leader == st.Header.MemberID {
				return i, nil
			}
		}
		if !pause(ctx, 100*time.Millisecond) {
			return 0, errors.New("no etcd leads")
		}
	}
}

// valueBytes is about what a join token's row takes.
const valueBytes = 180

var value = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{'x'}, valueBytes))

func (e *etcd) write(ctx context.Context, node, n int) error {
	return e.call(ctx, node, "/v3/kv/put", map[string]string{"key": keyOf(n), "value": value}, nil)
}

func (e *etcd) read(ctx context.Context, node, _ int) error {
	return e.call(ctx, node, "/v3/kv/range", map[string]string{"key": keyOf(0)}, nil)
}

func keyOf(n int) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "/simulated/join-tokens/%032d", n))
}

func (e *etcd) call(ctx context.Context, node int, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.urls[node]+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.hc.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answered %s: %s", resp.Status, raw[:min(len(raw), 200)])
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}
