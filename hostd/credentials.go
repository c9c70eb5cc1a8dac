package hostd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
)

// The files of a PKI directory. They are the same for a replica.
const (
	fileCA    = nodecert.FileCA
	fileCert  = nodecert.FileCert
	fileKey   = nodecert.FileKey
	filePeers = "peers" // one host:port a line
)

// credentials are who the host is in the cluster.
type credentials struct {
	cert  *nodecert.Certificate
	trust *nodecert.Trust
	peers []string // told at join, or by the leader since
}

func loadCredentials(dir, hostID string) (credentials, error) {
	cert, err := loadPair(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return credentials{}, fmt.Errorf("this host has not joined a cluster: there is no certificate in %s (make a join token on the control plane, then: hostd join --help)", dir)
	}
	if err != nil {
		return credentials{}, fmt.Errorf("load the host's certificate: %w", err)
	}
	if cn := cert.Leaf.Subject.CommonName; !hostapi.IsHost(hostID)(cn) {
		return credentials{}, fmt.Errorf("the certificate in %s is for %q and BERTH_AGENT_ID is %q: correct one of them, or join as this id", dir, cn, hostID)
	}
	trust, err := nodecert.ReadTrust(dir)
	if err != nil {
		return credentials{}, fmt.Errorf("load the cluster's CA: %w", err)
	}
	peers, err := loadPeers(dir)
	if err != nil {
		return credentials{}, err
	}
	return credentials{cert: nodecert.New(dir, cert, trust), trust: trust, peers: peers}, nil
}

// loadPair reads the host's certificate, the renewed one if there is one.
func loadPair(dir string) (tls.Certificate, error) {
	cert, key, err := nodecert.Read(dir)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// renewByHand is what an operator does for a host whose certificate has expired.
const renewByHand = "on a machine with a replica's directory run controlplane init --dir DIR --ca PKI --host ID, " +
	"copy ca.crt, node.crt and node.key of DIR/ID to BERTH_PKI_DIR here, and restart hostd"

// renewer replaces the host's certificate before it expires, or when the cluster's authority
// is another, and learns which authorities count.
func (d *Daemon) renewer() *nodecert.Renewer {
	return &nodecert.Renewer{
		Certificate: d.creds.cert, Clock: time.Now, Jitter: rand.Float64, Remedy: renewByHand, Log: d.log,
		Ask: func(ctx context.Context, csr []byte) ([]byte, error) {
			return hostapi.AskRenewal(ctx, d.latestPeers(), d.toReplicas(), csr)
		},
		Authorities: func(ctx context.Context, known nodecert.Known) (nodecert.Authorities, error) {
			told, err := hostapi.AskAuthorities(ctx, d.latestPeers(), d.toReplicas(), hostapi.AuthoritiesKnown{Trusts: known.Trusts, Issuer: known.Issuer})
			return nodecert.Authorities{Bundle: []byte(told.Bundle), Signs: told.Signs}, err
		},
	}
}

// toReplicas is how the host calls the control plane.
func (d *Daemon) toReplicas() *tls.Config {
	return hostapi.PeerTLSBy(d.creds.cert.ForClient, d.creds.trust.Pool, hostapi.IsReplica)
}

// latestPeers are the replicas' peer ports, as the leader said last.
func (d *Daemon) latestPeers() []string {
	if peers, err := loadPeers(d.cfg.PKIDir); err == nil && len(peers) > 0 {
		return peers
	}
	return d.peers
}

// loadPeers reads where the replicas are, as far as this host was told: none
// where it has not joined.
func loadPeers(dir string) ([]string, error) {
	peers, err := os.ReadFile(filepath.Join(dir, filePeers))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load the replicas' addresses: %w", err)
	}
	return strings.Fields(string(peers)), nil
}

// hostIDOf reads the host's id from its certificate.
func hostIDOf(dir string) (string, error) {
	cert, err := loadPair(dir)
	if err != nil {
		return "", err
	}
	id, ok := strings.CutPrefix(cert.Leaf.Subject.CommonName, hostapi.HostPrefix)
	if !ok {
		return "", fmt.Errorf("the certificate in %s is for %q, which is no host", dir, cert.Leaf.Subject.CommonName)
	}
	return id, nil
}

// joinBytes is more than what a join stores.
const joinBytes = 64 << 10

// Join obtains the host's certificate and stores it. A directory that holds one
// already is left alone: a second join would leave the first identity without
// an owner.
func Join(ctx context.Context, dir string, in heartbeat.JoinRequest) error {
	if !validHostID.MatchString(in.HostID) {
		return fmt.Errorf("agent id %q: want 1 to 8 characters of a-z and 0-9", in.HostID)
	}
	if _, err := os.Stat(filepath.Join(dir, fileCert)); err == nil {
		return fmt.Errorf("%s holds a certificate already: this host has joined (to join anew, remove the agent on the control plane and the directory here)", dir)
	}
	// Before the token is spent, and the id is taken.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of certificates: %w", err)
	}
	room := filepath.Join(dir, "room")
	if err := atomicfile.Write(room, make([]byte, joinBytes), 0o600); err != nil {
		return fmt.Errorf("the certificate could not be stored: %w", err)
	}
	if err := os.Remove(room); err != nil {
		return fmt.Errorf("the certificate could not be stored: %w", err)
	}
	c, err := heartbeat.Join(ctx, in)
	if err != nil {
		return err
	}
	// The certificate last: it is what says that the rest is complete.
	for _, f := range []struct {
		name string
		data []byte
	}{
		{fileCA, c.CA}, {filePeers, []byte(strings.Join(c.Peers, "\n") + "\n")}, {fileKey, c.Key}, {fileCert, c.Certificate},
	} {
		if err := atomicfile.Write(filepath.Join(dir, f.name), f.data, 0o600); err != nil {
			return fmt.Errorf("store the host's certificate: %w", err)
		}
	}
	return nil
}

// lockFile takes a lock that ends with the process, or fails at once.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
