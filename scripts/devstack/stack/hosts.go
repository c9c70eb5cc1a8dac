package stack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// HostClient calls one host as a replica does, with the first replica's
// certificate, so that tests can bypass the control plane.
func (s *Stack) HostClient(id string) (*hostapi.Client, error) {
	dir := s.pkiDir(s.replicaID(0))
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key"))
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
