package stack

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
)

// HostClient calls one host as a replica does, with the first replica's
// certificate, so that tests can bypass the control plane.
func (s *Stack) HostClient(id string) (*hostapi.Client, error) {
	dir := s.pkiDir(s.replicaID(0))
	certPEM, keyPEM, err := nodecert.Read(dir)
	if err != nil {
		return nil, fmt.Errorf("certificate of replica %s: %w", s.replicaID(0), err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate of replica %s: %w", s.replicaID(0), err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's CA certificate is not PEM")
	}
	for i := range s.Options.Hosts {
		if s.hostID(i) == id {
			return hostapi.NewClient(s.address(id, s.hostPort(i)), hostapi.PeerTLS(cert, pool, hostapi.IsHost(id))), nil
		}
	}
	return nil, fmt.Errorf("no host %s", id)
}

// Boxes returns what every running host reports, by host id.
func (s *Stack) Boxes(ctx context.Context) (map[string][]hostapi.Box, error) {
	all := make(map[string][]hostapi.Box)
	for _, p := range s.HostProc {
		client, err := s.HostClient(p.ID)
		if err != nil {
			return nil, err
		}
		boxes, err := client.Boxes(ctx)
		client.Close()
		if err != nil {
			return nil, fmt.Errorf("host %s: %w", p.ID, err)
		}
		all[p.ID] = boxes
	}
	return all, nil
}

// KillHost kills the daemon of a host and everything that runs for it, as a loss of
// power does. Start of its process brings the host back.
func (s *Stack) KillHost(id string) error {
	i := slices.Index(s.HostIDs(), id)
	if i < 0 {
		return fmt.Errorf("no host %s", id)
	}
	if err := s.Process(id).Kill9(); err != nil {
		return err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	uids := uidRange{s.baseUID(i), s.baseUID(i + 1)}
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		names := slices.ContainsFunc(inRunDir(id), func(dir []byte) bool { return bytes.Contains(cmdline, dir) })
		if err != nil || !names && !uids.owns(dir) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil {
			err = unix.Kill(pid, unix.SIGKILL)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of host %s: %w", pid, id, err)
		}
	}
	return nil
}
