package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// operator is the address of the bridge, and so this machine's among the others.
const operator = "10.77.0.1"

// fleet is the machines and their network.
type fleet struct {
	dir      string
	space    string // the network namespace with their bridge
	began    time.Time
	machines []*machine
}

// machine is one guest.
type machine struct {
	fleet    *fleet
	name     string
	number   int // the last part of its address; make-image has it, too
	memoryMB int

	mu   sync.Mutex
	qemu *exec.Cmd
	done chan struct{} // closed when it has ended
}

func (m *machine) address() string { return "10.77.0." + strconv.Itoa(m.number) }

func (m *machine) file(name string) string { return filepath.Join(m.fleet.dir, m.name+"."+name) }

// network makes the bridge, also after a run that was killed.
func (f *fleet) network(ctx context.Context) error {
	_ = exec.CommandContext(ctx, "ip", "netns", "del", f.space).Run() // there may be none
	for _, args := range [][]string{
		{"netns", "add", f.space},
		{"-n", f.space, "link", "set", "lo", "up"},
		{"-n", f.space, "link", "add", "br0", "type", "bridge"},
		{"-n", f.space, "addr", "add", operator + "/24", "dev", "br0"},
		{"-n", f.space, "link", "set", "br0", "up"},
	} {
		if err := command(ctx, "ip", args...); err != nil {
			return fmt.Errorf("make the machines' network: %w", err)
		}
	}
	return nil
}

// add makes a machine with a fresh disk and a tap.
func (f *fleet) add(ctx context.Context, name string, number, memoryMB int) (*machine, error) {
	m := &machine{fleet: f, name: name, number: number, memoryMB: memoryMB}
	if err := command(ctx, "cp", "--sparse=always", filepath.Join(f.dir, "base.ext4"), m.file("ext4")); err != nil {
		return nil, err
	}
	// Without "dev", ip would read the name a as "address".
	for _, args := range [][]string{
		{"-n", f.space, "tuntap", "add", "dev", name, "mode", "tap"},
		{"-n", f.space, "link", "set", "dev", name, "master", "br0", "up"},
	} {
		if err := command(ctx, "ip", args...); err != nil {
			return nil, err
		}
	}
	f.machines = append(f.machines, m)
	return m, nil
}

// boot starts the machine. Its console is a file, to which a later boot appends.
func (m *machine) boot() error {
	cmd := exec.Command("ip", "netns", "exec", m.fleet.space, "qemu-system-x86_64", "-name", "berth-"+m.name, "-nodefaults", "-no-user-config",
		"-display", "none", "-no-reboot", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,la57=off", "-smp", "2",
		"-m", fmt.Sprintf("%dM", m.memoryMB),
		"-kernel", filepath.Join(m.fleet.dir, "vmlinuz"), "-initrd", filepath.Join(m.fleet.dir, "initrd.img"),
		"-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off audit=0 loglevel=4 panic=-1 systemd.hostname="+m.name,
		// Writes reach the page cache of this machine: what a guest has synced survives
		// its death.
		"-drive", "file="+m.file("ext4")+",format=raw,if=virtio,cache=writeback,discard=unmap",
		"-netdev", "tap,id=n0,ifname="+m.name+",script=no,downscript=no",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n0,mac=52:54:00:77:00:%02d,romfile=", m.number),
		"-device", "virtio-rng-pci", "-chardev", "file,id=c0,append=on,path="+m.file("console"), "-serial", "chardev:c0", "-monitor", "none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Ctrl-C goes only to us
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("boot %s: %w", m.name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	done := make(chan struct{})
	m.qemu, m.done = cmd, done
	go func() {
		defer close(done)
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() > 0 {
			fmt.Printf("%s: QEMU ended: %v: %s\n", m.name, err, said.String())
		}
	}()
	return nil
}

// kill is a power cut.
func (m *machine) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.qemu == nil {
		return
	}
	_ = m.qemu.Process.Kill() // it may have ended
	<-m.done
	m.qemu = nil
}

// close ends everything.
func (f *fleet) close(ctx context.Context) error {
	for _, m := range f.machines {
		m.kill()
	}
	var err error
	for _, m := range f.machines {
		err = errors.Join(err, os.Remove(m.file("ext4")))
	}
	return errors.Join(err, command(ctx, "ip", "netns", "del", f.space))
}

// here is a command of the operator's, in the machines' network.
func (f *fleet) here(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", f.space, name}, args...)...)
}

// sh runs a shell script on the machine, as root, and returns what it printed.
func (m *machine) sh(ctx context.Context, script string, stdin io.Reader) (string, error) {
	cmd := m.fleet.here(ctx, "ssh", "-i", filepath.Join(m.fleet.dir, "key"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "LogLevel=ERROR", "-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=20", "root@"+m.address(), "--", script)
	cmd.Stdin = stdin
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %s: %w: %s%s", m.name, script, err, out.String(), said.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// up waits until systemd has booted the machine.
func (m *machine) up(ctx context.Context) error {
	return await(ctx, 10*time.Minute, m.name+" has booted", func() error {
		// "degraded" names a unit that failed, which is none of ours before anything is
		// installed, and is looked at by name later.
		state, err := m.sh(ctx, "systemctl is-system-running || true", nil)
		if err == nil && state != "running" && state != "degraded" {
			err = errors.New(state)
		}
		return err
	})
}

// put copies files to a directory of the machine.
func (m *machine) put(ctx context.Context, to string, files ...string) error {
	args := []string{"-c"}
	for _, f := range files {
		args = append(args, "-C", filepath.Dir(f), filepath.Base(f))
	}
	pack := exec.CommandContext(ctx, "tar", args...)
	var archive bytes.Buffer
	pack.Stdout, pack.Stderr = &archive, os.Stderr
	if err := pack.Run(); err != nil {
		return fmt.Errorf("pack %v: %w", files, err)
	}
	_, err := m.sh(ctx, "mkdir -p "+to+" && tar -x --no-same-owner -C "+to, &archive)
	return err
}

// await repeats a check until it returns nil.
func await(ctx context.Context, limit time.Duration, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s until %s: %w", limit, what, err)
		case <-tick.C:
		}
	}
}

// showLogs prints the ends of consoles, and what our units said.
func (f *fleet) showLogs() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, m := range f.machines {
		const most = 3000
		raw, err := os.ReadFile(m.file("console"))
		if err == nil {
			fmt.Printf("--- the end of %s's console\n%s\n", m.name, raw[max(0, len(raw)-most):])
		}
		if out, err := m.sh(ctx, "journalctl --no-pager -n 60 -u 'berth-*'", nil); err == nil {
			fmt.Printf("--- journal of %s\n%s\n", m.name, out)
		}
	}
}
