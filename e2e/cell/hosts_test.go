package cell

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/simulate/simhost"
)

// The hosts are a process of its own, for they are on another machine: this program with
// its orders in the environment.
const envHosts = "BERTH_TEST_CELL_HOSTS"

const templateName = "simulated"

// orders are what it is told.
type orders struct {
	Peers  []string `json:"peers"`
	Tokens []string `json:"tokens"` // one a host
	CA     string   `json:"ca"`
	Addr   string   `json:"addr"`
}

const hostsInCell = 2

// startHosts has the hosts join, and waits until they take sandboxes.
func (c *cell) startHosts() {
	c.t.Helper()
	o := orders{Addr: c.hosts.Addr.String()}
	for _, r := range c.replicas {
		o.Peers = append(o.Peers, r.peer)
	}
	for range hostsInCell {
		var token api.JoinToken
		c.operator(http.MethodPost, "/v1/admin/join-tokens", api.CreateJoinToken{TTLSeconds: new(int64(600))}, http.StatusCreated, &token)
		o.Tokens, o.CA = append(o.Tokens, token.Token), token.CASHA256
	}
	raw, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := c.hosts.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), envHosts+"="+string(raw)), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := bufio.NewReader(out)
	if line, err := said.ReadString('\n'); strings.TrimSpace(line) != "joined" {
		c.t.Fatalf("the hosts say %q: %v", line, err)
	}
	c.boxes = func() (boxes []string) {
		c.t.Helper()
		_, err := io.WriteString(in, "boxes\n")
		line, rerr := said.ReadBytes('\n')
		if err := errors.Join(err, rerr, json.Unmarshal(line, &boxes)); err != nil {
			c.t.Fatalf("ask the hosts: %v", err)
		}
		return boxes
	}
	for deadline := time.Now().Add(patience); ; pause(100 * time.Millisecond) {
		if up := c.hostsUp(); up == hostsInCell {
			return
		} else if time.Now().After(deadline) {
			c.t.Fatalf("%d hosts are up", up)
		}
	}
}

// agents are the hosts, as the leader sees them.
func (c *cell) agents() []api.Agent {
	c.t.Helper()
	var list []api.Agent
	c.operator(http.MethodGet, "/v1/admin/agents", nil, http.StatusOK, &list)
	return list
}

func (c *cell) hostsUp() (up int) {
	c.t.Helper()
	for _, a := range c.agents() {
		if a.State == "up" && a.Ready {
			up++
		}
	}
	return up
}

// runHosts is the process of the hosts.
func runHosts() int {
	var o orders
	if err := json.Unmarshal([]byte(os.Getenv(envHosts)), &o); err != nil {
		fmt.Fprintln(os.Stderr, "hosts:", err)
		return 1
	}
	began := time.Now()
	templates := []hostapi.TemplateState{{
		Name: templateName, BuildID: fmt.Sprintf("%064x", 1), Status: "ready", CPU: 1, MemoryMB: simhost.SandboxMB, DiskMB: simhost.SandboxDiskMB, CreatedAt: began,
	}}
	var hosts []*simhost.Host
	for i, token := range o.Tokens {
		id := fmt.Sprintf("h%d", i+1)
		joined, err := heartbeat.Join(context.Background(), heartbeat.JoinRequest{Peers: o.Peers, Token: token, CASHA256: o.CA, HostID: id})
		if err != nil {
			fmt.Fprintln(os.Stderr, "hosts: join:", err)
			return 1
		}
		node, err := pki.ParseNode(joined.CA, joined.Certificate, joined.Key)
		if err != nil {
			fmt.Fprintln(os.Stderr, "hosts:", err)
			return 1
		}
		h, err := simhost.New(simhost.Config{
			ID: id, Node: node, Listen: net.JoinHostPort(o.Addr, "0"), MemoryMB: 64 << 10, Templates: templates, Began: began, Heartbeat: 500 * time.Millisecond,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "hosts:", err)
			return 1
		}
		hosts = append(hosts, h)
		go h.Run(context.Background(), o.Peers)
	}
	fmt.Println("joined")
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		boxes := []string{}
		for _, h := range hosts {
			for _, b := range h.Report().Boxes {
				boxes = append(boxes, b.ID)
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(boxes); err != nil {
			return 1
		}
	}
	return 0
}
